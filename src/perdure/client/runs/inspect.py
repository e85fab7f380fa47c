"""Inspection of one run: the sentence that says why it is where it is, and its report.

The row of a run that is tried again as a whole keeps the last error only. Earlier ones come from the audit trail, as
long as that is kept and was not pruned.
"""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.client.runs.deadlocks import Deadlock, DeadlockSearch, advice
from perdure.core.audit import Event
from perdure.core.codec.failure import Failure
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit
from perdure.core.limits.limit import LimitInfo, PermitInfo, WaitlistPosition
from perdure.core.model.outputs import Interruption, Output, OutputKind, interruption_of
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.reports import FailedAttempt, RunReport, RunSnapshot, StepReport, original_records
from perdure.core.model.run import Reason, Run, RunFilter, Status
from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.model.set_aside_messages import set_aside_of
from perdure.core.model.waits import RunWaits, Wait, WaitKind, meant_by
from perdure.core.model.worker_info import RunningStep, WorkerInfo, WorkerStatus, living_workers, workers_for
from perdure.core.pinning import base_queue
from perdure.core.policy.singleton import stored_singleton_of
from perdure.core.printed_text import misspelt
from perdure.core.routing import TypeInfo, served_elsewhere
from perdure.core.time.duration import NEVER, length
from perdure.errors import StoreCorrupt
from perdure.store.contract import Store
from perdure.store.sql.reads import interruptions as interruptions_of
from perdure.store.sql.runs.pause_and_evict import pausing_of

#: Characters of a heartbeat's details that are shown.
_SHOWN = 200
#: Age of a worker's last heartbeat that is told, in microseconds.
_HEARD = 1_000_000
#: The store counts no more runs ahead of a run on a waitlist.
_MOST_COUNTED = 1000

_OPEN = (Status.PENDING, Status.RUNNING, Status.WAITING, Status.BLOCKED)


async def readable_runs(store: Store, run_ids: Sequence[str]) -> list[Run]:
    """The existing ones of these runs, without those whose rows cannot be read."""
    try:
        return await store.get_many(run_ids)
    except StoreCorrupt:
        if len(run_ids) == 1:
            return []
    return [run for run_id in run_ids for run in await readable_runs(store, [run_id])]


class Facts(Struct, frozen=True, kw_only=True):
    """Facts besides the run itself that explain its state; read only where they matter."""

    now: int
    workers: Sequence[WorkerInfo]
    pauses: Sequence[Pause] = ()
    history: Sequence[Record] = ()
    inbox: Sequence[Message] = ()
    #: Registered types, by name.
    types: Mapping[str, TypeInfo] = {}
    #: Last heartbeat of an activity.
    beat: Output | None = None
    #: WaitlistPosition on the waitlist of a limit.
    standing: WaitlistPosition | None = None
    #: Permits of that limit that are in use, those of their runs that are named, and the deadlock over them.
    permits: Sequence[PermitInfo] = ()
    holders: Mapping[str, Run] = {}
    deadlock: Deadlock | None = None
    #: All that a parked run waits for, by name.
    waits: RunWaits | None = None


#: Outputs that explain the state of a run.
EXPLAINING = (OutputKind.HEARTBEAT, OutputKind.SET_ASIDE)
#: After the last record of any history.
_NO_RECORDS = 2**62
#: Generations of children in one explanation.
_GENERATIONS = 5
#: Holders of permits that one sentence names.
_HOLDERS = 3


