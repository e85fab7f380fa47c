"""Processes of two versions of Perdure on one database: this one, and a later one with one more migration.

`python -m tests.store.migrations.versions ROLE URL [CRASH_POINT]` is one process. It prints "up" when it is ready, and
begins when it reads a line. A `migrator` opens the store, which migrates it; a `worker` works until its input ends. A
process with a crash point dies there.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from perdure import Context, Engine, workflow
from perdure.store import Retrying, migrations, open_store
from perdure.store.migrations import Migration
from perdure.store.sql.dialect import Dialect
from perdure.testing.crash import CrashingHost, Trap

LATER = {
    # MariaDB has IF NOT EXISTS here and MySQL does not, where the error of a repeated statement counts as done.
    "mysql": """
ALTER TABLE perdure_runs ADD COLUMN flavour VARCHAR(100) NOT NULL DEFAULT 'plain';
CREATE INDEX perdure_runs_by_flavour ON perdure_runs (flavour, created_at);
""",
    # SQLite has no IF NOT EXISTS for columns; the migration and its note are one transaction instead.
    "sqlite": """
ALTER TABLE perdure_runs ADD COLUMN flavour TEXT NOT NULL DEFAULT 'plain';
CREATE INDEX IF NOT EXISTS perdure_runs_by_flavour ON perdure_runs (flavour, created_at);
""",
    "postgres": """
ALTER TABLE perdure_runs ADD COLUMN IF NOT EXISTS flavour TEXT NOT NULL DEFAULT 'plain';
CREATE INDEX IF NOT EXISTS perdure_runs_by_flavour ON perdure_runs (flavour, created_at);
""",
}


async def taste(number: int) -> int:
    """Take a moment."""
    await asyncio.sleep(0.002)
    return number


@workflow("versions.taste.v1")
async def tasting(ctx: Context, steps: int) -> int:
    """A run that takes a while."""
    return sum([await ctx.step(taste, number) for number in range(steps)])


def known_later(known: tuple[Migration, ...], dialect: Dialect) -> tuple[Migration, ...]:
    """Return the migrations of the later version."""
    version = known[-1].version + 1
    return (*known, Migration(version=version, name=f"{version:04}_flavour", sql=LATER[dialect.name]))


def become_later() -> None:
    """Turn this process into the later version."""
    known = migrations.known
    migrations.known = lambda dialect: known_later(known(dialect), dialect)


async def _migrate(url: str, host: CrashingHost) -> None:
    store = open_store(url, host)
    await Retrying(store, host).open()
    await store.close()


async def _work(url: str, host: CrashingHost) -> None:
    engine = Engine(url, [tasting], system=host, migrate=False)
    async with engine, engine.worker(slots=5, lease="5s"):
        print("working", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main(role: str, url: str, crash_point: str = "") -> None:
    """Run one process."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    version, _, role = role.partition("-")
    if version == "later":
        become_later()
    print("up", flush=True)
    sys.stdin.readline()
    host = CrashingHost(Trap(point=crash_point) if crash_point else None)
    asyncio.run({"migrator": _migrate, "worker": _work}[role](url, host))


if __name__ == "__main__":
    main(*sys.argv[1:])
