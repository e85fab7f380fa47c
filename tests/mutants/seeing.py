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

from tests.mutants.places import leave_out

SEEN = "PERDURE_SEEN"
_MARK = f"{os.sep}src{os.sep}perdure{os.sep}"
_found: dict[str, tuple[float, list[str]]] = {}
_failed: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)


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
        names = sorted(f"perdure/{code.co_filename.split(_MARK)[1]}:{code.co_qualname}" for code in ours)
        _found[item.nodeid] = (time.perf_counter() - began, names)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test that fails without a fault would seem to notice every fault.
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    for test in _failed:
        _found.pop(test, None)
    if _found:
        folder = Path(os.environ[SEEN])
        (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(_found))