async def explain(store: Store, run: Run, snapshot: RunSnapshot | None = None, *, deep: int = _GENERATIONS) -> str:
    """Say in a sentence why a run is where it is, and why its first child is, if it waits for children.

    A `snapshot` that was just read has all of its records, and its outputs of the kinds `EXPLAINING`. `deep` is the
    number of generations of children that are explained, too.
    """
    ready = run.status is Status.PENDING
    pauses = await store.pauses() if ready else ()
    paused = _pause_of(run, pauses) is not None
    retries = paused or run.reason is Reason.RETRY
    if snapshot is None:
        snapshot = await store.snapshot(run.id, -1 if retries else _NO_RECORDS, EXPLAINING)
    standing = await store.waitlist_position(run.id) if run.reason in (Reason.LIMIT, Reason.BREAKER) else None
    search = DeadlockSearch(store)
    permits = () if standing is None else await search.permits(standing.gate)
    now = await store.now()
    needs_worker = ready or (run.status is Status.WAITING and (standing is not None or run.wake_at <= now))
    workers = await store.workers() if needs_worker or run.status is Status.RUNNING else ()
    needs_worker = needs_worker or _is_lost(run, workers, now)
    facts = Facts(
        now=now,
        workers=workers,
        pauses=pauses,
        history=snapshot.records if retries and snapshot is not None else (),
        inbox=await store.inbox(run.id, 0) if paused or run.reason is Reason.PAUSED else (),
        types={one.type: one for one in await store.types()} if needs_worker else {},
        beat=_beat(snapshot) if run.status is Status.RUNNING or run.reason is Reason.COMPLETION else None,
        standing=standing,
        permits=permits,
        holders=await search.runs([one.run_id for one in permits[:_HOLDERS]]),
        deadlock=None if standing is None else await search.find(standing.gate, run.id),
        waits=None if snapshot is None else _waits_of(run, snapshot.waits, also=Status.PENDING if paused else None),
    )
    if run.reason is not Reason.CHILD or not deep:
        return _explained(run, facts) + _unread(facts.waits, facts.inbox) + _undecided(run, snapshot)
    page = await store.list(RunFilter(parent_id=run.id, status=_OPEN), 1000, None)
    if not page.runs:
        return _explained(run, facts)
    child = page.runs[-1]
    others = f" and {len(page.runs) - 1} more" if len(page.runs) > 1 else ""
    lead = f"It waits for its child {child.id!r} ({child.type}){others}. Of that child"
    if facts.waits is not None and any(wait.kind is not WaitKind.CHILD for wait in facts.waits.waits):
        lead = f"It waits for {waits(facts.waits, facts.now)}. Of the child {child.id!r}"
    return f"{lead}: {await explain(store, child, deep=deep - 1)}"


async def current_waits(store: Store, run: Run) -> RunWaits | None:
    """Read what a parked run waits for; None if it is not parked, or its last holder was of an older version."""
    return _waits_of(run, await store.waits(run.id)) if run.status is Status.WAITING else None


def _waits_of(run: Run, stored: RunWaits | None, *, also: Status | None = None) -> RunWaits | None:
    """Return the names that a parked run waits for, if they were stored when it was last parked.

    `also` is a status of runs that were woken since, and that no worker has claimed again.
    """
    # A run that waits for another attempt, or to be admitted, was parked under an earlier lease, if ever.
    known = run.status in (Status.WAITING, also) and stored is not None and stored.token == run.token
    return stored if known else None


def _unread(found: RunWaits | None, inbox: Sequence[Message] = ()) -> str:
    """Sentence about messages, taken in or still in the inbox, under names that the code has not asked for."""
    if found is None:
        return ""
    awaited = {wait.name for wait in found.waits if wait.kind is WaitKind.MESSAGE}
    unread = Counter(one.name for one in inbox if one.kind is RecordKind.MESSAGE and one.name not in awaited)
    unread.update(found.unread)
    if not unread:
        return ""
    names = ", ".join(f"{name!r} ({count})" if count > 1 else repr(name) for name, count in unread.items())
    near = {name: meant_by(name, found) for name in unread}
    meant = "".join(f" Was {awaited!r} meant by {name!r}?" for name, awaited in near.items() if awaited is not None)
    return f" Messages are unread that its code has not asked for so far: {names}.{meant}"


def _undecided(run: Run, snapshot: RunSnapshot | None) -> str:
    """Sentence about messages that the run has set aside, if it has not ended."""
    if run.status.finished or snapshot is None:
        return ""
    open_ = [one for one in snapshot.outputs if one.kind is OutputKind.SET_ASIDE and one.failed]
    if not open_:
        return ""
    first = set_aside_of(open_[0])
    return (
        f" It has set aside {len(open_)} message(s) that do not fit its code, the first under {first.name!r} "
        f"({first.error.message}); it still waits. Send one that fits, or deliver it with a value that fits in place "
        f"of null: `perdure messages deliver URL {shlex.quote(run.id)} {first.number} --value null`; without --value, "
        "once the code takes it as it is."
    )


