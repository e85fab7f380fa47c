"""Named locks: one holder at a time, by the database's clock, and tokens that only grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.core.model.lock import LockGrant
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, SECOND, START, Harness, Unshared, snapshot
from perdure.testing.conformance.singletons import PREPARE as SINGLETONS
from perdure.testing.conformance.tokens import PREPARE as TOKENS
from perdure.testing.conformance.watermarks import PREPARE as WATERMARKS

TTL = 10 * SECOND
WEEK = 7 * 24 * 3600

Verb = Callable[[Store], Awaitable[object]]


async def acquire(store: Store, nonce: str, name: str = "import") -> LockGrant:
    """Ask for a lock under a nonce."""
    return await store.acquire_lock(name, f"owner of {nonce}", nonce, TTL, ACTOR)


async def trail(store: Store, name: str = "import") -> list[str]:
    """Entries of the audit trail about a lock."""
    return [event.kind for event in await store.events(f"lock:{name}")]


async def _prepare_acquire(store: Store) -> Verb:
    return lambda store: acquire(store, "n1")


async def _prepare_extend(store: Store) -> Verb:
    await acquire(store, "n1")
    return lambda store: store.extend_lock("import", "n1", 2 * TTL, ACTOR)


async def _prepare_release(store: Store) -> Verb:
    token = (await acquire(store, "n1")).lock.token
    return lambda store: store.release_lock("import", token, "n1", ACTOR)


#: For the tests that lose answers.
PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {
    "acquire_lock": _prepare_acquire,
    "extend_lock": _prepare_extend,
    "release_lock": _prepare_release,
    **SINGLETONS,
    **WATERMARKS,
    **TOKENS,
}


class Locks:
    """A lock has one holder until a time."""

    async def test_one_has_it_and_the_others_are_told_who_and_until_when(self, store: Store) -> None:
        mine = await acquire(store, "n1")
        assert mine.granted
        assert (mine.lock.owner, mine.lock.acquired_at, mine.lock.expires_at) == ("owner of n1", START, START + TTL)
        theirs = await acquire(store, "n2")
        assert (theirs.granted, theirs.lock) == (False, mine.lock)
        assert (await acquire(store, "n2", "another")).granted
        assert await trail(store) == ["lock_acquired"]

    async def test_a_lock_that_has_run_out_is_stolen_with_a_larger_token(self, store: Store, harness: Harness) -> None:
        first = (await acquire(store, "n1")).lock
        harness.system.advance(9.999999)
        assert not (await acquire(store, "n2")).granted
        harness.system.advance(0.000001)
        second = await acquire(store, "n2")
        assert second.granted
        assert second.lock.token > first.token
        assert await store.extend_lock("import", "n1", TTL, ACTOR) is None
        assert not await store.release_lock("import", first.token, "n1", ACTOR)
        assert not await store.release_lock("import", second.lock.token, "n1", ACTOR)
        assert not (await acquire(store, "n3")).granted

    async def test_its_holder_alone_holds_it_for_longer(self, store: Store, harness: Harness) -> None:
        first = (await acquire(store, "n1")).lock
        harness.system.advance(5)
        longer = await store.extend_lock("import", "n1", TTL, ACTOR)
        assert longer is not None
        assert (longer.token, longer.expires_at) == (first.token, START + 5 * SECOND + TTL)
        assert await store.extend_lock("import", "n2", TTL, ACTOR) is None
        assert await store.extend_lock("nothing", "n1", TTL, ACTOR) is None
        harness.system.advance(9)
        assert not (await acquire(store, "n2")).granted

    async def test_a_lock_that_ran_out_and_was_not_taken_is_held_on_to(self, store: Store, harness: Harness) -> None:
        await acquire(store, "n1")
        harness.system.advance(20)
        assert await store.extend_lock("import", "n1", TTL, ACTOR) is not None
        assert not (await acquire(store, "n2")).granted

    async def test_one_that_is_released_is_free_and_tokens_grow_all_the_same(self, store: Store) -> None:
        tokens = []
        for nonce in ("n1", "n2", "n3"):
            token = (await acquire(store, nonce)).lock.token
            assert await store.release_lock("import", token, nonce, ACTOR)
            assert await store.release_lock("import", token, nonce, ACTOR)
            assert await store.extend_lock("import", nonce, TTL, ACTOR) is None
            tokens.append(token)
        assert tokens == sorted(set(tokens))
        assert await trail(store) == ["lock_acquired", "lock_released"] * 3

    async def test_a_lock_can_be_taken_from_its_holder(self, store: Store) -> None:
        token = (await acquire(store, "n1")).lock.token
        assert not await store.release_lock("import", token - 1, None, ACTOR)
        assert await store.release_lock("import", token, None, ACTOR, "its host is gone")
        assert await store.extend_lock("import", "n1", TTL, ACTOR) is None
        assert "its host is gone" in (await store.events("lock:import"))[-1].data
        assert (await acquire(store, "n2")).granted
        assert await trail(store) == ["lock_acquired", "lock_broken", "lock_acquired"]

    async def test_those_that_are_held_are_listed_by_name(self, store: Store, harness: Harness) -> None:
        for name in ("b", "a", "c", "B"):
            await acquire(store, f"n-{name}", name)
        free = (await acquire(store, "n-d", "d")).lock
        await store.release_lock("d", free.token, "n-d", ACTOR)
        assert [one.name for one in await store.locks("", 3)] == ["B", "a", "b"]
        assert [one.name for one in await store.locks("b", 3)] == ["c"]
        harness.system.advance(10)
        assert await store.locks("", 3) == []

    async def test_a_lock_that_has_been_free_for_long_is_forgotten(self, store: Store, harness: Harness) -> None:
        before = (await acquire(store, "n1", "old")).lock.token
        harness.system.advance(WEEK + 11)
        await acquire(store, "n2")
        assert await harness.query("SELECT name FROM perdure_locks") == [("import",)]
        assert (await acquire(store, "n3", "old")).lock.token > before

    async def test_of_many_who_want_it_at_once_one_gets_it(self, store: Store, harness: Harness) -> None:
        try:
            other = await harness.open()
        except Unshared:
            other = store
        grants = await asyncio.gather(*(acquire((store, other)[place % 2], f"n{place}") for place in range(16)))
        assert [grant.granted for grant in grants].count(True) == 1
        assert len({grant.lock for grant in grants}) == 1

    async def test_being_refused_writes_nothing(self, store: Store, harness: Harness) -> None:
        await acquire(store, "n1")
        before = await snapshot(harness)
        await acquire(store, "n2")
        await store.extend_lock("import", "n2", TTL, ACTOR)
        assert await snapshot(harness) == before

    @pytest.mark.parametrize("name", ["Straße 1", "a" * 200, "x/y#z~"])
    async def test_names_are_told_apart_byte_by_byte(self, store: Store, name: str) -> None:
        assert (await acquire(store, "n1", name)).granted
        assert (await acquire(store, "n2", name.upper())).granted
        assert [one.name for one in await store.locks("", 9)] == sorted({name, name.upper()})
