from __future__ import annotations

import asyncio

from perdure import Engine
from tests.cli.conftest import URL, Perdure


async def hold() -> None:
    async with Engine(URL) as engine:
        await engine.locks.acquire("import", "1h", owner="me")


def test_locks_are_listed_and_taken_from_those_who_hold_them(perdure: Perdure) -> None:
    asyncio.run(hold())
    assert perdure("locks", "list", URL).out.startswith("import: me, since ")
    [lock] = perdure("locks", "list", URL, "--json").json
    assert (lock["name"], lock["owner"]) == ("import", "me")
    refused = perdure("locks", "release", URL, "import")
    assert refused.code == 2
    assert "--force" in refused.err
    assert perdure("locks", "release", URL, "import", "--force").out == "import is free.\n"
    assert perdure("locks", "list", URL).out == "Nobody holds a lock.\n"
    assert perdure("locks", "release", URL, "import", "--force").out == "Nobody holds import.\n"
    assert perdure("locks", "release", URL, "import", "--force", "--json").json == {"name": "import", "released": False}
