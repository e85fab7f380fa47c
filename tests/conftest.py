"""What every test shares: how hard Hypothesis looks (`make prove` sets PERDURE_PROVE and looks a hundred times harder),
and places on the test servers, if there are any."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, kinds_for, lay_tables, set_up

# Here, because the first directory that imports the suite decides whether its assertions explain themselves.
pytest.register_assert_rewrite("perdure.testing.conformance")

for name, examples in {"quick": 10, "usual": 100, "prove": 10_000}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("prove" if os.environ.get("PERDURE_PROVE") else "usual")


#: What a module has that starts processes, and the fixtures that do. Each costs more than a hundred tests that do
#: without.
_STARTERS = ("subprocess", "multiprocessing", "signal", "selenium", "Family", "PrivateServer")
_FIXTURES = frozenset(
    {"processes", "postgres", "mysql", "on_server", "on_postgres", "on_mysql", "schemas", "databases"}
)
_NAMES = ("postgres", "mysql")
_IMPORTS = re.compile(
    rf"^(?:import|from) (?:{'|'.join(_STARTERS)})\b|\bimport .*\b(?:Family|PrivateServer)\b", re.MULTILINE
)
_SERVERS = ("PERDURE_TEST_POSTGRES", "PERDURE_TEST_MYSQL", "PERDURE_TEST_PGBOUNCER")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="leave out what needs a server, starts processes or asks for more time"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts commands in the background so, and the programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # This process collects tests. What it imports and makes meanwhile is there to the end.
        gc.disable()
    if config.getoption("--quick"):
        settings.load_profile("quick")
        # Fixtures that lead to servers make their tests once: all of them are left out, and making them takes longer
        # than the others do.
        os.environ["PERDURE_QUICK"] = "1"
        for variable in _SERVERS:
            os.environ.pop(variable, None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out of `make quick` before they are imported, by the same signs as `_is_slow`."""
    if collection_path.suffix != ".py" or not config.getoption("--quick"):
        return None
    name = str(collection_path.relative_to(config.rootpath))
    if any(server in name for server in _NAMES) or _IMPORTS.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        slow = [item for item in items if _is_slow(item)]
        config.hook.pytest_deselected(items=slow)
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]
    elif processes := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = _long_first(items, processes)


def _long_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Let each process of pytest begin with its share of the modules that start processes.

    These tests wait most of their time. At the end of a run, they would leave the cores idle. `--dist worksteal` gives
    each process one part of the list, and later moves tests from the end of a part to a process that has none left.
    """
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    rest: list[pytest.Item] = []
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        starts = any(hasattr(getattr(item, "module", None), name) for name in _STARTERS)
        (modules.setdefault(item.path, []) if starts else rest).append(item)
    for number, tests in enumerate(sorted(modules.values(), key=len)):
        shares[number % processes].extend(tests)
    left, start = len(items), 0
    for number, share in enumerate(shares):
        size = left // (processes - number)
        left -= size
        end = start + max(0, size - len(share))
        share.extend(rest[start:end])
        start = end
    return [*chain.from_iterable(shares), *rest[start:]]


def _is_slow(item: pytest.Item) -> bool:
    """Whether it is for `make test` and not for `make quick`, by what it uses, so that there is no list to keep."""
    module = getattr(item, "module", None)
    return (
        item.get_closest_marker("timeout") is not None
        or any(hasattr(module, name) for name in _STARTERS)
        or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or any(server in item.nodeid for server in _NAMES)
    )


def pytest_collection_finish() -> None:
    # Thousands of tests and all that they import are there to the end: looking at them in every collection took a tenth
    # of the time.
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _leave_other_modules_out_of_collections() -> Iterator[None]:
    # Objects that a module leaves stay to the end, as the collected tests do: a later test that collects garbage need
    # not look at them. Garbage that becomes unreachable in a module itself is reported as before.
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def schemas() -> Iterator[Schemas]:
    schemas = Schemas()
    yield schemas
    schemas.drop()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    databases = Databases()
    yield databases
    databases.drop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test on a stage its databases, as `kinds_for` says; its marks are `every_database` and `shared`."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "stage_kind" in metafunc.fixturenames and not any("stage" in mark.args[0] for mark in marks):
        every, shared = (metafunc.definition.get_closest_marker(name) for name in ("every_database", "shared"))
        kinds = kinds_for(metafunc.definition.nodeid, every=every is not None, shared=shared is not None)
        metafunc.parametrize("stage_kind", kinds, indirect=True)


@pytest.fixture
def stage_kind(request: pytest.FixtureRequest) -> str:
    """The database of a stage: "file", "memory", "postgres" or "mysql"."""
    kind: str = getattr(request, "param", "file")
    return kind


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, stage_kind: str, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(getattr(request, "param", stage_kind), tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    await lay_tables(tmp_path / "runs.db")
    yield stage
    await stage.close()
