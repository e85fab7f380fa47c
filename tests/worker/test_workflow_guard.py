"""I/O in workflow code is warned of, once for each line, with the line and the remedy."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from perdure import Context, Engine, activity, step, workflow
from perdure.worker.workflow_guard import IoGuard

HERE = Path(__file__).name


def read_file() -> None:
    Path(__file__).read_text()


def connect() -> None:
    with socket.socket() as sock:
        sock.settimeout(0)
        sock.connect_ex(("127.0.0.1", 9))


def look_up() -> None:
    socket.getaddrinfo("localhost", 80)


def start_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def start_thread() -> None:
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()


def list_folder() -> None:
    list(Path().iterdir())


WRONG: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (read_file, connect, look_up, start_process, list_folder)
}
if sys.version_info >= (3, 12):  # before, a new thread was no audit event
    WRONG["start_thread"] = start_thread


def import_lazily() -> None:
    sys.modules.pop("this_module_is_imported_late", None)
    __import__("colorsys")
    sys.modules.pop("colorsys")
    __import__("colorsys")


def load_time_zone() -> None:
    ZoneInfo.no_cache("Asia/Kathmandu").utcoffset(None)


def format_error() -> None:
    import linecache

    linecache.clearcache()
    try:
        raise ValueError
    except ValueError:
        traceback.format_exc()


def read_package_data() -> None:
    Path(logging.__file__).read_text()


RIGHT: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (import_lazily, load_time_zone, format_error, read_package_data, print)
}


@workflow("guard.does.v1")
async def does(ctx: Context, what: str) -> str:
    {**WRONG, **RIGHT}[what]()
    return what


@step(timeout="10s")
def act(what: str) -> str:
    WRONG[what]()
    return what


@activity("guard.activity.v1")
async def act_alone(what: str) -> str:
    WRONG[what]()
    return what


@workflow("guard.delegates.v1")
async def delegates(ctx: Context, what: str) -> str:
    await ctx.call(act_alone(what))
    return await ctx.step(act, what)


@pytest.fixture(autouse=True)
def fresh_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which lines other tests were warned of."""
    monkeypatch.setattr("perdure.worker.workflow_guard._io_guard", IoGuard())


async def execute(call: Any, **options: Any) -> Any:
    async with Engine("sqlite://", [does, delegates, act_alone]) as engine, engine.worker(**options):
        return await (await engine.start(call)).result()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "workflow code" in record.getMessage()]


@pytest.mark.parametrize("what", WRONG)
async def test_io_in_workflow_code_is_warned_of_with_its_line_and_the_remedy(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await execute(does(what)) == what
    (warning, *_) = warnings_of(caplog)
    line = WRONG[what].__code__.co_firstlineno
    assert any(f"{HERE}:{number} (in {what})" in warning for number in range(line, line + 5)), warning
    assert "ctx.step(function, ...)" in warning


async def test_a_line_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine("sqlite://", [does]) as engine, engine.worker():
        for _ in range(3):
            await (await engine.start(does("list_folder"))).result()
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("what", RIGHT)
async def test_imports_tracebacks_time_zones_and_package_data_are_exempt(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await execute(does(what)) == what
    assert warnings_of(caplog) == []


async def test_log_handlers_are_exempt(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    log = logging.getLogger("tests.guard")
    monkeypatch.setitem(WRONG, "log", lambda: log.warning("written"))
    log.addHandler(handler)
    try:
        assert await execute(does("log")) == "log"
    finally:
        log.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "written\n"
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("what", WRONG)
async def test_steps_and_activities_may_do_anything(what: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await execute(delegates(what)) == what
    assert warnings_of(caplog) == []


async def test_an_option_switches_the_warning_off(caplog: pytest.LogCaptureFixture) -> None:
    assert await execute(does("list_folder"), watch_io=False) == "list_folder"
    assert warnings_of(caplog) == []


def test_the_hook_is_installed_when_a_worker_starts_and_not_before() -> None:
    program = """
import asyncio, perdure
from perdure.worker import workflow_guard
@perdure.workflow("x")
async def f(ctx: perdure.Context) -> None: pass
async def main():
    async with perdure.Engine("sqlite://", [f]) as engine:
        assert not workflow_guard._installed
        async with engine.worker(watch_io=False):
            assert not workflow_guard._installed
        async with engine.worker():
            assert workflow_guard._installed
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
