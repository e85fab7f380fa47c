"""The end of a simulation: what the database holds, against what was promised and what the ledger knows."""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.model.cloud_event import EVENT_TYPE
from perdure.core.model.outputs import SeenOutputs
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import NewRun, Run, RunFilter, Status
from perdure.replay.checkpoints import is_part_over
from perdure.replay.execution import Execution
from perdure.replay.operations import RunOrigin
from perdure.store.sql.packing import PACKED, unpack
from perdure.workflow.channels import question_name
from perdure.workflow.definition import Workflow
from perdure.workflow.scopes import read_checkpoint
from tests.invariants import Known, scan
from tests.simulation.endings import Endings
from tests.simulation.guards import Guards
from tests.simulation.interpreter import Interpreter, is_act
from tests.simulation.ledger import Ledger
from tests.simulation.mail import Mail
from tests.simulation.programs import DEEDS, DEMAND, GUARDED_DEEDS
from tests.simulation.steps import Steps

#: Errors with which the store itself ends a run, whatever its code was doing.
_ENDED_FROM_OUTSIDE = ("RunCancelled", "Expired")

#: Beginning of the types of events and deliveries.
_INTERNAL = "perdure."

_TOKENS = """
SELECT run_id, kind, data
FROM perdure_events
WHERE kind IN ('started', 'claimed', 'released', 'reclaimed')
ORDER BY run_id, id
"""
_ENDS = "SELECT parent_id, COALESCE(output, error) FROM temp.ends WHERE finished_at > 0 AND parent_id IS NOT NULL"
_ALL_ENDS = "SELECT COALESCE(output, error) FROM temp.ends WHERE finished_at > 0"
_ITEMS = "SELECT position, payload FROM perdure_outputs WHERE kind = 'stream'"
_OBSERVED = re.compile(r"run\.(state|stream)(#\d+)?$")
_REQUEUED = "SELECT run_id FROM perdure_outputs WHERE kind = 'requeue' AND output_key LIKE 'requeue:%'"
_OVERWRITTEN = "SELECT what FROM temp.overwritten"


