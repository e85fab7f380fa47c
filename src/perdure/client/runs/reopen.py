"""Letting a run go again: retrying it, as its status allows, and forking it.

The rows of a fork are worked out here, from the history of its source, and written by the store in one transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from perdure.client.deploy import aside
from perdure.client.runs.inspect import explain
from perdure.client.runs.start import Moment, StartOptions
from perdure.client.session import Session
from perdure.core.ids import check_name
from perdure.core.model.attributes import make_attributes
from perdure.core.model.dead_letter import dead_letter_reason
from perdure.core.model.record import Record, RecordKind, last_applied, without_broken
from perdure.core.model.run import Fork, NewRun, RetryOutcome, RetryRequest, Run, kept_seed
from perdure.core.option_checks import check_text, no_option
from perdure.core.pinning import base_queue
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import with_stored_singleton
from perdure.core.printed_text import brief, closest
from perdure.core.time.duration import NEVER, Duration, instant
from perdure.errors import DecodeError, Diverged, RunExists, RunFinished, RunNotFound, UsageError
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Call, Workflow
from perdure.workflow.run_settings import NO_SETTINGS, RunSettings, make_settings, place
from perdure.workflow.scopes import deleted_before, renumbered

#: Records that come from the inbox, records at which a fork can begin, and those of them that have a result.
_RECEIVED = (RecordKind.MESSAGE, RecordKind.CHILD, RecordKind.CANCEL)
_PLACES = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.TIMER, RecordKind.CHILD)
_RESULTS = (RecordKind.STEP, RecordKind.CHILD)
#: Most steps that an error message names.
_SHOWN = 10
_NO_STEPS = "it has recorded no step to fork from; start another run with the same input"


class ForkOptions(TypedDict, total=False):
    """Options of `Handle.fork`."""

    #: First step that is executed again: its location, such as `charge#2`, or the number of its record, from 0. The
    #: first of all by default.
    from_step: str | int | None
    #: Other arguments: a call of the same workflow, or the arguments by name.
    input: Call[Any] | Mapping[str, Any] | None
    #: Other results of earlier steps and children, by location.
    results: Mapping[str, Any] | None
    #: The new run's id; a UUIDv7 by default.
    id: str | None
    #: Fail the new run if it is not finished by then.
    deadline: Moment | None
    #: Stored in the audit trail.
    reason: str


class RetryOptions(TypedDict, total=False):
    """Changes to a run that goes again."""

    #: Other arguments: a call of the same type, or the arguments by name.
    input: Call[Any] | Mapping[str, Any] | None
    #: Policy of an activity from now on; see `activity`.
    retry: Retry | int | None
    schedule_to_start: Duration | None
    start_to_close: Duration | None
    schedule_to_close: Duration | None
    heartbeat: Duration | None
    #: Fail the run if it is not finished by then.
    deadline: Moment | None
    queue: str | None
    priority: int | None
    #: Stored in the audit trail.
    reason: str


async def retry(session: Session, run_id: str, changes: RetryOptions, token: int | None = None) -> int:
    """Let a run go again, as its state allows; its generation.

    `token` is that of the run as the caller has read it. A repetition with the same token changes nothing.
    """
    if unknown := changes.keys() - RetryOptions.__annotations__.keys():
        raise UsageError(no_option("retry", unknown, RetryOptions.__annotations__))
    run = await session.find(run_id)
    store = await session.connect()
    request = _retry_request(session, run, changes, store.clock())
    result = await store.retry(request if token is None else replace(request, token=token), session.actor)
    match result.outcome:
        case RetryOutcome.OPEN:
            return result.generation
        case RetryOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to retry")
        case RetryOutcome.COMPLETED:
            raise RunFinished(
                f"run {run_id!r} completed, so there is nothing to retry; to do it again, fork it or start another"
            )
        case RetryOutcome.ALIVE:
            raise await _nothing_to_retry(session, run_id, changes)
        case RetryOutcome.OTHERWISE:
            raise UsageError(f"run {run_id!r} was retried by another client at the same time, with other changes")
        case RetryOutcome.DELETED:
            raise UsageError(f"run {run_id!r} was deleted; bring it back before you retry it: undelete()")
        case RetryOutcome.EXPIRED:
            raise UsageError(
                f"the deadline of run {run_id!r} has passed; retry it with another one: retry(deadline=...)"
            )
        case RetryOutcome.BEGUN:
            raise UsageError(
                f"run {run_id!r} has a history, which another input would not fit; fork it with the other input "
                "instead: fork(input=...)"
            )


async def _nothing_to_retry(session: Session, run_id: str, changes: RetryOptions) -> UsageError:
    run = await session.find(run_id)
    changed = {name for name, value in changes.items() if value is not None and name != "reason"}
    if changed and dead_letter_reason(run.status, run.reason) is None:
        return UsageError(
            f"run {run_id!r} is {status_text(run)}; only a run that ended, or a dead letter, is retried with "
            f"{min(changed)}"
        )
    why = await explain(await session.connect(), run)
    return UsageError(f"there is nothing to retry in run {run_id!r}, it is {status_text(run)}. {why}")


def status_text(run: Run) -> str:
    """Spell the status of a run, with its reason."""
    return run.status.value if run.reason is None else f"{run.status.value}: {run.reason.value}"


def _retry_request(session: Session, run: Run, changes: RetryOptions, now: int) -> RetryRequest:
    definition = session.workflows.get(run.type)
    given = _settings(changes)
    if given is not NO_SETTINGS and isinstance(definition, Workflow):
        raise UsageError(f"run {run.id!r} is a workflow ({run.type}); its policy is in its code")
    deadline, queue, priority = changes.get("deadline"), changes.get("queue"), changes.get("priority")
    make_settings({}, priority=priority)
    due = NEVER if deadline is None else instant(deadline, now)
    placed = place(given, NO_SETTINGS if definition is None else definition.settings, now, None, None, due)
    other = changes.get("input")
    return RetryRequest(
        run_id=run.id,
        token=run.token,
        is_activity=None if definition is None else isinstance(definition, Activity),
        input=None if other is None else _input(session, run, other),
        options=None if given is NO_SETTINGS else given.over(RunSettings.from_json(run.options)).to_json(),
        max_attempts=None if given.retry is None else given.retry.attempts or 0,
        deadline=None if placed.deadline == NEVER else placed.deadline,
        close_by=placed.close_by,
        queue=None if queue is None else check_name(queue, "queue"),
        priority=priority,
        reason=_reason(session, changes.get("reason", "")),
    )


def _reason(session: Session, reason: str) -> str:
    session.codec.encode(check_text("reason", reason), "the reason of a retry or fork")
    return reason


def _settings(changes: RetryOptions) -> RunSettings:
    names = ("retry", "schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat")
    given: Any = {name: changes.get(name) for name in names}
    if all(value is None for value in given.values()):
        return NO_SETTINGS
    return make_settings(given)


async def fork(session: Session, run_id: str, **wanted: Unpack[ForkOptions]) -> str:
    """Create a run with the past of another one up to a step; its id."""
    source = await session.find(run_id)
    from_step, results = wanted.get("from_step"), wanted.get("results") or {}
    store = await session.connect()
    step, past = _past(source, await store.history(run_id), from_step)
    past = _edited(session, source, past, results)
    options: StartOptions = {"id": wanted.get("id"), "priority": source.priority}
    options["deadline"] = wanted.get("deadline")
    encoded = _input(session, source, wanted.get("input"))
    call: Call[Any] = Call(source.type, (), session.workflows.get(source.type), RunSettings.from_json(source.options))
    new = session.run_maker(options).make(call, encoded)
    # A fork runs beside its source, so it is no singleton. It is pinned as the source is, whose records it has.
    queue = source.queue if past else base_queue(source.queue)
    new = replace(new, queue=queue, options=with_stored_singleton(new.options, None))
    kept = (await store.attributes([run_id])).get(run_id)
    new = replace(new, attributes=make_attributes(kept))
    fork = await _tried_out(session, source, _Copy(source, past, step, new, session.system.entropy(8).hex()))
    fork = replace(fork, reason=_reason(session, wanted.get("reason", "")))
    answer = await store.fork(fork, session.actor)
    if not answer.created:
        raise RunExists(f"there is a run {new.id!r} already; give the fork of {run_id!r} another id")
    return new.id


async def _tried_out(session: Session, source: Run, copy: _Copy) -> Fork:
    """Make a fork and replay its past, if its code is here. Raises `UsageError` if replay does not lead to its step."""
    fork, workflow = copy.fork(copy.last), session.workflows.get(source.type)
    if not isinstance(workflow, Workflow) or not fork.records:
        return fork
    from perdure.worker import ReplayCheck

    checkup = ReplayCheck(session.codec, session.errors, session.layers)

    async def replayed(fork: Fork) -> int:
        return await aside(lambda: checkup.replay(_as_it_will_be(source, fork), workflow, fork.records))

    try:
        problems = await replayed(fork)
    except Diverged as error:
        raise UsageError(
            f"a fork of run {source.id!r} from {fork.step!r} with these arguments and results does not come "
            "to that step: the copied "
            f"history has {error.expected}, but {error.found}; fork it from an earlier step"
        ) from error
    led = checkup.asked.get(fork.step, copy.last)
    if led >= copy.last:
        return fork
    # An earlier record has led to the step. Other code may have drawn arguments of copied steps since: those stay.
    closer = copy.fork(led)
    with contextlib.suppress(Diverged, DecodeError):
        if await replayed(closer) <= problems:
            return closer
    return fork


def _as_it_will_be(source: Run, fork: Fork) -> Run:
    return replace(
        source,
        id=fork.run.id,
        input=fork.run.input,
        attempt=1,
        generation=1,
        seed=fork.seed,
        started_at=fork.started_at,
    )


def _input(session: Session, source: Run, given: Call[Any] | Mapping[str, Any] | None) -> str:
    if given is None:
        return source.input
    if not isinstance(given, Call | Mapping) or not all(
        isinstance(name, str) for name in getattr(given, "keys", list)()
    ):
        raise UsageError(f"input={brief(given)}: give a call of {source.type}, or its arguments by name in a dict")
    call = given if isinstance(given, Call) else Call.named(source.type, **given)
    if call.type != source.type:
        raise UsageError(f"run {source.id!r} is a {source.type!r}, not a {call.type!r}")
    return session.resolve_call(call).encode(session.codec)


def _past(source: Run, history: Sequence[Record], from_step: str | int | None) -> tuple[str, list[Record]]:
    """Return the location of a step, and the records before it. Raises `UsageError`."""
    if from_step is None:
        return "", []
    if isinstance(from_step, int):
        first, past = _past_by_number(source, history, from_step)
    else:
        first, past = _past_by_location(source, history, check_text("from_step", from_step))
    _check_trimmed(source, history, first)
    return first.location, _without_open_beginnings(past)


def _without_open_beginnings(past: Sequence[Record]) -> list[Record]:
    """Leave out beginnings of steps whose end is not copied: the fork executes these steps, as all that follow."""
    ended: set[str] = set()
    kept: list[Record] = []
    for record in reversed(past):
        if record.kind is RecordKind.BEGIN:
            if record.location not in ended:
                continue
            ended.discard(record.location)
        elif record.kind in (RecordKind.STEP, RecordKind.ATTEMPT):
            ended.add(record.location)
        kept.append(record)
    return kept[::-1]


def _past_by_location(source: Run, history: Sequence[Record], location: str) -> tuple[Record, list[Record]]:
    """Return the first record of a step in the last attempt at the run that came to it, and the records before it."""
    found = [record for record in history if record.location == location and record.kind in _PLACES]
    if not found:
        problem = f"the history of run {source.id!r} has no step {location!r}"
        known = ", ".join(dict.fromkeys(record.location for record in history if record.kind in _PLACES))
        raise UsageError(f"{problem}; it has: {known}" if known else f"{problem}; {_NO_STEPS}")
    attempt = found[-1].run_attempt
    first = next(record for record in found if record.run_attempt == attempt)
    return first, [record for record in history if record.run_attempt == attempt and record.seq < first.seq]


def _past_by_number(source: Run, history: Sequence[Record], number: int) -> tuple[Record, list[Record]]:
    """Return the record of a number, and those before it without failed attempts at the same step."""
    found = next((record for record in history if record.seq == number), None)
    if isinstance(number, bool) or found is None or found.kind not in _PLACES:
        raise UsageError(_no_step_of_number(source, history, number, found))
    past = [
        record
        for record in history
        if record.run_attempt == found.run_attempt
        and record.seq < number
        and (record.kind is not RecordKind.ATTEMPT or record.location != found.location)
    ]
    return found, past


def _no_step_of_number(source: Run, history: Sequence[Record], number: int, found: Record | None) -> str:
    if isinstance(number, bool) or number < 0:
        return (
            f"from_step={brief(number)}: give the location of a step, such as 'charge#2', or the number of its record, "
            "from 0"
        )
    steps = [record for record in history if record.kind in _PLACES]
    near = sorted(sorted(steps, key=lambda record: abs(record.seq - number))[:_SHOWN], key=lambda record: record.seq)
    if found is not None:
        problem = f"record {number} of run {source.id!r} is a {found.kind.value}, not a step"
    elif history and number < history[-1].seq:
        problem = f"record {number} of run {source.id!r} was deleted by the checkpoint of a loop or race"
    else:
        problem = f"the history of run {source.id!r} has no record {brief(number)}"
    if not near:
        return f"{problem}; {_NO_STEPS}"
    shown = ", ".join(f"{record.seq} ({record.location})" for record in near)
    return f"{problem}; fork it from a record of a step, such as: {shown}"


def _check_trimmed(source: Run, history: Sequence[Record], first: Record) -> None:
    """Refuse a step before which records of a loop or race are missing whose checkpoint comes only after it."""
    later = [record for record in history if record.kind is RecordKind.SCOPE and record.seq > first.seq]
    deleted = [deleted_before(checkpoint, first) for checkpoint in later]
    if True not in deleted and (None not in deleted or _is_whole(history, first)):
        return
    known = [checkpoint for checkpoint, has in zip(later, deleted, strict=True) if has]
    last = (known or later)[-1]
    raise UsageError(
        f"a fork of run {source.id!r} from {first.location!r} would repeat steps of a loop or race: records before "
        f"number {first.seq} were deleted by a later checkpoint; fork it from a step after the checkpoint "
        f"{last.seq} ({last.location})"
    )


def _is_whole(history: Sequence[Record], first: Record) -> bool:
    """True if every missing record before a step seems to be deleted by a checkpoint before it.

    For checkpoints of earlier versions, which do not tell what they have deleted.
    """
    earlier = [record.seq for record in history if record.run_attempt < first.run_attempt]
    expected = earlier[-1] + 1 if earlier else 0
    whole = True
    for record in history[len(earlier) :]:
        if record.seq > first.seq:
            break
        # A checkpoint stands for all records of its scope that it has deleted.
        whole = record.kind is RecordKind.SCOPE or (whole and record.seq == expected)
        expected = record.seq + 1
    return whole


def _edited(session: Session, source: Run, past: Sequence[Record], results: Mapping[str, Any]) -> list[Record]:
    """Replace results in records. Raises `UsageError` for a result that is not there, or of the wrong type."""
    if not isinstance(results, Mapping) or not all(isinstance(location, str) for location in results):
        raise UsageError(f"results={brief(results)}: give a dict of results by location, such as {{'charge#2': 7}}")
    there = {record.location for record in past if record.kind in _RESULTS}
    if missing := sorted(results.keys() - there):
        raise UsageError(
            f"no result of {missing[0]!r} is copied from run {source.id!r}, so it cannot be another; copied "
            f"are: {closest(missing[0], there)}"
        )
    edited: list[Record] = []
    for record in past:
        if record.location in results and record.kind in _RESULTS:
            what = f"the result of {record.location!r} for the fork of run {source.id!r}"
            payload = session.codec.encode(results[record.location], what)
            workflow = (
                session.workflows.get(record.location.partition("#")[0]) if record.kind is RecordKind.CHILD else None
            )
            if workflow is not None:
                session.codec.decode(payload, workflow.signature.returns, what)
            record = replace(record, payload=payload, failed=False)
        edited.append(record)
    return edited


class _Copy:
    """The past of a fork, with a mark before the record that led to its step."""

    def __init__(self, source: Run, past: Sequence[Record], step: str, new: NewRun, salt: str) -> None:
        self._source = source
        self._past = past = without_broken(past)
        self._step = step
        self._new = new
        self._salt = salt
        #: Place of the last record that let the code go on: most often it led to the step. -1 if there is none.
        self.last = last_applied(past) - 1

    def fork(self, led: int) -> Fork:
        """Make the fork; `led`: place of the record that led to the step, whose arguments are drawn anew."""
        source, past, cut = self._source, self._past, max(0, led)
        head, tail = past[:cut], [record for record in past[cut:] if record.kind is not RecordKind.FORK]
        if not tail:
            return Fork(run=self._new, source=source.id, step=self._step, records=(), started_at=0, seed="")
        said = msgspec.json.encode({"run": source.id, "step": self._step, "salt": self._salt}).decode()
        mark = Record(seq=0, kind=RecordKind.FORK, location="", payload=said, at=head[-1].at if head else tail[0].at)
        # Without a second mark, earlier versions would take more than one record for records of the fork itself.
        ends = [replace(mark, at=tail[-1].at)] if len(tail) > 1 else []
        began = source.started_at if past[0].run_attempt == source.attempt else past[0].at
        return Fork(
            run=self._new,
            source=source.id,
            step=self._step,
            records=_copied(head, tail, mark, ends),
            started_at=began,
            # Code that comes to the step before a record is applied draws everything anew.
            seed=self._salt if led < 0 else kept_seed(source.seed, source.generation, 1),
        )


def _copied(head: Sequence[Record], tail: Sequence[Record], mark: Record, ends: Sequence[Record]) -> tuple[Record, ...]:
    entries = count(1)
    numbers = {record.seq: seq + (seq >= len(head)) for seq, record in enumerate([*head, *tail])}
    kept, changed = list(numbers), list(numbers.values())
    return tuple(
        replace(
            renumbered(record, kept, changed) if record.kind is RecordKind.SCOPE else record,
            seq=seq,
            run_attempt=1,
            inbox_seq=next(entries) if record.inbox_seq or record.kind in _RECEIVED else 0,
            # It names the record of the message that was set aside.
            digest=str(numbers.get(int(record.digest), -1)) if record.kind is RecordKind.ASIDE else record.digest,
        )
        for seq, record in enumerate([*head, mark, *tail, *ends])
    )