def _beat(snapshot: RunSnapshot | None) -> Output | None:
    outputs = () if snapshot is None else snapshot.outputs
    return next((one for one in outputs if one.kind is OutputKind.HEARTBEAT), None)


def _explained(run: Run, facts: Facts) -> str:
    workers, now = facts.workers, facts.now
    match run.status:
        case Status.PENDING:
            return _pending(run, facts) + _start_by(run, now)
        case Status.RUNNING:
            under_way = running(running_of(run, workers), now)
            told = f"It is being worked on by worker {run.worker}{_alive(run, workers, now)}."
            return f"{told}{under_way}{_signs(facts)}{_without_successor(run, facts)}"
        case Status.WAITING:
            return _waiting(run, facts) + _without_worker(run, facts)
        case Status.BLOCKED:
            return _blocked(run)
        case Status.COMPLETED:
            return f"It completed {ago(run.finished_at, now)}."
        case Status.CANCELLED:
            return f"It was cancelled {ago(run.finished_at, now)}{_error(run)}."
        case Status.FAILED:
            told = f"It failed {ago(run.finished_at, now)}{_error(run)}."
            # Below an error of several lines, not at the end of the last one.
            gap = "\n" if "\n" in told else " "
            return f"{told}{gap}Once the cause is gone, retry it: `perdure retry URL {shlex.quote(run.id)}`."


def _pending(run: Run, facts: Facts) -> str:
    now = facts.now
    if (pause := _pause_of(run, facts.pauses)) is not None:
        because = f": {pause.reason}" if pause.reason else ""
        told = f"It is ready, but the {pause.kind} {pause.name!r} was paused {ago(pause.paused_at, now)}{because}."
        return f"{told}{_besides(run, facts)}"
    if (unserved := _unserved(run, facts)) is not None:
        return f"It is ready, but {unserved}"
    elsewhere = served_elsewhere(facts.types.values())
    if run.type in elsewhere:
        return f"It has been ready for {span(now - run.wake_at)} and waits for a worker in {elsewhere[run.type]!r}."
    serving = workers_for(run, living_workers(facts.workers, now))
    return f"It has been ready for {span(now - run.wake_at)} and waits for a free slot of {len(serving)} worker(s)."


def _pause_of(run: Run, pauses: Sequence[Pause]) -> Pause | None:
    """Pause of the queue or the type of a run; None if neither is paused."""
    named = {PauseKind.TYPE: run.type, PauseKind.QUEUE: base_queue(run.queue)}
    return next((pause for pause in pauses if pause.name == named[pause.kind]), None)


def _besides(run: Run, facts: Facts) -> str:
    """Sentences about a ready run that is paused: what else keeps it from going on, and what it waited for."""
    unserved, failed, named = _unserved(run, facts), _last_failure(run, facts.history), facts.waits
    # What was to end at a time that has passed is over.
    open_ = [] if named is None else [wait for wait in named.waits if not wait.until or wait.until > facts.now]
    return (
        ("" if unserved is None else f" It is also not served: {unserved}")
        + ("" if failed is None else f" Its last attempt failed: {_summary(failed)}.")
        + (
            ""
            if named is None or not open_
            else f" It last waited for {waits(replace(named, waits=tuple(open_)), facts.now)}."
        )
    )


def _last_failure(run: Run, history: Sequence[Record]) -> str | None:
    """Error of the last failed attempt at the run, or at a step of it that has not ended."""
    ended = set[str]()
    for record in reversed(history):
        if record.kind is RecordKind.ATTEMPT and record.failed and record.payload and record.location not in ended:
            return record.payload
        if record.kind is RecordKind.STEP:
            ended.add(record.location)
    return run.error


