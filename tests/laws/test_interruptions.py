"""The law of durability: a program that is interrupted anywhere does what it does when it is not.

Random programs over all that a workflow can say, each performed twice by real workers on a real database: in peace, and
by workers that lose it at random moments, with whatever they had in memory. Both have the same outcome and have let the
world see the same.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure import Engine, RunFinished, UsageError
from perdure.host import Host
from perdure.store import SqlStore, open_store
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.laws import programs
from tests.laws.programs import (
    LEAVES,
    NESTS,
    SINK,
    Author,
    Node,
    Seen,
    everything,
    letters,
    lingering,
    observe,
    program,
    questions,
)
from tests.laws.thief import Thief
from tests.replay.generation import Tape, tapes
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

PROVE = bool(os.environ.get("PERDURE_PROVE"))
#: Programs that are performed at a time, and how often that is done.
AT_ONCE = 8
ROUNDS = {"sqlite": 400 if PROVE else 8, "postgres": 100 if PROVE else 2, "mysql": 100 if PROVE else 2}


#: Of a run and its descendants.
_UNFINISHED = (
    "SELECT {} FROM perdure_runs WHERE (id = ? OR id LIKE ? OR id LIKE ?) "
    "AND status NOT IN ('completed', 'failed', 'cancelled')"
)
#: Those of them whose code was broken; it is corrected by now.
_BROKEN = (
    "SELECT id FROM perdure_runs WHERE (id = ? OR id LIKE ? OR id LIKE ?) AND status = 'blocked' AND reason = 'broken'"
)
#: For debugging a case that does not end.
_STANDING = "id, status, reason, wake_at, worker, token, inbox_seq, inbox_read, marked, claims"
_HISTORY = "SELECT seq, token, kind, location, inbox_seq FROM perdure_history WHERE run_id = ? ORDER BY seq"


@asynccontextmanager
async def _engine(url: str, seed: int) -> AsyncIterator[tuple[Engine, SqlStore, Thief]]:
    system = Host()
    store = open_store(url, system)
    thief = Thief(store, system, Random(seed), prey="stormy")
    engine = Engine(url, [program, lingering], system=system, store=thief)
    try:
        yield engine, store, thief
    finally:
        await engine.close()


async def _perform(engine: Engine, store: SqlStore, run_id: str, node: Node) -> Seen:
    run = await engine.start(program(node, []), id=run_id)
    for number, (name, value) in enumerate(letters(node)):
        # A run that nothing waits for may have ended by now.
        with suppress(RunFinished):
            await run.send(name, value, key=f"{number}")
    asking = [asyncio.create_task(run.ask(f"q{one}", one, timeout="60s")) for one in questions(node)]

    async def all_ended() -> bool:
        for (blocked,) in await store.query(_BROKEN, (run_id, f"{run_id}/%", f"{run_id}~%")):
            # It may go on by now.
            with suppress(UsageError, RunFinished):
                await engine.runs.retry(blocked)
        return not await store.query(_UNFINISHED.format("id"), (run_id, f"{run_id}/%", f"{run_id}~%"))

    try:
        await eventually(all_ended, within=60, saying=f"the end of {run_id}, which performs {node}")
    except AssertionError as error:
        for row in await store.query(_UNFINISHED.format(_STANDING), (run_id, f"{run_id}/%", f"{run_id}~%")):
            error.add_note(f"unfinished at {await store.now()}: {row}, after {await store.query(_HISTORY, (row[0],))}")
        raise
    answers = [str(one) if not isinstance(one, BaseException) else "none" for one in await _all(asking)]
    return await observe(engine, run, answers)


async def _all(asking: Sequence[asyncio.Task[object]]) -> list[object]:
    return list(await asyncio.gather(*asking, return_exceptions=True))


async def _compare(url: str, turn: int, seed: int, written: Sequence[Node]) -> Counter[str]:
    """Perform programs in peace and under thieves; how many thefts there were."""
    async with _engine(url, seed) as (engine, store, thief):
        await engine.start(program(Node("seq", 0, 0), []), id=SINK, queue="unserved")
        async with engine.worker(), engine.worker():
            performances = [
                _perform(engine, store, f"{weather}-{turn}-{number}", node)
                for number, node in enumerate(written)
                for weather in ("calm", "stormy")
            ]
            seen = await asyncio.gather(*performances)
        for number, node in enumerate(written):
            calm, stormy = seen[2 * number : 2 * number + 2]
            assert _renamed(stormy) == _renamed(calm), f"{node}"
            refused = [f'm{one.id} "no number"' for one in node.body if one.op == "garbled"]
            assert {*refused} <= {*stormy.aside}, f"{node}"
        assert await scan_store(store.query) == []
        return thief.stolen


def _renamed(seen: Seen) -> str:
    return str(seen).replace("stormy-", "calm-")


def _law(url: str, kind: str) -> Counter[str]:
    stolen: Counter[str] = Counter()
    # Of them all, since a search may use a seed again.
    rounds = itertools.count()

    # Shrinking would perform programs for minutes; the seed of a failure is enough to see it again.
    @settings(
        max_examples=ROUNDS[kind], phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(st.lists(tapes(60), min_size=AT_ONCE, max_size=AT_ONCE), st.integers(1, 2**30))
    def holds(written: list[list[int]], seed: int) -> None:
        nodes = [Author(Tape(numbers)).program() for numbers in written]
        stolen.update(asyncio.run(_compare(url, next(rounds), seed, nodes)))

    programs.ended.clear()
    programs.executed.clear()
    programs.corrected.clear()
    stolen.update(asyncio.run(_compare(url, next(rounds), 0, everything())))
    holds()
    assert set(programs.ended) == {*LEAVES, *NESTS}
    assert {run_id.partition("-")[0] for run_id, _ in programs.corrected} == {"calm", "stormy"}
    print(
        f"\n{kind}, {next(rounds)} rounds: {stolen.total()} times a run was taken away from its worker; "
        f"of each primitive ended: {dict(programs.ended)}"
    )
    return stolen


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_program_that_is_interrupted_on_a_server_does_what_it_does_in_peace(
    kind: str, schemas: Schemas, databases: Databases
) -> None:
    places = schemas if kind == "postgres" else databases
    with asyncio.Runner() as runner:
        place = places.one()
        url = runner.run(place.__aenter__())
        assert _law(url, kind).total() > 0
        runner.run(place.__aexit__(None, None, None))


@pytest.mark.timeout(3600)
def test_a_program_that_is_interrupted_anywhere_does_what_it_does_in_peace() -> None:
    assert _law("sqlite://", "sqlite").total() > ROUNDS["sqlite"]
