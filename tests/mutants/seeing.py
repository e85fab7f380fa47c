"""A plugin of pytest: which functions of the engine each test calls, and how long it takes, written to the folder PERDURE_SEEN."""

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
_MARK = f"{os.sep}src{os.sep}perdure{os.sep}"
_found: dict[str, tuple[float, list[str]]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    began = time.process_time()
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        ours = {code for code in codes if _MARK in code.co_filename}
        names = sorted(f"perdure/{code.co_filename.split(_MARK)[1]}:{code.co_firstlineno}" for code in ours)
        _found[item.nodeid] = (time.process_time() - began, names)


def pytest_sessionfinish() -> None:
    if _found:
        folder = Path(os.environ[SEEN])
        (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(_found))
