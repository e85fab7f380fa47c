"""Phrases of the sentences that explain a run: times, waits, and steps that are under way."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from perdure.core.model.run import Run
from perdure.core.model.visibility import RunningStep, RunWaits, Wait, WaitKind
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus

#: Waits and steps that one sentence names.
NAMED = 8

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def ago(moment: int, now: int) -> str:
    """How long ago a time was."""
    return f"{span(now - moment)} ago"


def span(duration: int) -> str:
    """A length of time, to the second."""
    return str(datetime.timedelta(seconds=max(0, round(duration / 1e6))))


def at(moment: int) -> str:
    """A time in ISO 8601."""
    return (_EPOCH + datetime.timedelta(microseconds=moment)).isoformat()


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
        case WaitKind.RETRY:
            return f"the next attempt at step {wait.name!r}{until}"
        case WaitKind.LIMIT | WaitKind.BREAKER:
            return f"{wait.kind} {wait.name!r}, which holds back step {wait.detail!r}{since}"
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
    named = ", ".join(_step(step, now) for step in steps[:NAMED])
    more = f" and {len(steps) - NAMED} more" if len(steps) > NAMED else ""
    return f" Under way at its last heartbeat: {named}{more}."


def _step(step: RunningStep, now: int) -> str:
    attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
    heard = f", last heartbeat {ago(step.heartbeat_at, now)}" if step.heartbeat_at else ""
    return f"{step.location!r} for {span(now - step.since)}{attempt}{heard}"


def silence(worker: WorkerInfo, now: int) -> str:
    """Say when a worker that is late was last heard of, and when others take over; empty if it is not late."""
    late = now - worker.heartbeat_at
    if worker.status is WorkerStatus.ALIVE and not worker.is_late(now):
        return ""
    left = worker.lease - late
    when = f"in {left / 1e6:.0f} s" if left > 0 and worker.status is WorkerStatus.ALIVE else "at the next sweep"
    return f"last heard of {seconds_ago(late)}, taken over {when}"


def seconds_ago(late: int) -> str:
    """How long ago, in seconds up to two minutes."""
    return f"{max(0, late) / 1e6:.0f} s ago" if late < 120_000_000 else f"{span(late)} ago"
