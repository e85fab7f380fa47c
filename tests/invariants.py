"""What must be true of a database at every moment, whatever crashed, stalled or lost its answer.

`scan` asks for rows that break a promise (`perdure.store.sql.invariants`) and describes each. It reads only committed
data, so it may run beside live workers. What a test knows from outside is compared, too: nothing acknowledged and lost,
begun too early, or left lying once the faults are over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from perdure.core.model.record import RecordKind
from perdure.store.sql.invariants import FINISHED, INVARIANTS, TRAIL, TRIMMED, Invariant
from perdure.store.sql.packing import PACKED, unpack

Query = Callable[[str], Iterable[tuple[Any, ...]]]
AsyncQuery = Callable[[str], Awaitable[Iterable[tuple[Any, ...]]]]


class Known(Struct, frozen=True, kw_only=True):
    """What a test knows from outside the database."""

    #: Ids of runs whose start was acknowledged.
    starts: frozenset[str] = frozenset()
    #: Run id and key of messages whose send was acknowledged.
    sends: frozenset[tuple[str, str]] = frozenset()
    #: Run id and location of a step, once for every time that its function was executed; None: not observed.
    effects: tuple[tuple[str, str], ...] | None = None
    #: How many executions beyond the first the faults of the test can explain.
    repeats: int = 0
    #: By run id and location, a result that some worker has seen.
    results: Mapping[tuple[str, str], str | None] = {}
    #: By run id, the time before which a run whose start was acknowledged was not to begin.
    planned: Mapping[str, int] = {}
    #: Runs that may be unfinished although faults are over and time enough has passed; None: work is going on.
    settled: frozenset[str] | None = None
    #: Numbers of runs by status that a client was told; None: no client was.
    counted: Mapping[str, int] | None = None
    #: Whether all who wrote to the database kept an audit trail, and none of it was pruned.
    audited: bool = True


#: Which promises are broken, all in one question: mostly none is, and asking takes longer than the answer.
_BROKEN = "SELECT " + ", ".join(f"EXISTS ({rule.broken_by}) AS rule_{place}" for place, rule in enumerate(INVARIANTS))
_RUNS = "SELECT id, status, started_at FROM perdure_runs"
_STEPS = f"""
SELECT run_id, location, payload, failed, kind, seq, attempts, run_attempt FROM perdure_history
WHERE kind IN ('step', '{PACKED}')
"""
_MESSAGES = "SELECT run_id, message_key FROM perdure_messages"
_TRIMMERS = f"SELECT r.id FROM perdure_runs r WHERE {TRIMMED}"


def scan(query: Query, known: Known | None = None, *, prefix: str = "perdure_") -> list[str]:
    """Every broken promise, as a sentence; an empty list is what a test wants.

    `query` runs a SELECT and yields its rows.
    """

    def ask(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in query(sql.replace("perdure_", prefix))]

    broken: list[str] = []
    for rule in _broken(ask(_BROKEN)):
        if rule is not TRAIL or known is None or known.audited:
            rows = ask(rule.broken_by)
            broken += [f"Run {row[0]!r}: not true that {rule.promise}; the database has {row[1:]}" for row in rows]
            if not rows:
                broken.append(f"For a moment it was not true that {rule.promise}")
    if known is not None:
        broken += _compare(ask, known)
    return broken


def _broken(answer: Iterable[tuple[Any, ...]]) -> list[Invariant]:
    [row] = answer
    return [rule for rule, is_broken in zip(INVARIANTS, row, strict=True) if is_broken]


async def scan_store(query: AsyncQuery, known: Known | None = None) -> list[str]:
    """The same, through the `query` of an open store, which knows its own prefix."""
    answers = {_BROKEN: await query(_BROKEN)}
    statements = [rule.broken_by for rule in _broken(answers[_BROKEN])]
    if known is not None:
        statements += [_RUNS, _STEPS, _MESSAGES, _TRIMMERS]
    for sql in statements:
        answers[sql] = await query(sql)
    return scan(answers.__getitem__, known)


def _compare(ask: Query, known: Known) -> Iterator[str]:
    yield from _compare_runs({run_id: (status, begun) for run_id, status, begun in ask(_RUNS)}, known)
    messages = {(row[0], row[1]) for row in ask(_MESSAGES)}
    trimmed = {row[0] for row in ask(_TRIMMERS)}
    for run_id, key in sorted(known.sends - messages):
        if run_id not in trimmed:
            yield f"Run {run_id!r}: message {key!r} was acknowledged, and it is not there (I5)"
    steps = list(_steps(ask(_STEPS)))
    yield from _repeated(steps)
    stored = {(run_id, location): payload for run_id, location, payload, *_ in steps}
    for (run_id, location), payload in known.results.items():
        if stored.get((run_id, location)) != payload and ((run_id, location) in stored or run_id not in trimmed):
            found = stored.get((run_id, location))
            yield f"Run {run_id!r}: the result at {location!r} was {payload!r} and is {found!r} (I2)"
    if known.effects is not None:
        yield from _compare_effects(steps, known)


def _steps(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, str, str | None, bool, int]]:
    """Run, location, result, failure and attempt at the run of every recorded step, packed or not."""
    for run_id, location, payload, failed, kind, seq, count, run_attempt in rows:
        if kind != PACKED:
            yield run_id, location, payload, bool(failed), run_attempt
            continue
        for record in unpack(seq, payload, count, run_attempt):
            if record.kind is RecordKind.STEP:
                yield run_id, record.location, record.payload, record.failed, run_attempt


def _repeated(steps: Iterable[tuple[str, str, str | None, bool, int]]) -> Iterator[str]:
    """The results that the rule of the database cannot see, because they are packed, are unique, too."""
    results = Counter((run_id, attempt, location) for run_id, location, _, _, attempt in steps)
    for (run_id, attempt, location), times in results.items():
        if times > 1:
            yield f"Run {run_id!r}: {location!r} has {times} results in attempt {attempt} (I1)"


def _compare_runs(runs: Mapping[str, tuple[str, int]], known: Known) -> Iterator[str]:
    for run_id in sorted((known.starts | known.planned.keys()) - runs.keys()):
        yield f"Run {run_id!r}: its start was acknowledged, and it is not there (I6)"
    for run_id, time in known.planned.items():
        begun = runs[run_id][1] if run_id in runs else 0
        if 0 < begun < time:
            yield f"Run {run_id!r}: it was begun at {begun}, although not before {time} (I12)"
    if known.settled is not None:
        for run_id in sorted(runs.keys() - known.settled):
            if runs[run_id][0] not in FINISHED:
                yield f"Run {run_id!r}: nothing holds it up, and it is {runs[run_id][0]} (I10)"
    if known.counted is not None:
        there = Counter(status for status, _ in runs.values())
        for status in sorted(there.keys() | known.counted.keys()):
            told = known.counted.get(status, 0)
            if told != there[status]:
                yield f"{told} {status} runs were counted, and there are {there[status]} (I14)"


def _compare_effects(steps: Iterable[tuple[Any, ...]], known: Known) -> Iterator[str]:
    executed = Counter(known.effects)
    for run_id, location, _, failed, *_ in steps:
        if not failed and not executed[run_id, location]:
            yield f"Run {run_id!r}: {location!r} has a result, and was never executed (I7)"
    extra = sum(executed.values()) - len(executed)
    if extra > known.repeats:
        often = [where for where, times in executed.items() if times > 1]
        yield f"{extra} executions too many, where faults explain {known.repeats}; repeated were {often} (I7)"
