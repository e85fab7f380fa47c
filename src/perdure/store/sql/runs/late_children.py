"""Outcomes of children that came too late for their parent, which is about to be reopened.

They become records of the failed attempt, so that the next attempt finds them as results, or calls these children anew.
Children of a generation before the last `continue_as_new` are left out, because another child may be at the same
location now. So is a further failure of a child that the history has as failed: the next attempt calls another run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perdure.core.ids import WATCH_KEY, child_id, child_place, children_base
from perdure.core.model.dead_letter import RequeueRecord
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import ABANDONED, Run, Status, root_generation
from perdure.core.time.duration import NEVER
from perdure.errors import RunCancelled
from perdure.store.sql.dialect import Transaction, placeholders
from perdure.store.sql.rows import failure
from perdure.store.sql.runs.create import CHUNK

#: Start of the key of the output that a run has of each time that it was reopened.
REOPENED = "requeue:"

#: Children whose end the parent was never told of, because it had ended before. With the last cancellation of each, and
#: the output of the last time that it was reopened.
_UNTOLD = f"""
SELECT c.id, c.generation, c.parent_location, c.status, c.output, c.error, c.write_id,
  (SELECT MAX(m.seq) FROM perdure_messages m WHERE m.run_id = c.id AND m.kind = 'cancel'),
  (SELECT o.payload FROM perdure_outputs o
   WHERE o.run_id = c.id AND o.kind = 'requeue' AND o.output_key LIKE '{REOPENED}%'
   ORDER BY o.position DESC LIMIT 1)
FROM perdure_runs c
WHERE c.parent_id = :run_id AND c.parent_location IS NOT NULL AND (c.finished_at = 0 OR c.finished_at >= :since)
ORDER BY c.id
"""

_TOLD = """
SELECT message_key
FROM perdure_messages
WHERE run_id = :run_id AND kind = 'child'
"""

_LET_GO = """
UPDATE perdure_runs
SET parent_location = NULL
WHERE id = :run_id AND finished_at = 0
"""

_FAILURES = """
SELECT location, COUNT(*)
FROM perdure_history
WHERE run_id = :run_id AND kind = 'child' AND failed = 1
GROUP BY location
"""

_CHILDREN = """
SELECT id, generation, write_id
FROM perdure_runs
WHERE id IN ({chosen}) AND parent_id = :run_id
"""

#: Key of a child's outcome: its id, its generation, and the parent's attempt if it was delivered once more.
_OUTCOME = re.compile(r"child:(.+):(\d+)(?::\d+\.\d+)?")


class _Outcome(Struct, frozen=True):
    """A child's outcome that the parent has not seen. A child that is being stopped counts as failed."""

    child_id: str
    location: str
    failed: bool
    #: How the child was created; empty if that is unknown.
    write_id: str


class _Calls(Struct, frozen=True):
    """The calls of children in the history of a run."""

    run: Run
    life: int
    #: By location, the number of children that have failed.
    failures: dict[str, int]

    @classmethod
    async def of(cls, tx: Transaction, run: Run) -> _Calls:
        """Read them."""
        failures: dict[str, int] = dict(await tx.fetch(_FAILURES, {"run_id": run.id}))
        return cls(run, root_generation(run.seed, run.generation), failures)

    def id_of(self, location: str, failures: int) -> str:
        """Id of the child that is called at a location after so many failures."""
        return child_id(children_base(self.run.id, self.life), child_place(location, failures))

    def current(self, location: str) -> str:
        """Id of the child that the next attempt calls at a location, if the call does not give one."""
        return self.id_of(location, self.failures.get(location, 0))

    async def chosen(self, tx: Transaction, outcomes: Sequence[_Outcome]) -> list[bool]:
        """Tell which of these outcomes belong to the calls of the next attempt."""
        # A failed child that was retried by itself, and has succeeded, counts unless another was called since.
        mended = {one.child_id: self.current(one.location) for one in outcomes if not one.failed and self._failed(one)}
        called = await _children(tx, self.run.id, list(mended.values()))
        return [
            mended[one.child_id] not in called
            if one.child_id in mended
            else not self._failed(one) and self._is_of_this_life(one)
            for one in outcomes
        ]

    def _failed(self, one: _Outcome) -> bool:
        failures = self.failures.get(one.location, 0)
        return any(one.child_id == self.id_of(one.location, number) for number in range(failures))

    def _is_of_this_life(self, one: _Outcome) -> bool:
        """Tell whether a call of this life has started a child. `children.adopt` tells the parent of any other."""
        if self.life == 1 or one.child_id == self.current(one.location):
            return True
        # As `TurnDraft.start_child` makes it. A digest of a long one begins differently.
        before, separator, rest = one.write_id.removeprefix(ABANDONED).partition(f"{self.run.id}:")
        generation = rest.partition(":")[0]
        return bool(not before and separator and generation.isdecimal()) and int(generation) >= self.life


