"""Creating runs, by the store and by plain SQL, and unblocking them."""

from __future__ import annotations

import pytest

from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, Reason, Status
from perdure.core.model.turn import Block
from perdure.core.time.duration import NEVER
from perdure.errors import StoreUnavailable
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    a_run,
    claim,
    claim_ids,
    commit,
    held,
    snapshot,
)


class Runs:
    """A run is created once, and stays as it was created."""

    async def test_a_new_run_is_pending_and_ready_now(self, store: Store) -> None:
        [answer] = await store.create([a_run("r1", input='{"a": 1}', priority=7, queue="mail")], ACTOR)
        run = await store.get("r1")
        assert answer.created
        assert run == answer.run
        assert run is not None
        assert (run.status, run.reason, run.wake_at, run.created_at) == (Status.PENDING, None, START, START)
        assert (run.input, run.priority, run.queue, run.type) == ('{"a": 1}', 7, "mail", TYPE)
        assert (run.attempt, run.generation, run.token, run.worker, run.deadline) == (1, 1, 0, None, NEVER)

    async def test_a_run_for_later_waits_for_its_time(self, store: Store) -> None:
        [answer] = await store.create([a_run("r1", wake_at=START + SECOND)], ACTOR)
        assert (answer.run.status, answer.run.reason) == (Status.WAITING, Reason.TIMER)
        assert await store.get("r1") == answer.run

    async def test_the_same_id_yields_the_run_that_is_there(self, store: Store) -> None:
        await store.create([a_run("r1", input="[1]", write_id="first")], ACTOR)
        [again] = await store.create([a_run("r1", input="[2]", write_id="second")], ACTOR)
        assert not again.created
        assert again.run.input == "[1]"

    async def test_an_idempotency_key_yields_the_run_that_is_there_whatever_its_id(self, store: Store) -> None:
        await store.create([a_run("r1", idempotency_key="order-7")], ACTOR)
        [again] = await store.create([a_run("r2", idempotency_key="order-7")], ACTOR)
        assert (again.created, again.run.id) == (False, "r1")
        assert await store.get("r2") is None

    async def test_a_repeated_request_gets_the_same_answer(self, store: Store) -> None:
        first = await store.create([a_run("r1", write_id="once")], ACTOR)
        again = await store.create([a_run("r1", write_id="once")], ACTOR)
        assert first == again
        assert [event.kind for event in await store.events("r1")] == ["created"]

    async def test_duplicates_inside_one_request_create_one_run(self, store: Store) -> None:
        runs = [
            a_run("r1", write_id="a"),
            a_run("r1", write_id="b"),
            a_run("r2", idempotency_key="k"),
            a_run("r3", idempotency_key="k"),
        ]
        answers = await store.create(runs, ACTOR)
        assert [(answer.created, answer.run.id) for answer in answers] == [
            (True, "r1"),
            (False, "r1"),
            (True, "r2"),
            (False, "r2"),
        ]

    async def test_all_or_none_creates_none_where_one_is_taken(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r2", input="[2]", write_id="theirs"), a_run("r4", idempotency_key="k")], ACTOR)
        before = await snapshot(harness)
        runs = [a_run("r1"), a_run("r2"), a_run("r3", idempotency_key="k")]
        answers = await store.create(runs, ACTOR, all_or_none=True)
        assert [(answer.created, answer.run.id) for answer in answers] == [(False, "r2"), (False, "r4")]
        assert answers[0].run.input == "[2]"
        assert await snapshot(harness) == before

    async def test_all_or_none_creates_all_where_none_is_taken_and_knows_its_repetition(self, store: Store) -> None:
        runs = [a_run("r1", write_id="a"), a_run("r2", write_id="b")]
        first = await store.create(runs, ACTOR, all_or_none=True)
        again = await store.create(runs, ACTOR, all_or_none=True)
        assert [(answer.created, answer.run.id) for answer in first] == [(True, "r1"), (True, "r2")]
        assert again == first

    async def test_a_request_is_all_or_nothing(self, store: Store, harness: Harness) -> None:
        def fail(point: str) -> None:
            if point == "create.written":
                raise StoreUnavailable("a fault of the test")

        harness.system.on_crash_point = fail
        with pytest.raises(StoreUnavailable):
            await store.create([a_run("r1"), a_run("r2")], ACTOR)
        harness.system.on_crash_point = lambda _: None
        assert await store.get_many(["r1", "r2"]) == []

    async def test_more_runs_than_a_statement_has_parameters(self, store: Store) -> None:
        ids = [f"r{number}" for number in range(2500)]
        await store.create([a_run(id) for id in ids], ACTOR)
        assert {run.id for run in await store.get_many([*ids, "unknown"])} == set(ids)

    @pytest.mark.parametrize(
        "id", ["R1", "r1 ", "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\u0301", "x" * 255, "'; --", "%"]
    )
    async def test_ids_are_compared_byte_by_byte(self, store: Store, id: str) -> None:
        await store.create([a_run("r1"), a_run("e"), a_run(id)], ACTOR)
        run = await store.get(id)
        assert run is not None
        assert run.id == id
        assert len(await store.get_many(["r1", "e", id])) == 3

    @pytest.mark.parametrize(
        "text", ["{}", '{"a":"\\u0000"}', '"\N{GRINNING FACE}"', " [ 1 ,2] ", '"' + "x" * 300_000 + '"']
    )
    async def test_payloads_come_back_as_the_same_text(self, store: Store, text: str) -> None:
        await store.create([a_run("r1", input=text)], ACTOR)
        run = await store.get("r1")
        assert run is not None
        assert run.input == text

    async def test_a_run_that_is_not_there_is_none(self, store: Store) -> None:
        assert await store.get("unknown") is None
        assert await store.history("unknown") == []
        assert await store.events("unknown") == []
        assert await store.load(["unknown"]) == []

    async def test_creation_is_in_the_audit_trail(self, store: Store) -> None:
        await store.create([a_run("r1")], "a client")
        [event] = await store.events("r1")
        assert (event.kind, event.actor, event.at, event.run_id) == ("created", "a client", START, "r1")


class PlainSql:
    """An INSERT from any language is a way to start a run."""

    INSERT = f"""
        INSERT INTO perdure_runs (type, input, idempotency_key)
        VALUES ('{TYPE}', '{{"to": "a@b.c"}}', 'welcome:42')
    """

    async def test_an_inserted_run_can_be_claimed(self, store: Store, harness: Harness) -> None:
        await harness.execute(self.INSERT)
        harness.system.advance(1_000_000_000)
        [claimed] = (await claim(store)).runs
        assert claimed.run.input == '{"to": "a@b.c"}'
        assert len(claimed.run.id) == 32
        assert (claimed.run.queue, claimed.run.priority) == (DEFAULT_QUEUE, DEFAULT_PRIORITY)
        assert (claimed.run.attempt, claimed.run.token, claimed.run.deadline) == (1, 1, NEVER)
        assert claimed.fresh

    async def test_its_idempotency_key_counts(self, store: Store, harness: Harness) -> None:
        await harness.execute(self.INSERT)
        [answer] = await store.create([a_run("r1", idempotency_key="welcome:42")], ACTOR)
        assert not answer.created

    async def test_one_that_is_for_later_is_not_claimed_early(self, store: Store, harness: Harness) -> None:
        await harness.execute(
            f"INSERT INTO perdure_runs (id, type, wake_at) VALUES ('later', '{TYPE}', {START + 60 * SECOND})"
        )
        assert await claim_ids(store) == []
        run = await store.get("later")
        assert run is not None
        assert (run.status, run.reason) == (Status.WAITING, Reason.TIMER)
        harness.system.advance(60)
        assert await claim_ids(store) == ["later"]


class Blocked:
    """A run that was set aside goes on when a person says so."""

    async def blocked(self, store: Store, id: str, reason: Reason, type: str = TYPE) -> None:
        await store.create([a_run(id, type=type)], ACTOR)
        [claimed] = (await claim(store, nonce=f"n-{id}", types=(type,))).runs
        await commit(store, claimed.lease, next=Block(reason, '{"type": "Oops"}'))

    async def test_a_blocked_run_is_not_claimed(self, store: Store) -> None:
        await self.blocked(store, "r1", Reason.DIVERGED)
        assert await claim_ids(store, nonce="next") == []
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.error) == (Status.BLOCKED, Reason.DIVERGED, '{"type": "Oops"}')

    async def test_an_unblocked_run_is_claimed_under_a_new_lease(self, store: Store) -> None:
        await self.blocked(store, "r1", Reason.DIVERGED)
        before = await store.get("r1")
        assert await store.unblock((TYPE,), ("diverged",), "a person") == 1
        [claimed] = (await claim(store, nonce="next")).runs
        assert before is not None
        assert claimed.run.token > before.token
        assert claimed.run.error is None
        assert "unblocked" in [event.kind for event in await store.events("r1")]

    async def test_only_these_types_are_unblocked(self, store: Store) -> None:
        await self.blocked(store, "r1", Reason.DIVERGED)
        await self.blocked(store, "r2", Reason.DIVERGED, OTHER_TYPE)
        assert await store.unblock((OTHER_TYPE,), ("diverged",), ACTOR) == 1
        assert await claim_ids(store, nonce="next", types=(TYPE, OTHER_TYPE)) == ["r2"]

    async def test_only_these_reasons_are_unblocked(self, store: Store) -> None:
        await self.blocked(store, "r1", Reason.DIVERGED)
        await self.blocked(store, "r2", Reason.UNDECODABLE)
        assert await store.unblock((TYPE,), ("undecodable", "poison"), ACTOR) == 1
        assert await store.unblock((TYPE,), (), ACTOR) == 0
        assert await claim_ids(store, nonce="next") == ["r2"]

    async def test_unblocking_leaves_other_runs_alone(self, store: Store, harness: Harness) -> None:
        await held(store, "r1")
        before = await snapshot(harness)
        assert await store.unblock((TYPE,), ("diverged",), ACTOR) == 0
        assert await snapshot(harness) == before
