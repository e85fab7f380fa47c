"""Log lines that are kept with runs."""

from __future__ import annotations

from perdure.core.model.outputs import NewOutput, Output, OutputKind
from perdure.core.run_log import LoggedLine, line_of, line_output
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, START, Harness, a_run, held, snapshot


def a_line(number: int) -> NewOutput:
    """A line with a text that databases have to store as it is."""
    line = LoggedLine(at=START + number, level="INFO", logger="shop", text=f"line {number} \0 'ü' 🐍")
    return line_output(line, f"log:w1:{number}")


async def kept(store: Store, run_id: str = "r1") -> list[Output]:
    """The log of a run."""
    return await store.outputs(run_id, OutputKind.LOG, "", -1, 1000)


class RunLogs:
    """A run keeps its latest log lines."""

    async def test_the_latest_lines_of_each_run_are_kept_in_order(self, store: Store) -> None:
        await held(store, "r1")
        await store.create([a_run("r2")], ACTOR)
        for first in (0, 3, 6):
            await store.keep_log([("r1", a_line(number)) for number in range(first, first + 3)], 4, ACTOR)
        await store.keep_log([("r2", a_line(0)), ("r1", a_line(9))], 4, ACTOR)
        found = await kept(store)
        assert [output.position for output in found] == [6, 7, 8, 9]
        assert [line_of(output).text for output in found] == [f"line {number} \0 'ü' 🐍" for number in range(6, 10)]
        assert [line_of(output).number for output in await kept(store, "r2")] == [0]
        latest = await store.outputs("r1", OutputKind.LOG, "", -1, 2, before=10)
        assert [output.position for output in latest] == [8, 9]

    async def test_a_repetition_adds_nothing(self, store: Store, harness: Harness) -> None:
        await held(store)
        lines = [("r1", a_line(number)) for number in range(3)]
        await store.keep_log(lines, 3, ACTOR)
        before = await snapshot(harness)
        await store.keep_log(lines, 3, ACTOR)
        assert await snapshot(harness) == before

    async def test_lines_of_a_run_that_does_not_exist_are_dropped(self, store: Store) -> None:
        await held(store, "r1")
        await store.keep_log([("missing", a_line(0)), ("r1", a_line(0))], 5, ACTOR)
        await store.keep_log([("missing", a_line(0))], 5, ACTOR)
        assert (len(await kept(store)), await kept(store, "missing")) == (1, [])
