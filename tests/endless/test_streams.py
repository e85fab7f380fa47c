"""What a step emitted stays when its worker is killed, and the next one emits as another source."""

from __future__ import annotations

from itertools import groupby

from tests.endless.app import WORDS, speaking
from tests.endless.labour import Labour
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.stage import Stage


async def test_what_a_killed_worker_emitted_stays_and_nothing_is_there_twice(stage: Stage, labour: Labour) -> None:
    engine = stage.engine(speaking)
    run = await engine.start(speaking())

    async def words() -> list[tuple[str, int]]:
        return [(item.source, item.value) async for item in run.stream("words", int, follow=False)]

    async def some_are_there() -> bool:
        return len(await words()) >= 3

    await labour.begin()
    await eventually(some_are_there)
    await labour.kill()
    before = await words()
    await labour.begin()
    assert await run.result("60s") == WORDS
    after = await words()
    assert after[: len(before)] == before
    killed = before[-1][0]
    assert after[-1][0] != killed
    assert [word for word in after if word[0] == killed] == [word for word in before if word[0] == killed]
    # A process that a busy machine held up for longer than its lease began again, as another source.
    attempts = [[value for _, value in some] for _, some in groupby(after, lambda word: word[0])]
    assert len(attempts) == len({source for source, _ in after})
    assert attempts == [list(range(len(attempt))) for attempt in attempts]
    assert len(attempts[-1]) == WORDS
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []
