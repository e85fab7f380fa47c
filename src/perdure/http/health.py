"""Probes: `/livez` says that the process answers, `/readyz` that work can be done.

Ready means: the database answers, its schema is that of this version, and at least one worker claims runs. The answer
names each check. Details are for callers who are known.

`/metrics` has metrics for Prometheus, for callers with the role of a viewer, as for readings of the API. Its path is
not under `/api/v1`, because Prometheus reads `/metrics` unless it is told otherwise.
"""

from __future__ import annotations

import importlib.util

from msgspec import Struct
from starlette.requests import Request

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.core.access import Role
from perdure.core.model.worker_info import WorkerStatus
from perdure.errors import PerdureError, SchemaMismatch, StoreError
from perdure.http.problems import NOT_FOUND, Refused
from perdure.http.routes import Route


class CheckView(Struct, frozen=True):
    """One check."""

    name: str
    ok: bool
    detail: str = ""


class HealthView(Struct, frozen=True):
    """Result of a probe."""

    ok: bool
    checks: tuple[CheckView, ...] = ()


async def readiness(engine: Engine, *, needs_workers: bool = True) -> HealthView:
    """Check the database, its schema and its workers."""
    database = schema = CheckView("database", True)
    schema = CheckView("schema", True)
    workers = CheckView("workers", False, "unknown, because the database does not answer")
    try:
        store = await session_of(engine).connect()
        found = await store.workers()
        # A worker may run in this process alone; elsewhere its heartbeats say that it claims.
        claiming = [one for one in found if one.status is WorkerStatus.ALIVE and not one.is_late(one.read_at)]
        well = [one for one in claiming if not one.problem]
        workers = CheckView("workers", bool(well), _workers(len(found), len(claiming), len(well)))
    except SchemaMismatch as error:
        schema = CheckView("schema", False, str(error))
    except StoreError as error:
        database = CheckView("database", False, str(error))
    except PerdureError as error:
        database = CheckView("database", False, str(error))
    checks = (database, schema, workers)
    return HealthView(all(one.ok for one in checks if needs_workers or one is not workers), checks)


def _workers(known: int, claiming: int, well: int) -> str:
    return f"{well} of {known} workers claim runs; {claiming} are alive"


async def show_metrics(engine: Engine, request: Request) -> tuple[bytes, str]:
    """Read all metrics, and their content type, in the format that the header `Accept` asks for."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise Refused(NOT_FOUND, "metrics need the extra `metrics` on the server: pip install 'perdure[metrics]'")
    from perdure.metrics.prometheus import metrics_of

    return await metrics_of(engine).exposition(request.headers.get("accept", ""))


METRICS = Route("GET", "/metrics", Role.VIEWER, show_metrics)