async def heard(tx: Transaction, run: Run, unread: Iterable[Message]) -> list[Message]:
    """Leave out unread outcomes that no call of the next attempt waits for.

    It asks anew for the ends and outputs of runs that are not its children. What became of a child that was reopened is
    for `untold`, or for a later outcome, to say.
    """
    messages = [one for one in unread if one.kind is not RecordKind.CHILD or not one.key.startswith(WATCH_KEY)]
    ended = {
        one.seq: (one, match[1], int(match[2]))
        for one in messages
        if one.kind is RecordKind.CHILD and (match := _OUTCOME.fullmatch(one.key)) is not None
    }
    if not ended:
        return messages
    children = await _children(tx, run.id, [child for _, child, _ in ended.values()])
    unknown = (0, "")
    outcomes = [_Outcome(id, one.name, one.failed, children.get(id, unknown)[1]) for one, id, _ in ended.values()]
    chosen = await (await _Calls.of(tx, run)).chosen(tx, outcomes)
    left_out = {
        seq
        for (seq, (_, id, generation)), is_chosen in zip(ended.items(), chosen, strict=True)
        if not is_chosen or children.get(id, unknown)[0] > generation
    }
    return [one for one in messages if one.seq not in left_out]


async def untold(tx: Transaction, run: Run, at: int) -> list[Record]:
    """Outcomes of children that ended after their parent, and of those that are being stopped, which are let go."""
    since = run.finished_at or NEVER
    children = await tx.fetch(_UNTOLD, {"run_id": run.id, "since": since})
    if not children:
        return []
    told = {key for (key,) in await tx.fetch(_TOLD, {"run_id": run.id})}
    missing = [
        row for row in children
        if f"child:{row[0]}:{row[1]}" not in told and (Status(row[3]).finished or _is_being_stopped(*row[7:]))
    ]  # fmt: skip
    outcomes = [_Outcome(row[0], row[2], row[3] != Status.COMPLETED, row[6]) for row in missing]
    chosen = await (await _Calls.of(tx, run)).chosen(tx, outcomes) if outcomes else []
    records: list[Record] = []
    for (child, _, location, status, output, error, *_), is_chosen in zip(missing, chosen, strict=True):
        if not is_chosen:
            continue
        completed = status == Status.COMPLETED
        reason = error or failure(RunCancelled, f"run {child!r} was told to stop when its parent {run.id!r} ended")
        records.append(
            Record(
                seq=0,  # equivalent: constant: the caller numbers them
                kind=RecordKind.CHILD, location=location, payload=output if completed else reason,
                failed=not completed, at=at, run_attempt=run.attempt,
            )
        )  # fmt: skip
        if not Status(status).finished:
            await tx.execute(_LET_GO, {"run_id": child})
    return records


def _is_being_stopped(last_stop: int | None, reopened: str | None) -> bool:
    """Tell whether a child was cancelled since it was last reopened."""
    return last_stop is not None and (reopened is None or last_stop > RequeueRecord.from_json(reopened).inbox)


async def _children(tx: Transaction, parent: str, ids: Sequence[str]) -> dict[str, tuple[int, str]]:
    """By id, generation and creation of those of these runs that are children of a run."""
    found: dict[str, tuple[int, str]] = {}
    for start in range(0, len(ids), CHUNK):
        chosen, params = placeholders("id", ids[start : start + CHUNK])
        for id, generation, write_id in await tx.fetch(
            _CHILDREN.replace("{chosen}", chosen), {**params, "run_id": parent}
        ):
            found[id] = (generation, write_id)
    return found
