"""The pytest plugin in a pytest of its own: without pytest-asyncio, and with xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
import sys

LOADED = [name for name in sys.modules if name.partition(".")[0] in ("perdure", "hypothesis", "asyncpg")]


def test_pytest_starts_without_perdure():
    assert LOADED == []


async def test_an_async_test_runs(perdure_env):
    from perdure import Context, workflow

    @workflow("plugin.month.v1")
    async def month(ctx: Context) -> str:
        await ctx.sleep("30d")
        return "done"

    async with perdure_env(month) as env:
        assert await (await env.start(month())).result() == "done"


async def test_an_engine_has_its_database(perdure_engine):
    async with perdure_engine() as engine:
        assert engine.url.startswith("sqlite:///")
        assert not (await engine.runs.list()).runs
"""


def run(folder: Path, *options: str, databases: str = "") -> str:
    (folder / "test_project.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:schemathesis",
         "-p", "no:hypothesispytest", "-p", "no:anyio", *options],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PERDURE_TEST_DATABASES": databases, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_fixtures_need_no_other_plugin_and_pytest_starts_without_perdure(tmp_path: Path) -> None:
    databases = f"sqlite:// sqlite:///{tmp_path}/given.db"
    assert "4 passed" in run(tmp_path, "-p", "no:asyncio", "-p", "no:xdist", databases=databases)


@pytest.mark.skipif(not os.environ.get("PERDURE_PROVE"), reason="PERDURE_PROVE is not set")
def test_the_fixtures_work_with_xdist_and_with_the_modes_of_pytest_asyncio(tmp_path: Path) -> None:
    scope = ("-o", "asyncio_default_fixture_loop_scope=function")
    assert "3 passed" in run(tmp_path, "-p", "no:asyncio", "-n", "2")
    assert "3 passed" in run(tmp_path, "-o", "asyncio_mode=strict", *scope)
    assert "3 passed" in run(tmp_path, "-o", "asyncio_mode=auto", "-n", "2", *scope)
