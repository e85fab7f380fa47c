"""A plugin of pytest: tries faults in copies of this process, which have imported and collected everything before.

PERDURE_FAULTS names a folder with the file `jobs.json`. In each copy, the functions of a module get the code of another
text. So a fault is out of reach if its code runs only while a module is imported, or if it changes the free variables
of a function; it survives here, and has to be tried anew with `tests.mutants.planting`.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType

import msgspec
import pytest
from msgspec import Struct

from tests.mutants.places import leave_out

FAULTS = "PERDURE_FAULTS"
_NOTICED, _UNNOTICED = 1, 0


class Job(Struct):
    """A fault to try."""

    id: str
    #: The file, its text, and another one.
    path: str
    was: str
    text: str
    #: The tests to run, or files with tests, in that order.
    tests: list[str]
    #: Seconds after which the tests do not end.
    seconds: float


class Answer(Struct):
    """What became of a job: `killed`, `survived`, `hung` or `unseen` (there is no such test), and what noticed."""

    id: str
    end: str
    by: str = ""


_failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(f"{report.nodeid} {report.longreprtext.splitlines()[-1] if report.longreprtext else ''}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    folder = Path(os.environ[FAULTS])
    items: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in session.items:
        items[item.nodeid].append(item)
        items[item.nodeid.partition("::")[0]].append(item)
    with (folder / "answers.jsonl").open("ab", buffering=0) as answers:
        for job in msgspec.json.decode((folder / "jobs.json").read_bytes(), type=list[Job]):
            chosen = [item for test in job.tests for item in items[test]]
            answer = _answer(session, job, chosen) if chosen else Answer(job.id, "unseen")
            answers.write(msgspec.json.encode(answer) + b"\n")
    return True


def _answer(session: pytest.Session, job: Job, chosen: list[pytest.Item]) -> Answer:
    folder = Path(tempfile.mkdtemp(prefix="perdure-fault-"))
    copy = os.fork()
    if copy == 0:
        _be_the_copy(session, job, chosen, folder)
    try:
        until = time.monotonic() + job.seconds
        while True:
            done, status = os.waitpid(copy, os.WNOHANG)
            if done:
                break
            if time.monotonic() > until:
                os.killpg(copy, signal.SIGKILL)
                os.waitpid(copy, 0)
                return Answer(job.id, "hung")
            time.sleep(0.02)
        by = (folder / "by").read_text() if (folder / "by").exists() else f"status {status}"
        return Answer(job.id, "survived" if status == _UNNOTICED else "killed", "" if status == _UNNOTICED else by)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _be_the_copy(session: pytest.Session, job: Job, chosen: list[pytest.Item], folder: Path) -> None:
    end = _NOTICED
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        (folder / "tmp").mkdir()
        session.config._tmp_path_factory._basetemp = folder / "tmp"  # type: ignore[attr-defined] # pytest has no public way
        if not replace_code(job.path, job.was, job.text):
            chosen = []
        for item, following in zip_longest(chosen, chosen[1:]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if _failed:
                break
        end = _NOTICED if _failed else _UNNOTICED
    except BaseException as error:
        _failed.append(repr(error))
        raise
    finally:
        (folder / "by").write_text(_failed[0] if _failed else "")
        os._exit(end)


def replace_code(path: str, was: str, text: str) -> bool:
    """Give the functions of a file the code that they have in another text; False if that code does not fit them."""
    before, after = _by_name(was, path), _by_name(text, path)
    changes = {
        was: becomes
        for name in before
        # One that is no longer there is within a function whose code changes.
        if len(before[name]) == len(after.get(name, ()))
        for was, becomes in zip(before[name], after[name], strict=True)
        if was != becomes
    }
    gc.unfreeze()
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == path and one.__code__ in changes:
            if one.__code__.co_freevars != changes[one.__code__].co_freevars:
                return False
            one.__code__ = changes[one.__code__]
    return True


def _by_name(text: str, path: str) -> dict[str, list[CodeType]]:
    found: dict[str, list[CodeType]] = defaultdict(list)
    for code in _codes(compile(text, path, "exec", dont_inherit=True)):
        found[code.co_qualname].append(code)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