class Audit:
    """Everything that is wrong with a database."""

    def __init__(
        self,
        query: Any,
        runs: Iterable[Run],
        histories: dict[str, list[Record]],
        ledger: Ledger,
        guards: Guards | None = None,
    ) -> None:
        self._query = query
        self._runs = {run.id: run for run in runs}
        self._histories = histories
        self._ledger = ledger
        self._guards = guards
        #: Runs that were deleted for good, which only a run that is over may be.
        self._pruned = {run_id for (run_id,) in query("SELECT id FROM temp.pruned")}
        self._endings = Endings(query, self._runs, self._everything(), ledger)
        self._requeued = {run_id for (run_id,) in query(_REQUEUED)}

    def findings(self) -> list[str]:
        """As sentences; none is what is wanted."""
        self._count()
        return [
            *self._scan(),
            *self._overwritten(),
            *self._unasked(),
            *self._lost_results(),
            *self._deeds(),
            *self._children(),
            *self._performances(),
            *self._completions(),
            *self._clients(),
            *self._cancellations(),
            *self._tokens(),
            *self._mail(),
            *self._emitted(),
            *self._refused(),
            *self._builds(),
            *self._ledger.outbox.findings(self._query),
            *self._endings.findings(),
            *self._replays(),
        ]

    def _count(self) -> None:
        sometimes = self._ledger.sometimes
        [(packed,)] = self._query("SELECT COUNT(*) FROM perdure_history WHERE kind = 'packed'")
        sometimes["a history was packed"] += packed
        for run in self._runs.values():
            sometimes["a run was tried again as a whole"] += run.attempt > 1
            sometimes["a run ended that had begun anew"] += run.generation > 1
            sometimes["a run expired"] += _error_of(run) == "Expired"
            if run.id in self._ledger.to_be_cancelled:
                sometimes["a cancellation came in time"] += run.status is Status.CANCELLED
                sometimes["a run completed although it was to be cancelled"] += run.status is Status.COMPLETED
            records = self._histories[run.id]
            sometimes["a step timed out"] += any("StepTimeout" in (r.payload or "") for r in records if r.failed)
            sometimes["a child's outcome reached its parent"] += any(r.kind is RecordKind.CHILD for r in records)
            sometimes["a part of a history was let go"] += any(r.kind is RecordKind.SCOPE for r in records)
            sometimes["a version was pinned"] += any(r.kind is RecordKind.VERSION for r in records)

    def _scan(self) -> list[str]:
        effects = tuple((effect.run_id, effect.location) for effect in self._ledger.effects)
        known = Known(
            starts=frozenset(self._ledger.started - self._pruned),
            sends=frozenset(sent for sent in self._ledger.received if sent[0] not in self._pruned),
            effects=effects,
            repeats=len(effects),
            settled=frozenset(),
            counted=Counter(run.status.value for run in self._runs.values()),
        )
        return scan(self._query, known)

    def _overwritten(self) -> Iterator[str]:
        for (what,) in self._query(_OVERWRITTEN):
            yield f"{what} was changed after it was final"

    def _unasked(self) -> Iterator[str]:
        for run in self._runs.values():
            # A run that another one has started has the id of that one before the slash.
            starter, slash, _ = run.id.partition("/")
            if slash and starter.partition("~")[0] in self._runs:
                continue
            if run.type.startswith(_INTERNAL):
                continue
            if run.parent_id is None and (run.idempotency_key or run.id) not in self._ledger.asked:
                yield f"run {run.id} was not asked for"
        for run_id, key, kind, name in self._query("SELECT run_id, message_key, kind, name FROM perdure_messages"):
            own = name.endswith("~ask") or key.startswith((f"{run_id}:", " kept:", " again:"))
            sent = (run_id, key) in self._ledger.sent or key in self._ledger.broadcasts
            if kind == "message" and not own and not sent:
                yield f"message {key} to run {run_id} was not sent by a client"

    def _lost_results(self) -> Iterator[str]:
        """What a step was told must be in the history, or in a state that a loop left there; else the step was begun
        too early."""
        recorded: dict[str, set[str]] = defaultdict(set)
        for run_id, _, result in self._query("SELECT run_id, location, result FROM deeds"):
            recorded[run_id].add(result)
        states: dict[str, str] = defaultdict(str)
        for run_id, history in self._everything():
            for record in history:
                if (
                    record.kind in (RecordKind.STEP, RecordKind.MESSAGE, RecordKind.CHILD)
                    and record.payload
                    and not record.failed
                ):
                    recorded[run_id].add(str(msgspec.json.decode(record.payload)))
                elif record.kind is RecordKind.SCOPE:
                    states[run_id] += record.payload or ""
        for effect in self._ledger.effects:
            if effect.ephemeral:
                continue
            told = effect.asked_by or effect.run_id
            for seen in effect.seen:
                if not seen.startswith(("result", "message", "event")) or seen in recorded[told]:
                    continue
                if f'"{seen}"' not in states[told]:
                    where = f"{effect.location} of run {effect.run_id}"
                    yield f"{where} was executed with {seen!r}, which is not in the history"

    def _everything(self) -> Iterator[tuple[str, Iterable[Record]]]:
        """All records that there are, and those that were there and have been let go since."""
        yield from self._histories.items()
        for run_id, kind, location, payload, failed, seq, count, attempt in self._query("SELECT * FROM temp.gone"):
            if kind == PACKED:
                yield run_id, unpack(seq, payload, count, attempt)
                continue
            yield (
                run_id,
                (Record(seq=0, kind=RecordKind(kind), location=location, payload=payload, failed=failed, at=0),),
            )

    def _deeds(self) -> Iterator[str]:
        """What transactions have written is what they have recorded, once."""
        rows = [tuple(row) for row in self._query("SELECT run_id, location, result FROM deeds")]
        recorded = {
            (run_id, record.location, msgspec.json.decode(record.payload, type=str))
            for run_id, history in self._everything()
            for record in history
            if record.kind is RecordKind.STEP
            and record.payload
            and not record.failed
            and _name(record) in (*DEEDS, *GUARDED_DEEDS)
        }
        yield from (f"{row} was written twice" for row, times in Counter(rows).items() if times > 1)
        yield from (
            f"{row} was written and is not recorded" for row in set(rows) - recorded if not self._is_let_go(row)
        )
        yield from (f"{row} is recorded and was not written" for row in recorded - set(rows))

    def _is_let_go(self, row: tuple[Any, ...]) -> bool:
        """Whether it was done in a part of the workflow that is over, and so may have no record any more."""
        marks = {
            one.location: read_checkpoint(one)
            for one in self._histories.get(row[0], ())
            if one.kind is RecordKind.SCOPE
        }
        *scopes, _ = row[1].split("/")
        found = ((scopes[depth], marks.get("/".join(scopes[:depth]))) for depth in range(1, len(scopes)))
        return any(mark is not None and is_part_over(part, mark) for part, mark in found)

    def _children(self) -> Iterator[str]:
        # Each time that one ended: it may have been requeued since, or pruned.
        ended: dict[str, set[str | None]] = defaultdict(set)
        for parent_id, payload in self._query(_ENDS):
            ended[parent_id].add(payload)
        others = {payload for (payload,) in self._query(_ALL_ENDS)}
        items = set(self._query(_ITEMS))
        for parent_id, history in self._histories.items():
            for record in history:
                place = record.location.rpartition("/")[2].partition("#")[0]
                if record.kind is RecordKind.CHILD and place in ("run.result", "event"):
                    if record.payload not in others:
                        yield f"{record.location} of run {parent_id} has an outcome that no run had: {record.payload}"
                    continue
                if record.kind is RecordKind.CHILD and _OBSERVED.search(record.location):
                    if "run.stream" in record.location and not (record.failed or _seen(record) <= items):
                        yield f"{record.location} of run {parent_id} has items that no run had: {record.payload}"
                    continue
                # One that is requeued lets go of children that have not ended yet, and notes them as failed.
                let_go = record.failed and parent_id in self._requeued
                if record.kind is RecordKind.CHILD and not let_go and record.payload not in ended[parent_id]:
                    yield f"{record.location} of run {parent_id} has an outcome that no child had: {record.payload}"

    def _performances(self) -> Iterator[str]:
        """The result of an activity is that of an execution of its own."""
        for run in self._runs.values():
            if is_act(run.type) and run.status is Status.COMPLETED:
                result = msgspec.json.decode(run.output or "", type=str)
                effect = self._ledger.effects[int(result.rpartition(" ")[2]) - 1]
                if (effect.run_id, effect.attempt) != (run.id, run.attempt):
                    yield f"attempt {run.attempt} of run {run.id} has the {result}, which is one of {effect}"

    def _completions(self) -> Iterator[str]:
        """A completion from outside that was acknowledged is the end of its run."""
        for run_id, result in self._ledger.completed.items():
            run = self._runs.get(run_id)
            if run is not None and (run.status, run.output) != (Status.COMPLETED, msgspec.json.encode(result).decode()):
                yield f"run {run_id} was completed from outside with {result!r} and is {run.status}: {run.output}"

    def _clients(self) -> Iterator[str]:
        for run_id, result in self._ledger.results.items():
            run = self._runs.get(run_id)
            if run is not None and run.status is Status.COMPLETED:
                stored = " ".join(msgspec.json.decode(run.output or "[]", type=list[str] | str))
                if stored != result:
                    yield f"a client was given {result!r} as the result of run {run_id}, which is {stored!r}"

    def _cancellations(self) -> Iterator[str]:
        """No program of a simulation completes after it was told to stop, unless it takes that back."""
        for run in self._runs.values():
            if run.status is not Status.COMPLETED or run.id in self._requeued:
                continue
            told = [
                r.seq for r in self._histories[run.id] if r.kind is RecordKind.CANCEL and r.run_attempt == run.attempt
            ]
            program = run.input.replace("\\", "")
            # One that waits for its children has its outcome already, and stops only those.
            if told and '"wait"' not in program and '"back":true' not in program:
                yield f"run {run.id} was told to stop by record {told[0]}, and completed"

    def _mail(self) -> Iterator[str]:
        for run in self._runs.values():
            # What lies unread in the inbox of one that is requeued is part of what failed.
            if run.generation > 1 and run.id not in self._requeued and not run.type.startswith(_INTERNAL):
                yield from Mail(self._query, run, self._histories[run.id], self._ledger.inputs[run.id]).findings()

    def _emitted(self) -> Iterator[str]:
        # A run that has the id of one that was pruned has nothing of what that one emitted.
        runs = {run_id: run for run_id, run in self._runs.items() if run_id not in self._pruned}
        records = [(run_id, history) for run_id, history in self._everything() if run_id in runs]
        spared = self._requeued | {run.id for run in runs.values() if run.generation > 1}
        yield from self._ledger.emitted.findings(self._query, runs, records, spared)

    def _refused(self) -> Iterator[str]:
        """A question that was refused is not recorded."""
        asked = {
            (run_id, msgspec.json.decode(record.payload or "null", type=dict[str, str])["value"])
            for run_id, history in self._everything()
            for record in history
            if record.kind is RecordKind.MESSAGE and record.location == question_name(DEMAND)
        }
        for run_id, name in sorted(self._ledger.refused & asked):
            yield f"question {name} to run {run_id} was refused, and is recorded"

    def _builds(self) -> Iterator[str]:
        """The children of a pinned run are pinned to the same build."""
        builds, unpinned = self._ledger.builds, self._ledger.unpinned
        for run in self._runs.values():
            root = run.id.partition("/")[0]
            if run.parent_id in builds and run.id in builds and root not in unpinned:
                self._ledger.sometimes["a child was executed by its parent's build"] += 1
                if builds[run.id] != builds[run.parent_id]:
                    yield f"run {run.id} was executed by build {builds[run.id]}, and its parent by another"

    def _tokens(self) -> Iterator[str]:
        """Every claim and every release of a run raises its token."""
        last: dict[str, int] = defaultdict(int)
        for run_id, kind, data in self._query(_TOKENS):
            token = msgspec.json.decode(data, type=dict[str, int])["token"]
            if token <= last[run_id]:
                yield f"run {run_id} was {kind} with the token {token} after it had had {last[run_id]}"
            last[run_id] = token

    # replaying every run from its history, with nothing to execute

    def _replays(self) -> Iterator[str]:
        for run in self._runs.values():
            if run.status.finished and run.started_at and not is_act(run.type) and not run.type.startswith(_INTERNAL):
                yield from self._replay(run, self._histories[run.id])

    def _replay(self, run: Run, history: list[Record]) -> Iterator[str]:
        failure = None if run.error is None or run.status is Status.COMPLETED else Failure.from_json(run.error)
        returned = failure is not None and failure.partial is not None
        if (_error_of(run) in _ENDED_FROM_OUTSIDE and not returned) or run.id in self._endings.ended:
            return
        steps = Steps("audit", Random(0), self._ledger, self._guards)
        execution = _execution(run, history, Interpreter(steps, self._ledger.sometimes))
        try:
            execution.begin()
            execution.replay(lambda: True)
        except Exception as error:
            yield f"run {run.id} does not replay: {error}"
            return
        outcome = execution.outcome
        execution.evict()
        for effect in execution.effects:
            if isinstance(effect, NewRun) and effect.type == EVENT_TYPE and effect.id not in self._runs:
                yield f"run {run.id} published the event {effect.id}, which is not there"
        if outcome is None:
            yield f"run {run.id} has ended, and its history does not lead to an end"
        elif outcome.status is not run.status:
            yield f"run {run.id} is {run.status}, and its history leads to {outcome.status}"
        elif failure is None and outcome.payload != run.output:
            yield f"run {run.id} has the result {run.output}, and its history leads to {outcome.payload}"
        elif failure is not None and outcome.partial != failure.partial:
            yield f"run {run.id} has the partial result {failure.partial}, and its history leads to {outcome.partial}"
        elif failure is not None and _essence(outcome.payload) != (failure.type, failure.message):
            yield f"run {run.id} failed with {failure.type}, and its history leads to {_essence(outcome.payload)}"


