"""Second chances for a run: opening it again where it failed, giving its steps their attempts anew, and going another way.

What a fork is to be like is worked out here, from the history of its source, and written by the store in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from perdure.client.deploy import aside
from perdure.client.start import Moment, StartOptions, new_run
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reopen import Fork, ReopenOutcome, kept_seed
from perdure.core.model.run import NewRun, Run, Status
from perdure.core.policy.singleton import with_stored_singleton
from perdure.core.time.duration import instant
from perdure.errors import Diverged, RunExists, RunFinished, RunNotFound, UsageError
from perdure.worker import ReplayCheck
from perdure.workflow.definition import Call, Workflow
from perdure.workflow.run_settings import RunSettings

if TYPE_CHECKING:
    from perdure.client.engine import Engine

#: What a history takes from the inbox, what has a place that a fork can begin at, and what of that has a result.
_RECEIVED = (RecordKind.MESSAGE, RecordKind.CHILD, RecordKind.CANCEL)
_PLACES = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.TIMER, RecordKind.CHILD)
_RESULTS = (RecordKind.STEP, RecordKind.CHILD)


class ForkOptions(TypedDict, total=False):
    """Options of `Handle.fork`."""

    #: Where it goes another way, such as `charge#2`; from the beginning by default.
    from_step: str | None
    #: Other arguments: a call of the same workflow, or the arguments by name.
    input: Call[Any] | Mapping[str, Any] | None
    #: Other results of what came before, by place.
    results: Mapping[str, Any] | None
    #: The new run's id; a UUIDv7 by default.
    id: str | None
    #: Fail the new run if it is not finished by then.
    deadline: Moment | None


async def retry(engine: Engine, run_id: str, deadline: Moment | None) -> int:
    """See `Handle.retry`."""
    run = await engine._run(run_id)
    store = await engine._opened()
    due = None if deadline is None else instant(deadline, store.clock())
    match await store.reopen(run_id, run.generation, due, engine._actor):
        case ReopenOutcome.OPEN:
            return run.generation + 1
        case ReopenOutcome.COMPLETED:
            raise RunFinished(
                f"run {run_id!r} completed, so there is nothing to retry; to do it again, fork it or start another"
            )
        case ReopenOutcome.EXPIRED:
            raise UsageError(
                f"the deadline of run {run_id!r} has passed; retry it with another one: retry(deadline=...)"
            )
        case ReopenOutcome.DELETED:
            raise UsageError(f"run {run_id!r} was deleted; bring it back before you retry it: undelete()")
        case ReopenOutcome.UNFINISHED:
            raise UsageError(
                f"run {run_id!r} has not failed, it is {run.status}; wait for its end, or cancel it, before you retry it"
            )
        case ReopenOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to retry")


async def recover(engine: Engine, run_id: str) -> bool:
    """See `Handle.recover`."""
    run = await engine._run(run_id)
    if run.status is Status.FAILED:
        await retry(engine, run_id, None)
        return True
    return await (await engine._opened()).recover(run_id, run.token, engine._actor)


async def fork(engine: Engine, run_id: str, **wanted: Unpack[ForkOptions]) -> str:
    """See `Handle.fork`; the id of the new run."""
    source = await engine._run(run_id)
    from_step, results = wanted.get("from_step"), wanted.get("results") or {}
    past = _past(source, await engine._history(run_id), from_step)
    past = _edited(engine, source, past, results)
    store = await engine._opened()
    options: StartOptions = {"id": wanted.get("id"), "queue": source.queue, "priority": source.priority}
    options["deadline"] = wanted.get("deadline")
    encoded = _input(engine, source, wanted.get("input"))
    call: Call[Any] = Call(source.type, (), engine.workflows.get(source.type), RunSettings.from_json(source.options))
    new = new_run(call, encoded, options, engine._system, store.clock())
    # A fork goes on beside what it was forked from.
    new = replace(new, options=with_stored_singleton(new.options, None))
    fork = _fork(source, past, from_step, new, engine._system.entropy(8).hex())
    await _try_out(engine, source, fork)
    answer = await store.fork(fork, engine._actor)
    if not answer.created:
        raise RunExists(f"there is a run {new.id!r} already; give the fork of {run_id!r} another id")
    return new.id


async def _try_out(engine: Engine, source: Run, fork: Fork) -> None:
    """Replay the past of a fork, where its code is here. Raises `UsageError` if that does not lead to its step."""
    workflow = engine.workflows.get(source.type)
    if not isinstance(workflow, Workflow) or not fork.records:
        return
    as_it_will_be = replace(
        source,
        id=fork.run.id,
        input=fork.run.input,
        attempt=1,
        generation=1,
        seed=fork.seed,
        started_at=fork.started_at,
    )
    checkup = ReplayCheck(engine._codec, engine._errors)
    try:
        await aside(lambda: checkup.replay(as_it_will_be, workflow, fork.records))
    except Diverged as error:
        raise UsageError(
            f"a fork of run {source.id!r} from {fork.step!r} with these arguments and results does not come to that step: the copied "
            f"history has {error.expected}, but {error.found}; fork it from an earlier step"
        ) from error


def _input(engine: Engine, source: Run, given: Call[Any] | Mapping[str, Any] | None) -> str:
    if given is None:
        return source.input
    call = given if isinstance(given, Call) else Call.named(source.type, **given)
    if call.type != source.type:
        raise UsageError(f"a fork of run {source.id!r} is a {source.type!r} like it, not a {call.type!r}")
    return engine._known(call).encode(engine._codec)


def _past(source: Run, history: Sequence[Record], from_step: str | None) -> list[Record]:
    """The records before a step, of the last attempt at the run that came to it. Raises `UsageError`."""
    if from_step is None:
        return []
    found = [record for record in history if record.location == from_step and record.kind in _PLACES]
    if not found:
        known = ", ".join(dict.fromkeys(record.location for record in history if record.kind in _PLACES)) or "none"
        raise UsageError(f"the history of run {source.id!r} has no step {from_step!r}; it has: {known}")
    attempt = found[-1].run_attempt
    first = next(record for record in found if record.run_attempt == attempt)
    return [record for record in history if record.run_attempt == attempt and record.seq < first.seq]


def _edited(engine: Engine, source: Run, past: Sequence[Record], results: Mapping[str, Any]) -> list[Record]:
    """The records with other results. Raises `UsageError` for one that is not there, or not of the type that is known of it."""
    there = {record.location for record in past if record.kind in _RESULTS}
    if missing := sorted(results.keys() - there):
        known = ", ".join(sorted(there)) or "none"
        raise UsageError(
            f"no result of {missing[0]!r} is copied from run {source.id!r}, so it cannot be another; copied are: {known}"
        )
    edited: list[Record] = []
    for record in past:
        if record.location in results and record.kind in _RESULTS:
            what = f"the result of {record.location!r} for the fork of run {source.id!r}"
            payload = engine._codec.encode(results[record.location], what)
            workflow = (
                engine.workflows.get(record.location.partition("#")[0]) if record.kind is RecordKind.CHILD else None
            )
            if workflow is not None:
                engine._codec.decode(payload, workflow.signature.returns, what)
            record = replace(record, payload=payload, failed=False)
        edited.append(record)
    return edited


def _fork(source: Run, past: Sequence[Record], from_step: str | None, new: NewRun, salt: str) -> Fork:
    step = from_step or ""
    if not past:
        return Fork(run=new, source=source.id, step=step, records=(), started_at=0, seed="")
    said = msgspec.json.encode({"run": source.id, "step": step, "salt": salt}).decode()
    # Before the last one, which leads to the step: what that is called with is drawn anew.
    mark = Record(
        seq=0, kind=RecordKind.FORK, location="", payload=said, at=past[-1].at if len(past) == 1 else past[-2].at
    )
    entries = count(1)
    records = tuple(
        replace(
            record,
            seq=seq,
            run_attempt=1,
            inbox_seq=next(entries) if record.inbox_seq or record.kind in _RECEIVED else 0,
        )
        for seq, record in enumerate((*past[:-1], mark, past[-1]))
    )
    began = source.started_at if past[0].run_attempt == source.attempt else past[0].at
    seed = kept_seed(source.seed, source.generation, 1)
    return Fork(run=new, source=source.id, step=step, records=records, started_at=began, seed=seed)