def _unserved(run: Run, facts: Facts) -> str | None:
    """Say why no live worker takes a run, and what to do; None if one does, or may in another language."""
    alive = living_workers(facts.workers, facts.now)
    if workers_for(run, alive) or run.type in served_elsewhere(facts.types.values()):
        return None
    served = {type for worker in alive for type in worker.types}
    if not alive:
        return (
            "no worker is alive; start one: `async with engine.worker():`, or, unless the database is "
            "in memory, `perdure worker module:engine` in a terminal; its engine needs the workflow "
            f"{run.type!r}: `Engine(url, [...])`.{_meant_type(run, facts.types)}"
        )
    if (build := run.pinned_to) is not None:
        return _unserved_pin(run, build, alive)
    if run.type in served:
        queues = {queue for worker in alive if run.type in worker.types for queue in worker.queues}
        near = misspelt(run.queue, queues)
        hint = f" Did you mean the queue {near!r}?" if near else ""
        if any(run.queue in worker.queues for worker in alive):
            return (
                f"no live worker serves both the type {run.type!r} and the queue {run.queue!r}; add the type, or the "
                f"queue, to a worker.{hint}"
            )
        return f"no live worker takes the queue {run.queue!r}; add it to a worker's queues.{hint}"
    return (
        f"none of the {len(alive)} live worker(s) serves the type {run.type!r}; add it to a worker's "
        f"engine, `Engine(url, [...])`, or deploy the code that has it.{_meant_type(run, served)}"
    )


def _meant_type(run: Run, known: Collection[str]) -> str:
    """Ask for a type of a similar name, if no type has the name of the run's."""
    near = misspelt(run.type, known)
    if near is None or run.type in known:
        return ""
    return f" Did you mean {near!r}? Then cancel this run and start one of that type."


def _unserved_pin(run: Run, build: str, alive: Sequence[WorkerInfo]) -> str:
    """Sentence about a run that is pinned to a build, none of whose workers takes it."""
    builds = sorted({worker.build for worker in alive if worker.build})
    there = f"the live workers are of {', '.join(map(repr, builds))}" if builds else "no live worker names its build"
    if build in builds:
        there = f"no worker of that build takes the type {run.type!r} in the queue {base_queue(run.queue)!r}"
    return (
        f"it is pinned to the build {build!r}, and {there}. Start a worker of that build; or, if "
        "other code follows its history (`perdure check app:engine --pinned`), "
        f"`perdure runs unpin URL {shlex.quote(run.id)}`."
    )


def _paused(inbox: Sequence[Message], now: int) -> str:
    last = next((entry for entry in reversed(inbox) if entry.kind is RecordKind.PAUSE), None)
    if last is None:
        return "It is paused."
    reason = pausing_of(last.payload).reason
    return f"It was paused {ago(last.sent_at, now)}{f': {reason}' if reason else ''}; it goes on when it is resumed."


def _limited(standing: WaitlistPosition, now: int) -> str:
    gate = standing.gate
    if gate.problem:
        kind = "breaker" if gate.name.startswith(PREFIX) else "limit"
        return (
            f"It has waited for {span(now - standing.since)}: the {kind} {gate.name.removeprefix(PREFIX)!r} "
            "is set aside and lets "
            f"nothing pass, because {gate.problem}. Set or clear the limit anew, or reset the breaker."
        )
    if gate.breaker is not None:
        return _broken(gate.breaker, standing, now)
    at_least = "at least " if standing.ahead >= _MOST_COUNTED else ""
    ahead = f"{standing.ahead} runs of its type are"
    if standing.ahead < 2:
        ahead = f"{standing.ahead or 'no'} run of its type is"
    waiting = "1 run or step waits" if gate.waiting == 1 else f"{gate.waiting} runs and steps wait"
    return (
        f"It has waited {span(now - standing.since)} for the limit {gate.name!r} ({_use(gate)}); "
        f"{at_least}{ahead} ahead of it; {waiting} for this limit."
    )


def _use(gate: LimitInfo) -> str:
    """Permits in use and rate of a limit."""
    if not gate.bounds.concurrency:
        return str(gate.bounds)
    permits = f"{gate.held} of {gate.bounds.concurrency} permits in use"
    rate = replace(gate.bounds, concurrency=0)
    return f"{permits}, {rate}" if rate.pace else permits


def _held(run: Run, facts: Facts) -> str:
    """Sentences about the runs that hold the permits of a full limit, and about a deadlock over them."""
    if facts.standing is None or not facts.permits:
        return ""
    limit, named = facts.standing.gate, ", ".join(_holder(run, one, facts) for one in facts.permits[:_HOLDERS])
    rest = limit.held - _HOLDERS
    more = f" and {rest} more" if rest > 0 else ""
    text = f" Its {'permits are' if limit.held > 1 else 'permit is'} held by {named}{more}."
    if facts.deadlock is None:
        return text
    return f"{text} This never ends: {facts.deadlock}. To end it, {advice(limit)}."


