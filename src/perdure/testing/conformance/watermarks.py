"""Watermarks come back as they were set, and what waits is counted, but not without end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.core.model.run import QueueBacklog
from perdure.core.policy.watermark import Watermark
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, OTHER_TYPE, SECOND, START, TYPE, Harness, a_run, claim, snapshot

Verb = Callable[[Store], Awaitable[object]]

MARK = Watermark(high=10, low=7, when_full="wait", queue="q")


async def _prepare_set(store: Store) -> Verb:
    return lambda store: store.set_watermark(MARK, ACTOR)


async def _prepare_remove(store: Store) -> Verb:
    await store.set_watermark(MARK, ACTOR)
    return lambda store: store.remove_watermark("queue", "q", ACTOR)


#: For the tests that lose answers.
PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {
    "set_watermark": _prepare_set,
    "remove_watermark": _prepare_remove,
}


class Watermarks:
    """Bounds of what may wait, and the number that does."""

    async def test_they_are_set_changed_and_removed(self, store: Store, harness: Harness) -> None:
        await store.set_watermark(MARK, ACTOR)
        await store.set_watermark(Watermark(high=100, type="t"), ACTOR)
        assert await store.watermarks() == [MARK, Watermark(high=100, low=80, type="t")]
        before = await snapshot(harness)
        await store.set_watermark(MARK, ACTOR)
        assert await snapshot(harness) == before
        await store.set_watermark(Watermark(high=20, queue="q"), ACTOR)
        await store.remove_watermark("type", "t", ACTOR)
        await store.remove_watermark("type", "t", ACTOR)
        assert await store.watermarks() == [Watermark(high=20, low=16, queue="q")]
        assert [event.kind for event in await store.events("watermark:queue:q")] == ["watermark_set"] * 2
        assert [event.kind for event in await store.events("watermark:type:t")] == [
            "watermark_set",
            "watermark_removed",
        ]

    async def test_what_is_ready_is_counted_by_queue_and_by_type(self, store: Store) -> None:
        runs = [a_run(f"r{n}", queue=f"q{n % 3}", type=TYPE if n % 2 else OTHER_TYPE) for n in range(12)]
        await store.create([*runs, a_run("later", queue="q1", wake_at=START + SECOND)], ACTOR)
        await claim(store, queues=("q0",), limit=1)
        assert [await store.depth("queue", f"q{n}", 100) for n in range(4)] == [3, 4, 4, 0]
        assert await store.depth("type", TYPE, 100) == 5
        assert await store.depth("type", OTHER_TYPE, 100) == 6

    async def test_the_backlog_of_a_queue_has_its_number_and_the_oldest_ready_run(
        self, store: Store, harness: Harness
    ) -> None:
        since: list[int] = []
        for queue, type in (("other", TYPE), ("q", OTHER_TYPE), ("q", TYPE), ("q", TYPE)):
            [made] = await store.create([a_run(f"r{len(since)}", queue=queue, type=type)], ACTOR)
            since.append(made.run.wake_at)
            harness.system.advance(SECOND)
        assert since == sorted({*since})
        assert await store.backlog("q", 100) == QueueBacklog(3, since[1])
        assert await store.backlog("empty", 100) == QueueBacklog(0, 0)
        # In the order of the index: the type that comes first.
        assert await store.backlog("q", 1) == QueueBacklog(1, since[2] if TYPE < OTHER_TYPE else since[1])

    async def test_those_before_a_gate_are_counted_as_well(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r0", queue="q")], ACTOR)
        for number, (queue, location) in enumerate((("q", ""), ("q", ""), ("other", ""), ("q", "step"))):
            await harness.execute(
                "INSERT INTO perdure_lines (run_id, location, gate, queue, type, priority, turn, gating, since) "
                f"VALUES ('r{number}', '{location}', 'g', '{queue}', '{TYPE}', 1, 1, '', 1)"
            )
        assert await store.depth("queue", "q", 100) == 3
        assert (await store.backlog("q", 100)).waiting == 3
        assert await store.depth("type", TYPE, 100) == 4
        assert await store.depth("queue", "q", 2) == 2
        await harness.execute("DELETE FROM perdure_lines")

    async def test_pinned_runs_before_a_gate_are_in_the_backlog_of_their_own_queue_alone(
        self, store: Store, harness: Harness
    ) -> None:
        queues = ("q", "q~a", "q~b", "q~b", "other~a")
        await store.create([a_run(f"r{number}", queue=queue) for number, queue in enumerate(queues)], ACTOR)
        for number, queue in enumerate(queues):
            await harness.execute(
                "INSERT INTO perdure_lines (run_id, location, gate, queue, type, priority, turn, gating, since) "
                f"VALUES ('r{number}', '', 'g', '{queue}', '{TYPE}', 1, 1, '', 1)"
            )
        assert [(await store.backlog(one, 100)).waiting for one in ("q", "q~a", "q~b", "q~c")] == [2, 2, 4, 0]
        assert await store.depth("queue", "q", 100) == 8
        await harness.execute("DELETE FROM perdure_lines")

    async def test_no_more_is_counted_than_was_asked_for(self, store: Store) -> None:
        await store.create([a_run(f"r{n}", queue=f"q{n % 2}") for n in range(10)], ACTOR)
        assert await store.depth("queue", "q0", 3) == 3
        assert await store.depth("type", TYPE, 7) == 7
