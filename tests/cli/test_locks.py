from __future__ import annotations

import asyncio

from perdure import Engine
from tests.cli.conftest import URL, Perdure


async def hold() -> None:
    async with Engine(URL) as engine:
        await engine.locks.acquire("import", "1h", owner="me")


def test_locks_are_listed_and_released_by_force(perdure: Perdure) -> None:
    asyncio.run(hold())
    assert perdure("locks", "list", URL).out.splitlines()[1].split()[:2] == ["import", "me"]
    [lock] = perdure("locks", "list", URL, "--json").json
    assert (lock["name"], lock["owner"]) == ("import", "me")
    refused = perdure("locks", "release", URL, "import")
    assert refused.code == 2
    assert "--force" in refused.err
    assert perdure("locks", "release", URL, "import", "--force", "--reason", "gone").out == "import is released.\n"
    assert perdure("locks", "list", URL).err == "No lock is held.\n"
    assert perdure("locks", "release", URL, "import", "--force").out == "import is not held.\n"
    assert perdure("locks", "release", URL, "import", "--force", "--json").json == {"name": "import", "released": False}