def _holder(run: Run, permit: PermitInfo, facts: Facts) -> str:
    """Name the holder of a permit, with its type and its state."""
    step = f"step {permit.location!r} of " if permit.location else ""
    holder = facts.holders.get(permit.run_id)
    if holder is None:
        return f"{step}{permit.run_id!r}"
    kin = "its parent " if holder.id == run.parent_id else "itself, " if holder.id == run.id else ""
    reason = "" if holder.reason is None else f": {holder.reason}"
    return f"{step}{kin}{holder.id!r} ({holder.type}, {holder.status}{reason})"


def _broken(breaker: BreakerInfo, standing: WaitlistPosition, now: int) -> str:
    waited = f"It has waited for {span(now - standing.since)}: the breaker {breaker.name!r}"
    since = ago(breaker.since, now)
    if breaker.circuit is Circuit.OPEN and breaker.by_hand:
        return f"{waited} was opened by hand {since} and stays open until it is closed or reset."
    if breaker.circuit is Circuit.OPEN:
        return (
            f"{waited} opened {since} because too much failed; the next call is tried in {span(breaker.until - now)}."
        )
    if breaker.circuit is Circuit.HALF_OPEN:
        needed = breaker.rule.successes - breaker.successes
        return (
            f"{waited} is half open and lets {breaker.rule.probes} call(s) pass at a time; "
            f"{needed} more have to succeed."
        )
    return f"{waited} is closed again; it passes when a worker has a free slot."


def _waiting(run: Run, facts: Facts) -> str:
    now, history = facts.now, facts.history
    until = f" until {day(run.wake_at)} (in {span(run.wake_at - now)})" if run.wake_at < NEVER else ""
    named = facts.waits
    match run.reason:
        case Reason.MESSAGE | Reason.CHILD if named is not None and named.waits:
            return f"It waits for {waits(named, now)}."
        case Reason.MESSAGE:
            limit = f", at most{until}" if until else ""
            return f"It waits for a message{limit}."
        case Reason.PAUSED:
            return _paused(facts.inbox, now)
        case Reason.LIMIT | Reason.BREAKER if facts.standing is not None:
            return _limited(facts.standing, now) + _held(run, facts) + _in_all(named, now)
        case Reason.CHILD:
            return "It waits for a child run to finish."
        case Reason.COMPLETION:
            since = f" since {day(named.waits[0].since)}" if named is not None and named.waits else ""
            limit = f", at most{until}" if until else ""
            return (
                f"Its function returned Pending. It waits for its completion from outside{since}{limit}.{_signs(facts)}"
            )
        case Reason.LIMIT if (single := stored_singleton_of(run.options)) is not None:
            return f"It waits for its turn: another run of the singleton {single.name!r} is not over yet."
        case Reason.RETRY:
            last = next((record for record in reversed(history) if record.failed and record.payload), None)
            payload = run.error if last is None else last.payload
            cause = "" if payload is None else f" The last attempt failed: {_summary(payload)}."
            return f"It waits to try again{until}{_count(run)}.{cause}{_in_all(named, now)}"
        case _ if run.started_at == 0 and (single := stored_singleton_of(run.options)) is not None and single.delay:
            return f"It is put off{until}, and longer if it is started again."
        case _ if run.started_at == 0:
            return f"It is scheduled and waits{until}."
        case _:
            return f"It sleeps{until}.{_in_all(named, now)}"


def _without_worker(run: Run, facts: Facts) -> str:
    """Sentence about a run that only a worker can let pass or wake, if no live worker takes it."""
    due = facts.standing is not None or run.wake_at <= facts.now
    unserved = _unserved(run, facts) if due else None
    return f" Nothing lets it go on: {unserved}" if unserved is not None else ""


def _is_lost(run: Run, workers: Sequence[WorkerInfo], now: int) -> bool:
    """True if the lease of a run's worker is over."""
    if run.status is not Status.RUNNING:
        return False
    if run.lease_until:
        return run.lease_until < now
    return all(worker.id != run.worker for worker in living_workers(workers, now))


