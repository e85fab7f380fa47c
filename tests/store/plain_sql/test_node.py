"""A worker in JavaScript runs activities of a workflow in Python, is killed in between, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from perdure import Context, Engine, activity, workflow
from perdure.host import Host
from perdure.store import open_store
from perdure.store.plain_sql import NAMES, statement
from perdure.store.sql.dialect import POSTGRES
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.servers.schemas import Schemas, postgres_dsn

WORKER = Path(__file__).parents[3] / "examples" / "node-worker"
IMAGES = 300
KILLS = 4


@activity("image.resize.v1")
def resize(name: str, width: int) -> dict[str, object]:
    """Declare the parameters only; the worker in JavaScript runs it."""
    raise NotImplementedError


@workflow("gallery.make.v1")
async def gallery(ctx: Context, images: int) -> list[int]:
    """Resize every image."""
    made = await asyncio.gather(*(ctx.call(resize(f"image-{number:04}", number)) for number in range(images)))
    return [int(str(image["bytes"])) for image in made]


@contextmanager
def node(statements: Path) -> Generator[subprocess.Popen[str]]:
    """Start a worker in JavaScript."""
    process = subprocess.Popen(
        ["node", "worker.js"],
        cwd=WORKER,
        env={**os.environ, "DATABASE_URL": postgres_dsn(), "STATEMENTS": str(statements), "LEASE_SECONDS": "2"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("is ready\n")
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(
    not os.environ.get("PERDURE_PROVE"), reason="`make prove` fetches the packages that this needs, and runs it"
)
async def test_a_worker_in_javascript_is_killed_again_and_again_and_loses_nothing(
    schemas: Schemas, tmp_path: Path
) -> None:
    if shutil.which("node") is None or not (WORKER / "node_modules").exists():
        pytest.skip("there is no Node.js, or not the packages of the example; `make prove` fetches them")
    async with schemas.one() as url:
        store = open_store(url, Host())
        engine = Engine(url, [gallery, resize])
        async with engine, engine.worker(types="gallery.%", lease="2s"):
            await store.open()
            statements = tmp_path / "statements.json"
            statements.write_text(
                json.dumps([{"name": name, "sql": statement(POSTGRES, name, store._tables).text} for name in NAMES])
            )
            run = await engine.start(gallery(IMAGES))

            async def are_done(count: int) -> bool:
                [(done,)] = await store.query("SELECT COUNT(*) FROM perdure_runs WHERE status = 'completed'")
                return bool(done >= count)

            for killed in range(1, KILLS + 1):
                with node(statements) as process:
                    await eventually(partial(are_done, killed * IMAGES // 10), within=60)
                    process.send_signal(signal.SIGKILL)
            with node(statements) as process:
                assert await run.result(timeout=120) == [10 * number for number in range(IMAGES)]
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 30) == 0
            assert [one.runtime for one in await engine.queues.types() if one.kind == "activity"] == ["node", "node"]
            [(reclaimed,)] = await store.query("SELECT COUNT(*) FROM perdure_events WHERE kind = 'reclaimed'")
            assert reclaimed >= KILLS, "nothing was in the middle of being done"
            assert await scan_store(store.query) == []
        await store.close()
