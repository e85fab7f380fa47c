"""The store that repeats verbs belongs together with the store below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import EngineClosed
from perdure.host import Host
from perdure.store import Retrying, open_store


async def test_the_store_below_is_closed_with_it(tmp_path: Path) -> None:
    host = Host()
    below = open_store(f"sqlite:///{tmp_path}/shop.db", host)
    store = Retrying(below, host)
    await store.open()
    assert await store.get("r1") is None
    await store.close()
    with pytest.raises(EngineClosed):
        await below.get("r1")