def _without_successor(run: Run, facts: Facts) -> str:
    """Sentence about a run whose worker has lost it, if no live worker takes it over."""
    unserved = _unserved(run, facts) if _is_lost(run, facts.workers, facts.now) else None
    return f" Nothing takes it over: {unserved}" if unserved is not None else ""


def _in_all(named: RunWaits | None, now: int) -> str:
    """Name all that a run waits for, if that is more than the sentence before says."""
    several = named is not None and len(named.waits) + named.more > 1
    return f" In all it waits for {waits(named, now)}." if named is not None and several else ""


def _count(run: Run) -> str:
    """Name the next attempt, where the run itself bounds their number."""
    return f", attempt {run.attempt} of {run.max_attempts}" if run.max_attempts else ""


def _start_by(run: Run, now: int) -> str:
    return f" It fails if no worker begins it within {span(run.deadline - now)}." if run.close_by else ""


def _signs(facts: Facts) -> str:
    if facts.beat is None:
        return ""
    said = facts.beat.payload if len(facts.beat.payload) <= _SHOWN else f"{facts.beat.payload[:_SHOWN]}…"
    return f" Its last sign of life, {ago(facts.beat.at, facts.now)}, said {said}."


def _blocked(run: Run) -> str:
    advice = {
        Reason.DIVERGED: "Its code no longer follows its history. Deploy matching code and restart a worker.",
        Reason.POISON: (
            "It was set aside because its workers kept dying while they worked on it. Fix the cause, then retry it."
        ),
        Reason.BROKEN: "Its code is broken. Deploy corrected code and restart a worker, or retry it.",
        Reason.UNDECODABLE: "Its stored data does not fit its code. Deploy matching code and restart a worker; if its "
        "input was wrong, cancel it and start it again.",
    }
    known = advice.get(run.reason, "It needs a person.") if run.reason is not None else "It needs a person."
    return f"{known} {_summary(run.error)}" if run.error else known


def _alive(run: Run, workers: Sequence[WorkerInfo], now: int) -> str:
    if run.lease_until:
        left = run.lease_until - now
        when = f"in {span(left)}" if left > 0 else "at the next sweep"
        return f", which is not one of Python's; unless it is heard of, others get the run {when}"
    info = next((worker for worker in workers if worker.id == run.worker), None)
    if info is None:
        return ", which is not known any more; its runs will be given to others"
    # A page may show what was read a moment ago.
    read_at = info.read_at or now
    late = silence(info, read_at)
    if not late and read_at - info.heartbeat_at >= _HEARD:
        late = f"last heard of {seconds_ago(read_at - info.heartbeat_at)}"
    return f" (pid {info.pid} on {info.host}){f', {late}' if late else ''}"


def _error(run: Run) -> str:
    return f": {_summary(run.error)}" if run.error else ""


def _summary(payload: str) -> str:
    failure = Failure.read(payload)
    name = failure.type.rpartition(".")[2]
    return ": ".join(part for part in (name, failure.message) if part) or str(failure)


_OPERATIONS = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.BEGIN, RecordKind.CHILD, RecordKind.TIMER)
#: Status of a step whose last record is of an attempt.
_ATTEMPT_STATUS = {RecordKind.ATTEMPT: "retrying", RecordKind.BEGIN: "begun"}
#: Kinds of events that report an error.
_FAILURES = ("retried", "failed", "cancelled", "expired", "terminated", "blocked")


class OpenWork(Struct, frozen=True, kw_only=True):
    """Facts about a run that its history does not have."""

    interruptions: tuple[Interruption, ...] = ()
    #: All that it waits for; None if it is not parked.
    waits: RunWaits | None = None
    #: Steps that are under way.
    running: tuple[RunningStep, ...] = ()


async def read_open_work(
    store: Store, run: Run, records: Sequence[Record], snapshot: RunSnapshot | None = None
) -> OpenWork:
    """Read what a run waits for or has under way, and its interruptions; a `snapshot` of it may have them already."""
    if snapshot is None:
        interruptions, waits = await interruptions_of(store, run.id), await current_waits(store, run)
    else:
        notes = [interruption_of(one) for one in snapshot.outputs if one.kind is OutputKind.INTERRUPTION]
        interruptions, waits = tuple(one for one in notes if one is not None), _waits_of(run, snapshot.waits)
    if run.status is not Status.RUNNING:
        return OpenWork(interruptions=interruptions, waits=waits)
    ended = {record.location: record.at for record in records if record.kind is RecordKind.STEP}
    found = running_of(run, await store.workers())
    # A step may have ended since the heartbeat.
    running = tuple(step for step in found if ended.get(step.location, 0) < step.since)
    return OpenWork(interruptions=interruptions, running=running)


