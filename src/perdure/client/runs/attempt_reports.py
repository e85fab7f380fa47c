"""Reports from outside about attempts at activities that have returned `Pending`."""

from __future__ import annotations

from typing import Any

from perdure.client.session import Session
from perdure.core.codec.failure import Failure
from perdure.core.model.attempt_reports import (
    AttemptReport,
    AttemptToken,
    ReportKind,
    ReportOutcome,
    make_token,
    not_an_attempt,
    read_token,
)
from perdure.core.model.run import Reason
from perdure.core.option_checks import check_text
from perdure.core.printed_text import brief
from perdure.errors import AttemptOver, BadArguments, StepFailed, UsageError
from perdure.workflow.activity import Activity


async def complete(session: Session, token: str, value: object) -> None:
    """Complete an activity, having checked the result against the declared type if the code is known here."""
    store, found = await session.connect(), read_token(check_text("token", token))
    run = await store.get(found.run_id)
    known = None if run is None or not found.is_genuine(run.seed) else session.workflows.get(run.type)
    what = f"result of run {found.run_id!r}"
    returns = known.signature.returns if isinstance(known, Activity) else Any
    payload = session.codec.encode(value, what, returns)
    if returns is not Any:
        # The value may be plain JSON, of a webhook for example; it is stored as the activity would have stored it.
        payload = session.codec.encode(session.codec.decode(payload, returns, what), what, returns)
    await _report(session, found, ReportKind.COMPLETED, payload)


async def fail(session: Session, token: str, error: BaseException | Failure | str) -> None:
    """Report the failure of an attempt."""
    await session.connect()
    found = read_token(check_text("token", token))
    await _report(session, found, ReportKind.FAILED, failure_of(session, error).to_json())


async def pending_token(session: Session, run_id: str) -> str:
    """Make the token of the attempt of an activity that has returned `Pending`. Raises `UsageError`.

    If the attempt ends meanwhile, the token is that of no attempt, and a report with it raises `AttemptOver`.
    """
    run = await session.find(run_id)
    if run.reason is not Reason.COMPLETION:
        raise UsageError(f"run {run_id!r} does not wait to be completed from outside")
    # The token has the number of the record that the attempt would write.
    history = await (await session.connect()).history(run_id)
    return make_token(run_id, run.generation, history[-1].seq + 1 if history else 0, run.seed)


def failure_of(session: Session, error: object) -> Failure:
    """Make the failure that reports an error. Raises `BadArguments`."""
    if isinstance(error, Failure):
        return error
    if not isinstance(error, BaseException | str):
        raise BadArguments(f"error is an exception or a message, not {brief(error)}")
    raised = StepFailed(check_text("error", error)) if isinstance(error, str) else error
    return Failure.of(raised, session.codec)


async def heartbeat(session: Session, token: str, details: object) -> None:
    """Report a heartbeat of an attempt."""
    await session.connect()
    found = read_token(check_text("token", token))
    payload = None if details is None else session.codec.encode(details, f"heartbeat of run {found.run_id!r}")
    await _report(session, found, ReportKind.HEARTBEAT, payload)


async def _report(session: Session, token: AttemptToken, kind: ReportKind, payload: str | None) -> None:
    report = AttemptReport(token=token, kind=kind, payload=payload)
    outcome = await (await session.connect()).report_attempt(report, session.actor)
    raise_refusal(outcome, token)


def raise_refusal(outcome: ReportOutcome, token: AttemptToken) -> None:
    """Raise the error of a report that was refused."""
    run_id = token.run_id
    if outcome is ReportOutcome.UNKNOWN:
        raise not_an_attempt()
    if outcome is ReportOutcome.OVER:
        raise AttemptOver(
            f"the attempt at activity run {run_id!r} that this token belongs to is over: it timed out, or it failed; "
            "a later attempt has its own token",
            run_id=run_id,
        )
    if outcome is ReportOutcome.CANCELLED:
        raise AttemptOver(f"activity run {run_id!r} was cancelled", run_id=run_id)
    if outcome is ReportOutcome.ENDED:
        raise AttemptOver(f"activity run {run_id!r} has ended, with another outcome than this one", run_id=run_id)
