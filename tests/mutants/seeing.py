"""A plugin of pytest: which functions of the engine each test calls, and how long it takes, written to the folder
PERDURE_SEEN."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

SEEN = "PERDURE_SEEN"
#: Tests that no fault reaches (other processes do not have it) or that need a server, by fixture and by place.
_FIXTURES = frozenset({"processes", "postgres", "mysql", "on_server", "on_postgres", "on_mysql"})
_PLACES = (
    "tests/faults/", "tests/store/migrations/", "tests/mutants/", "tests/store/postgres/", "tests/store/mysql/",
    "tests/servers/", "tests/typing/", "tests/test_",
    "tests/cli/test_demo.py", "tests/cli/test_stress.py",
)  # fmt: skip
_SERVERS = ("postgres", "mysql")
_MARK = f"{os.sep}src{os.sep}perdure{os.sep}"
_found: dict[str, tuple[float, list[str]]] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {item for item in items if _is_out_of_reach(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_out_of_reach(item: pytest.Item) -> bool:
    return (
        item.nodeid.startswith(_PLACES)
        or item.get_closest_marker("timeout") is not None
        or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or any(server in item.nodeid for server in _SERVERS)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        # Threads that the test has left behind may still add to it.
        ours = {code for code in codes.copy() if _MARK in code.co_filename}
        names = sorted(f"perdure/{code.co_filename.split(_MARK)[1]}:{code.co_firstlineno}" for code in ours)
        _found[item.nodeid] = (time.perf_counter() - began, names)


def pytest_sessionfinish() -> None:
    if _found:
        folder = Path(os.environ[SEEN])
        (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(_found))
