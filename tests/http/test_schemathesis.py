"""Requests generated from the OpenAPI document: every answer is documented, and none is an error of the server.

Each operation gets requests of its own. A state machine then follows links from one operation to the next: it starts a
run, and reads, steers, forks and deletes that run. `make prove` makes 30,000 requests.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perdure import Engine, RunFailed
from perdure.admin import Role
from perdure.http.openapi import make_document
from perdure.http.routes import PREFIX, ROUTES
from tests.http.serving import WORKFLOWS, Served, served

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
OPERATIONS = {f"{route.method} {PREFIX}{route.path}": route for route in ROUTES if not route.streams}
#: Requests in all, requests of each operation, and steps of one walk of the state machine.
REQUESTS = 30_000 if WHOLE else 0
EACH = 24_000 // len(OPERATIONS) if WHOLE else 2
STEPS = 20
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
#: Runs that requests find, besides those that they name by chance.
KNOWN = {
    "run_id": ["done", "asked", "asleep", "failed", "counted"],
    "schedule_id": ["nightly"],
    "name": ["numbers", "ci", "import"],
    "type": ["http.sleeper.v1"],
    "key": ["stage"],
}

#: Values of an answer, by operation and status, and the parameters of other operations that they are.
LINKS: dict[tuple[str, str], tuple[str, str, tuple[str, ...]]] = {
    (name, status): (expression, parameter, targets)
    for names, status, expression, parameter, targets in (
        (
            ("start", "fork"), "201", "$response.body#/id", "run_id",
            (
                "show", "result", "why", "report", "history", "inbox", "events", "interruptions", "logs", "states",
                "send", "ask", "cancel", "terminate", "pause", "resume", "evict", "wake", "retry", "fork", "delete",
                "undelete", "purge",
            ),
        ),
        (("start_many",), "201", "$response.body#/ids/0", "run_id", ("show", "cancel", "retry", "delete", "purge")),
        (("list_runs",), "200", "$response.body#/items/0/id", "run_id", ("show", "report", "retry", "delete", "purge")),
        (("list_dead_letters",), "200", "$response.body#/items/0/run_id", "run_id", ("show_dead_letter", "retry")),
        (("start_bulk",), "202", "$response.body#/id", "job_id", ("show_bulk",)),
        (
            ("create_schedule",), "200", "$request.path.schedule_id", "schedule_id",
            (
                "show_schedule", "change_schedule", "pause_schedule", "resume_schedule", "trigger_schedule",
                "backfill_schedule", "next_fire_times", "schedule_events", "delete_schedule",
            ),
        ),
        (("create_token",), "201", "$request.body#/name", "name", ("show_token", "revoke_token")),
        (("set_limit",), "200", "$request.path.name", "name", ("clear_limit",)),
        (("events", "list_events"), "200", "$response.body#/items/0/run_id", "run_id", ("show", "events")),
    )
    for name in names
}  # fmt: skip


def linked_document() -> dict[str, Any]:
    """The document with links between its operations, without streams, which do not end."""
    document = make_document(routes=[route for route in ROUTES if not route.streams])
    operations = [one for path in document["paths"].values() for one in path.values()]
    by_id = {one["operationId"]: one for one in operations}
    for (name, status), (expression, parameter, targets) in LINKS.items():
        by_id[name]["responses"][status]["links"] = {
            target: {"operationId": target, "parameters": {f"path.{parameter}": expression}}
            for target in targets
            if target in by_id
        }
    return document


SCHEMA = schemathesis.openapi.from_dict(linked_document())


class Background:
    """A server on a thread of its own, for clients that block."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready: Future[tuple[str, str]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self.address, self.token = self._ready.result(timeout=60)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with Engine(self._url, WORKFLOWS) as engine, served(engine, longest_wait=0.05) as site:
                await _furnish(site)
                self._tokens = engine.tokens
                self._ready.set_result((site.url, site.tokens[Role.ADMIN]))
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def new_token(self) -> str:
        """Make another token of an administrator."""
        name = f"admin-{time.time_ns()}"
        making = asyncio.run_coroutine_threadsafe(self._tokens.create(name, Role.ADMIN), self._loop)
        return making.result(60).token

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


