"""A report on a run, from its row, its history and its audit trail.

Of a run that is tried again as a whole, the row keeps the last error only: the earlier ones are in the trail, as long as that is
kept and was not pruned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.core.codec.failure import Failure
from perdure.core.model.interruption import Interruption
from perdure.core.model.run import Event, Kind, Record, Run, Status
from perdure.core.model.run_report import Mishap, RunReport, StepReport, originals

_OPERATIONS = (Kind.STEP, Kind.ATTEMPT, Kind.CHILD, Kind.TIMER)
#: Ends that are errors.
_FAILURES = ("retried", "failed", "cancelled", "expired", "blocked")


def report(
    run: Run, records: Sequence[Record], events: Sequence[Event], interruptions: Sequence[Interruption] = ()
) -> RunReport:
    """What a person asks of a run."""
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
        steps=tuple(steps),
        errors=tuple(sorted(errors, key=lambda error: error.at)),
        interruptions=tuple(interruptions),
    )


def _steps(records: Sequence[Record], interruptions: Sequence[Interruption]) -> list[StepReport]:
    by_place: dict[str, list[Record]] = {}
    for record in records:
        if record.kind in _OPERATIONS:
            by_place.setdefault(record.location, []).append(record)
    kept = originals(records)
    return [_step(location, found, kept, interruptions) for location, found in by_place.items()]


def _step(
    location: str, records: Sequence[Record], kept: Mapping[int, Record], interruptions: Sequence[Interruption]
) -> StepReport:
    last = kept.get(records[-1].seq, records[-1])
    kind = Kind.STEP if last.kind is Kind.ATTEMPT else last.kind
    return StepReport(
        location=location,
        kind=kind.value,
        status="retrying" if last.kind is Kind.ATTEMPT else "failed" if last.failed else "completed",
        attempts=last.attempts,
        started_at=last.started_at,
        finished_at=last.at,
        errors=tuple(_mishap(record) for record in records if record.failed),
        interruptions=_interruptions_of(last, records, interruptions),
    )


def _interruptions_of(
    last: Record, records: Sequence[Record], interruptions: Sequence[Interruption]
) -> tuple[Interruption, ...]:
    """What interrupted the attempts that are counted in the record of a step and did not fail."""
    if last.kind is not Kind.STEP:
        return ()
    failures = [one.attempts for one in records if one.kind is Kind.ATTEMPT and one.run_attempt == last.run_attempt]
    number = last.attempts - 1 - (failures[-1] if failures else 0)
    possible = [
        one
        for one in interruptions
        if one.attempt == last.run_attempt
        and one.at <= last.started_at
        and (one.steps is None or last.location in one.steps)
    ]
    return tuple(possible[-number:]) if number > 0 else ()


def _mishap(record: Record) -> Mishap:
    failure = Failure.from_json(record.payload or "{}")
    return Mishap(
        at=record.at, location=record.location, attempt=record.attempts, error=failure.type, message=failure.message,
        retry_at=record.retry_at,
    )  # fmt: skip


def _of_run(run: Run, events: Sequence[Event]) -> list[Mishap]:
    errors: list[Mishap] = []
    attempt = 1
    for event in events:
        if event.kind not in _FAILURES:
            continue
        data = msgspec.json.decode(event.data)
        retried = event.kind == "retried"
        attempt = data.get("attempt", attempt + 1) - 1 if retried else attempt
        if "error" in data:
            errors.append(
                Mishap(
                    at=event.at, location="", attempt=attempt, error=data["error"], message=data.get("message", ""),
                    retry_at=data.get("at", 0) if retried else 0,
                )
            )  # fmt: skip
        attempt += retried
    if not errors and run.error is not None and run.status in (Status.FAILED, Status.CANCELLED, Status.BLOCKED):
        failure = Failure.from_json(run.error)
        at = run.finished_at
        errors.append(Mishap(at=at, location="", attempt=run.attempt, error=failure.type, message=failure.message))
    return errors
