"""Producers that only have a command-line client, and workers in Python that run their activities."""

from __future__ import annotations

import asyncio
import json

from perdure import Engine, activity
from perdure.store.plain_sql import statement
from tests.store.plain_sql.clients import CLIENTS
from tests.store.plain_sql.places import Plain

TYPE = "notify.email.v1"


@activity(TYPE)
def notify(to: str, subject: str = "hello") -> str:
    """Send mail."""
    return f"{subject} to {to}"


def an_insert(to: str, key: str, run_at: int | None = None) -> dict[str, str | int | None]:
    """Return the parameters of an insert in order."""
    return {
        "type": TYPE,
        "input": json.dumps({"to": to}, ensure_ascii=False),
        "idempotency_key": key,
        "queue": None,
        "priority": None,
        "run_at": run_at,
        "max_attempts": None,
    }


async def test_a_command_line_client_asks_for_something_looks_at_it_and_calls_it_off(plain: Plain) -> None:
    client = CLIENTS[plain.dialect.name](plain.url)

    async def ask(name: str, **params: str | int | None) -> dict[str, str]:
        [row] = await asyncio.to_thread(client.run, statement(plain.dialect, name, plain.tables).text, **params)
        return row

    # Inserted while no worker is alive; a second insert finds the same run.
    first = await ask("insert", **an_insert("ünïcode o'clock", "welcome:42"))
    again = await ask("insert", **an_insert("ünïcode o'clock", "welcome:42"))
    assert again["id"] == first["id"]
    assert [str(one["created"])[0] in "1t" for one in (first, again)] == [True, False]
    assert (await ask("query", id=first["id"]))["status"] == "pending"
    later = await ask("insert", **an_insert("late reader", "later", await plain.store.now() + 10**12))
    async with Engine(plain.url, [notify]) as engine, engine.worker():
        assert await (await engine.get(first["id"])).result(timeout=30) == "hello to ünïcode o'clock"
    done = await ask("query", id=first["id"])
    assert (done["status"], json.loads(done["output"])) == ("completed", "hello to ünïcode o'clock")
    assert (await ask("cancel", id=later["id"], reason="not needed", key=None))["status"] == "cancelled"
    assert (await ask("query", id=later["id"]))["error_message"].endswith("before it could go on: not needed")