async def _furnish(site: Served) -> None:
    for type, run_id, input in (
        ("http.checkout.v1", "done", {"order": {"id": "o", "cents": 1}}),
        ("http.checkout.v1", "failed", {"order": {"id": "o", "cents": -1}}),
        ("http.approval.v1", "asked", {}),
        ("http.sleeper.v1", "asleep", {}),
        ("http.counting.v1", "counted", {"upto": 3}),
    ):
        answer = await site.operator.post("/runs", {"type": type, "id": run_id, "input": input})
        assert answer.status_code == 201, answer.text
    for run_id in ("done", "failed", "counted"):
        with suppress(RunFailed):
            await (await site.engine.get(run_id)).result(60)
    body = {"type": "http.approval.v1", "timing": {"every": "1h"}}
    assert (await site.operator.call("PUT", "/schedules/nightly", body)).status_code == 200


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    place: Path = tmp_path_factory.mktemp("http") / "runs.db"
    server = Background(f"sqlite:///{place}")
    yield server
    server.close()


class Driver:
    """Makes requests, and keeps what was wrong with their answers."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._address = background.address
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {background.token}"
        self.statuses: Counter[int] = Counter()
        #: Requests of each operation that the state machine made.
        self.walked: Counter[str] = Counter()
        self.wrong: dict[str, str] = {}

    def ask(self, operation: Any, count: int) -> None:
        """Make requests of an operation, until one is answered wrongly."""

        @seed(1)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def asked(data: Any) -> None:
            case = self._case(operation, data)
            response = case.call(base_url=self._address, session=self._session, timeout=60)
            self.statuses[response.status_code] += 1
            case.validate_response(response, checks=list(CHECKS))

        try:
            asked()
        except (Exception, BaseExceptionGroup) as error:
            self.wrong[operation.label] = str(error)

    def renew(self) -> None:
        """Get another token if a walk has revoked this one."""
        if self._session.get(f"{self._address}{PREFIX}/session", timeout=60).status_code == 401:
            self._session.headers["Authorization"] = f"Bearer {self._background.new_token()}"

    def walk(self, count: int) -> None:
        """Follow links between operations on a number of walks, until one is answered wrongly."""
        driver = self

        class Machine(SCHEMA.as_state_machine()):  # type: ignore[misc] # made of the document
            def setup(self) -> None:
                driver.renew()

            def get_call_kwargs(self, case: Any) -> dict[str, Any]:
                return {"base_url": driver._address, "session": driver._session, "timeout": 60}

            def validate_response(self, response: Any, case: Any, *_: Any, **__: Any) -> None:
                driver.statuses[response.status_code] += 1
                driver.walked[f"{case.method} {case.path}"] += 1
                case.validate_response(response, checks=list(CHECKS))

        try:
            Machine.run(
                settings=settings(
                    max_examples=count,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    derandomize=not WHOLE,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
            )
        except FlakyStrategyDefinition:
            # Answers choose the next step, and a repetition may get others. Such a walk proves nothing.
            return
        except (Exception, BaseExceptionGroup) as error:
            self.wrong["a walk along the links"] = str(error)

    def _case(self, operation: Any, data: Any) -> Any:
        mode = data.draw(st.sampled_from(list(schemathesis.GenerationMode)))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        for part in case.path_parameters or {}:
            if part in KNOWN and data.draw(st.booleans()):
                case.path_parameters[part] = data.draw(st.sampled_from(KNOWN[part]))
        return case


@pytest.mark.timeout(7200 if WHOLE else 240)
# Schemathesis draws from the module `random`.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_every_generated_request_gets_a_documented_answer(background: Background) -> None:
    driver = Driver(background)
    found: list[Any] = list(SCHEMA.get_all_operations())
    operations = [one.ok() for one in found]
    tried = [one for one in operations if f"{one.method.upper()} {one.path}" in OPERATIONS]
    assert len(tried) == len(OPERATIONS)
    for operation in tried:
        driver.ask(operation, EACH)
    driver.walk(3)
    while sum(driver.statuses.values()) < REQUESTS and driver.wrong == {}:
        driver.walk(50)
    assert driver.wrong == {}
    assert len(driver.walked) > 5
    seen = {200, 404, 422} | ({201, 202, 400, 401, 409} if WHOLE else set())
    assert seen <= set(driver.statuses), driver.statuses
    print(f"{sum(driver.statuses.values())} requests: {sorted(driver.statuses.items())}")
    print(f"{sum(driver.walked.values())} of them along links, of {len(driver.walked)} operations")
