"""Tokens of access: found by digest, unique by name while valid, and revoked for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.core.access import NewToken, Role, StoredToken, TokenInfo
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, SECOND, START, Harness, snapshot

Verb = Callable[[Store], Awaitable[object]]

NEW = NewToken(name="ci", digest="digest of ci", role=Role.OPERATOR, expires_at=START + 10 * SECOND)


async def _prepare_create(store: Store) -> Verb:
    return lambda store: store.create_token(NEW, ACTOR)


async def _prepare_revoke(store: Store) -> Verb:
    made = await _made(store)
    return lambda store: store.revoke_token("ci", made.created_at, ACTOR)


async def _prepare_touch(store: Store) -> Verb:
    await _made(store)
    return lambda store: store.touch_tokens([(NEW.digest, START + SECOND)], ACTOR)


#: For the tests that lose answers.
PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {
    "create_token": _prepare_create,
    "revoke_token": _prepare_revoke,
    "touch_tokens": _prepare_touch,
}


async def _made(store: Store, new: NewToken = NEW) -> TokenInfo:
    made = await store.create_token(new, ACTOR)
    assert made is not None
    return made


async def _trail(store: Store) -> list[str]:
    return [event.kind for event in await store.events("token:ci")]


class Tokens:
    """A token has a name, a role and an end."""

    async def test_a_token_is_found_by_its_digest_alone(self, store: Store) -> None:
        made = await _made(store)
        assert made == TokenInfo(
            name="ci",
            role=Role.OPERATOR,
            created_at=START,
            created_by=ACTOR,
            expires_at=START + 10 * SECOND,
            revoked_at=0,
            used_at=0,
        )
        assert await store.token(NEW.digest) == StoredToken(NEW.digest, made)
        assert await store.token("digest of another") is None
        assert await _trail(store) == ["token_created"]

    async def test_a_repeated_request_changes_nothing(self, store: Store, harness: Harness) -> None:
        made = await _made(store)
        before = await snapshot(harness)
        assert await store.create_token(NEW, ACTOR) == made
        assert await snapshot(harness) == before

    async def test_a_digest_belongs_to_one_token(self, store: Store, harness: Harness) -> None:
        await _made(store)
        old = NewToken(name="old", digest="digest of an old one", role=Role.VIEWER, expires_at=START + SECOND)
        assert await store.create_token(old, ACTOR) is not None
        before = await snapshot(harness)
        harness.system.advance(2 * SECOND)
        # A new name, and one that is free again.
        for name in ("other", "old"):
            taken = NewToken(name=name, digest=NEW.digest, role=Role.ADMIN)
            assert await store.create_token(taken, ACTOR) is None
        assert await snapshot(harness) == before

    async def test_a_name_belongs_to_one_valid_token(self, store: Store, harness: Harness) -> None:
        made = await _made(store)
        other = NewToken(name="ci", digest="another digest", role=Role.ADMIN)
        assert await store.create_token(other, ACTOR) is None
        assert await store.token(NEW.digest) == StoredToken(NEW.digest, made)
        harness.system.advance(10)
        assert (await _made(store, other)).expires_at == NEVER
        assert await store.token(NEW.digest) is None

    async def test_a_revoked_token_stays_revoked_and_frees_its_name(self, store: Store, harness: Harness) -> None:
        made = await _made(store)
        await store.touch_tokens([(NEW.digest, START + 5)], ACTOR)
        harness.system.advance(1)
        revoked = await store.revoke_token("ci", made.created_at, ACTOR)
        assert revoked is not None
        assert (revoked.revoked_at, revoked.used_at) == (START + SECOND, START + 5)
        assert not revoked.is_valid(START + SECOND)
        assert await store.token(NEW.digest) == StoredToken(NEW.digest, revoked)
        before = await snapshot(harness)
        harness.system.advance(1)
        assert await store.revoke_token("ci", made.created_at, ACTOR) == revoked
        assert await snapshot(harness) == before
        again = await _made(store, NewToken(name="ci", digest="another digest", role=Role.VIEWER))
        assert (again.revoked_at, again.used_at) == (0, 0)
        assert await _trail(store) == ["token_created", "token_revoked", "token_created"]

    async def test_a_late_revocation_spares_the_next_token_of_that_name(self, store: Store) -> None:
        first = await _made(store)
        await store.revoke_token("ci", first.created_at, ACTOR)
        second = await _made(store, NewToken(name="ci", digest="another digest", role=Role.VIEWER))
        assert second.created_at > first.created_at
        assert await store.revoke_token("ci", first.created_at, ACTOR) is None
        assert await store.revoke_token("unknown", first.created_at, ACTOR) is None
        assert await store.token("another digest") == StoredToken("another digest", second)

    async def test_the_last_use_never_goes_back_and_is_no_event(self, store: Store) -> None:
        await _made(store)
        await store.touch_tokens([(NEW.digest, START + 9), ("unknown", START + 9)], ACTOR)
        await store.touch_tokens([(NEW.digest, START + 5)], ACTOR)
        found = await store.token(NEW.digest)
        assert found is not None
        assert found.info.used_at == START + 9
        assert await _trail(store) == ["token_created"]

    async def test_a_session_ends_with_its_token(self, store: Store, harness: Harness) -> None:
        made = await _made(store)
        session = NewToken(name="ci/1", parent="ci", digest="digest of a session", role=Role.VIEWER)
        assert (await _made(store, session)).parent == "ci"
        assert [one.name for one in await store.tokens("", 10)] == ["ci"]
        harness.system.advance(1)
        await store.revoke_token("ci", made.created_at, ACTOR)
        found = await store.token("digest of a session")
        assert found is not None
        assert found.info.revoked_at == START + SECOND
        another = NewToken(name="ci/2", parent="ci", digest="digest of another", role=Role.VIEWER)
        assert await store.create_token(another, ACTOR) is None
        orphan = NewToken(name="unknown/1", parent="unknown", digest="digest of an orphan", role=Role.VIEWER)
        assert await store.create_token(orphan, ACTOR) is None

    async def test_a_new_session_deletes_expired_ones(self, store: Store, harness: Harness) -> None:
        await _made(store)
        for number, end in ((1, START + SECOND), (2, START + 9 * SECOND)):
            await _made(
                store,
                NewToken(name=f"ci/{number}", parent="ci", digest=str(number), role=Role.VIEWER, expires_at=end),
            )
        harness.system.advance(2)
        await _made(store, NewToken(name="ci/3", parent="ci", digest="3", role=Role.VIEWER))
        assert [await store.token(str(number)) is None for number in (1, 2, 3)] == [True, False, False]

    async def test_tokens_are_listed_by_name(self, store: Store) -> None:
        for name in ("c", "a", "b"):
            await _made(store, NewToken(name=name, digest=f"digest of {name}", role=Role.VIEWER))
        assert [one.name for one in await store.tokens("", 10)] == ["a", "b", "c"]
        assert [one.name for one in await store.tokens("a", 1)] == ["b"]
        assert [one.name for one in await store.tokens("", 1, "c")] == ["c"]
        assert await store.tokens("", 1, "d") == []