def _execution(run: Run, history: list[Record], interpreter: Interpreter) -> Execution:
    workflow: Workflow[Any, Any] = {one.type: one for one in interpreter.workflows}[run.type]
    codec = Codec()
    arguments = workflow.signature.decode(run.input, codec, run.id)
    origin = RunOrigin(
        run_id=run.id,
        type=run.type,
        started_at=run.started_at,
        seed=run.seed,
        generation=run.generation,
        attempt=run.attempt,
    )
    return Execution(
        lambda context: workflow.signature.call(context, arguments),
        workflow.signature.returns,
        origin,
        history,
        codec=codec,
        errors=ErrorTypes((), ()),
        logger=logging.getLogger("perdure.workflow"),
    )


def _error_of(run: Run) -> str:
    if run.error is None or run.status is Status.COMPLETED:
        return ""
    return Failure.from_json(run.error).type.rpartition(".")[2]


def _essence(payload: str | None) -> tuple[str, str]:
    failure = Failure.from_json(payload or "{}")
    return failure.type, failure.message


async def read_all(store: Any) -> tuple[list[Run], dict[str, list[Record]]]:
    """Every run and its history."""
    runs: list[Run] = []
    cursor: str | None = None
    while True:
        page = await store.list(RunFilter(deleted=None), 500, cursor)
        runs += page.runs
        cursor = page.cursor
        if cursor is None:
            return runs, {run.id: await store.history(run.id) for run in runs}


def _name(record: Record) -> str:
    return record.location.rpartition("/")[2].partition("#")[0]


def _seen(record: Record) -> set[tuple[Any, ...]]:
    found = msgspec.json.decode(record.payload or "", type=SeenOutputs)
    return {(one.position, one.payload) for one in found.outputs}