async def read_report(store: Store, run: Run, records: Sequence[Record], events: Sequence[Event]) -> RunReport:
    """Summarize a run, with what it waits for or has under way."""
    work = await read_open_work(store, run, records)
    return replace(report(run, records, events, work.interruptions), waits=work.waits, running=work.running)


def report(
    run: Run, records: Sequence[Record], events: Sequence[Event], interruptions: Sequence[Interruption] = ()
) -> RunReport:
    """Summarize a run from its row, history, events and interruptions."""
    started = [event.at for event in events if event.kind == "started"]
    steps = _steps(records, interruptions)
    errors = [error for step in steps for error in step.errors]
    errors += _of_run(run, events)
    return RunReport(
        run=run,
        attempts=run.attempt,
        last_retry_at=started[-1] if run.attempt > 1 and started else 0,
        started_at=min([*started, run.started_at or run.finished_at]),
        finished_at=run.finished_at,
        updated_at=_updated_at(run, records, events),
        steps=tuple(steps),
        errors=tuple(sorted(errors, key=lambda error: error.at)),
        interruptions=tuple(interruptions),
    )


def _updated_at(run: Run, records: Sequence[Record], events: Sequence[Event]) -> int:
    """Time of the last change of a run; a column of its own would have to be written at every step."""
    times = [run.created_at, run.started_at, run.finished_at, run.deleted_at]
    if run.status in (Status.PENDING, Status.BLOCKED):
        # Since when it has been so.
        times.append(run.wake_at)
    return max(*times, *(record.at for record in records[-1:]), *(event.at for event in events[-1:]))


def _steps(records: Sequence[Record], interruptions: Sequence[Interruption]) -> list[StepReport]:
    by_place: dict[str, list[Record]] = {}
    for record in records:
        if record.kind in _OPERATIONS:
            by_place.setdefault(record.location, []).append(record)
    kept = original_records(records)
    return [_step(location, found, kept, interruptions) for location, found in by_place.items()]


def _step(
    location: str, records: Sequence[Record], kept: Mapping[int, Record], interruptions: Sequence[Interruption]
) -> StepReport:
    last = kept.get(records[-1].seq, records[-1])
    kind = RecordKind.STEP if last.kind in _ATTEMPT_STATUS else last.kind
    return StepReport(
        location=location,
        kind=kind.value,
        status=_ATTEMPT_STATUS.get(last.kind, "failed" if last.failed else "completed"),
        attempts=last.attempts,
        started_at=last.started_at,
        finished_at=0 if last.kind is RecordKind.BEGIN else last.at,
        errors=tuple(_mishap(record) for record in records if record.failed),
        interruptions=_interruptions_of(last, records, interruptions),
    )


def _interruptions_of(
    last: Record, records: Sequence[Record], interruptions: Sequence[Interruption]
) -> tuple[Interruption, ...]:
    """Match interruptions with the attempts of a step that neither failed nor succeeded."""
    if last.kind is not RecordKind.STEP:
        return ()
    failures = [
        one.attempts for one in records if one.kind is RecordKind.ATTEMPT and one.run_attempt == last.run_attempt
    ]
    number = last.attempts - 1 - (failures[-1] if failures else 0)
    possible = [
        one
        for one in interruptions
        if one.attempt == last.run_attempt
        and one.at <= last.started_at
        and (one.steps is None or last.location in one.steps)
    ]
    return tuple(possible[-number:]) if number > 0 else ()


def _mishap(record: Record) -> FailedAttempt:
    failure = Failure.read(record.payload)
    return FailedAttempt(
        at=record.at, location=record.location, attempt=record.attempts, error=failure.type, message=failure.message,
        retry_at=record.retry_at,
    )  # fmt: skip


def _of_run(run: Run, events: Sequence[Event]) -> list[FailedAttempt]:
    errors: list[FailedAttempt] = []
    attempt = 1
    for event in events:
        if event.kind not in _FAILURES:
            continue
        data = msgspec.json.decode(event.data)
        retried = event.kind == "retried"
        attempt = data.get("attempt", attempt + 1) - 1 if retried else attempt
        if "error" in data:
            errors.append(
                FailedAttempt(
                    at=event.at, location="", attempt=attempt, error=data["error"], message=data.get("message", ""),
                    retry_at=data.get("at", 0) if retried else 0,
                )
            )  # fmt: skip
        attempt += retried
    if not errors and run.error is not None and run.status in (Status.FAILED, Status.CANCELLED, Status.BLOCKED):
        failure = Failure.read(run.error)
        at = run.finished_at
        errors.append(
            FailedAttempt(at=at, location="", attempt=run.attempt, error=failure.type, message=failure.message)
        )
    return errors


#: Waits and steps that one sentence names.
NAMED = 8

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def ago(moment: int, now: int) -> str:
    """Time that has passed since a moment."""
    return f"{span(now - moment)} ago"


def span(duration: int) -> str:
    """A length of time, to the second, in two units at most."""
    return length(max(0, round(duration / 1e6)) * 1_000_000)


def day(moment: int) -> str:
    """A time to the second, with the day of the week."""
    return f"{_EPOCH + datetime.timedelta(microseconds=moment):%A %Y-%m-%d %H:%M:%S} UTC"


def waits(found: RunWaits, now: int) -> str:
    """Everything that a run waits for, named up to a bound."""
    phrases = [_wait(one, now) for one in found.waits[:NAMED]]
    more = len(found.waits) - len(phrases) + found.more
    return "; ".join([*phrases, *([f"{more} more"] if more else [])])


def _wait(wait: Wait, now: int) -> str:
    since = f" since {day(wait.since)}" if wait.since else ""
    until = f" until {day(wait.until)} (in {span(wait.until - now)})" if wait.until else ""
    match wait.kind:
        case WaitKind.MESSAGE:
            return f"message {wait.name!r}{since}{', at most' if until else ''}{until}"
        case WaitKind.CHILD:
            return f"child {wait.name!r} ({wait.detail}){since}"
        case WaitKind.RUN:
            return f"{wait.detail or 'the end'} of run {wait.name!r}{since}"
        case WaitKind.RETRY:
            return f"the next attempt at step {wait.name!r}{until}"
        case WaitKind.LIMIT | WaitKind.BREAKER:
            return f"{wait.kind} {wait.name!r}, which holds back step {wait.detail!r}{since}"
        case WaitKind.COMPLETION:
            return f"its completion from outside{since}{', at most' if until else ''}{until}"
        case WaitKind.TIMER:
            return f"timer {wait.name!r}{until}"


def running_of(run: Run, workers: Sequence[WorkerInfo]) -> tuple[RunningStep, ...]:
    """Steps of a run that its worker had under way at its last heartbeat."""
    return tuple(
        step
        for worker in workers
        if worker.id == run.worker
        for step in worker.running.steps
        if step.run_id == run.id and step.token == run.token
    )


def running(steps: Sequence[RunningStep], now: int) -> str:
    """Sentence about steps that are under way; empty if there are none."""
    if not steps:
        return ""
    named = ", ".join(_running_step(step, now) for step in steps[:NAMED])
    more = f" and {len(steps) - NAMED} more" if len(steps) > NAMED else ""
    return f" Under way at its last heartbeat: {named}{more}."


def _running_step(step: RunningStep, now: int) -> str:
    attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
    heard = f", last heartbeat {ago(step.heartbeat_at, now)}" if step.heartbeat_at else ""
    return f"{step.location!r} for {span(now - step.since)}{attempt}{heard}"


def silence(worker: WorkerInfo, now: int) -> str:
    """Say when a worker that is late was last heard of, and when others take over; empty if it is not late."""
    late = now - worker.heartbeat_at
    if worker.status is WorkerStatus.ALIVE and not worker.is_late(worker.read_at or now):
        return ""
    left = worker.lease - late
    when = f"in {span(left)}" if left > 0 and worker.status is WorkerStatus.ALIVE else "at the next sweep"
    return f"last heard of {seconds_ago(late)}, taken over {when}"


def seconds_ago(late: int) -> str:
    """Time that has passed."""
    return f"{span(late)} ago"
