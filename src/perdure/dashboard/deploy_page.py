"""The page of deploy checks: the latest report by type, and the reports before it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from starlette.responses import Response

from perdure.client.session import session_of
from perdure.core.model.documents import StoredDeployReport, TypeFindings
from perdure.dashboard.texts import age, count
from perdure.dashboard.visit import Visit
from perdure.errors import PerdureError

#: Runs that a check from the page replays.
CHECKED = 1000


async def deploy(visit: Visit) -> Response:
    """The latest report, or the one in the URL, and a list of the others."""
    store = await session_of(visit.engine).connect()
    now = await store.now()
    reports = await visit.engine.audit.deploy_checks(limit=20)
    chosen = visit.request.query_params.get("report", "")
    report = next((one for one in reports if one.id == chosen), reports[0] if reports else None)
    return visit.render(
        "deploy.html",
        page="deploy",
        title="Deploy",
        sentence=_sentence(report, now),
        report=report,
        types=[_shown(visit, one) for one in report.types] if report is not None else [],
        reports=reports,
        can_check=visit.operates and bool(visit.engine.workflows),
        now=now,
    )


def _shown(visit: Visit, one: TypeFindings) -> TypeFindings:
    return replace(
        one, expected=visit.shown.text(one.expected), found=visit.shown.text(one.found), fix=visit.shown.text(one.fix)
    )


def _sentence(report: StoredDeployReport | None, now: int) -> str:
    if report is None:
        return "No deploy was checked yet."
    build = f"build {report.build}" if report.build else "the code"
    when = age(report.at, now)
    name = f"{build[:1].upper()}{build[1:]}"
    if not report.checked:
        return f"{name} was checked {when}; no run was unfinished."
    if report.ok:
        return f"{name} fits: {count(report.checked, 'unfinished run')} checked {when}, and all go on."
    bad = [one.type for one in report.types if one.diverged]
    some = f"{', '.join(bad[:3])}{' and more' * (len(bad) > 3)}"
    return f"{count(report.diverged, 'run')} of {report.checked:,} would diverge with {build}: {some}. Fix it first."


async def confirm_check(visit: Visit, problem: str = "") -> Response:
    """The page that says what a check does."""
    return visit.render(
        "confirm.html",
        status=422 if problem else 200,
        page="deploy",
        title="Check the code of this server",
        sentence=f"Up to {CHECKED:,} unfinished runs, newest first, are replayed against the workflows of this server. "
        "Runs stay as they are; a summary is stored.",
        facts=[*sorted(visit.engine.workflows)[:20]],
        fields=[],
        button="Check now",
        danger=False,
        problem=problem,
        action=visit.url("deploy", "check"),
        back=visit.url("deploy"),
    )


async def perform_check(visit: Visit, form: Mapping[str, str]) -> Response:
    """Check, and lead to the report."""
    try:
        await visit.engine.check(limit=CHECKED)
    except PerdureError as error:
        return await confirm_check(visit, problem=str(error))
    return visit.redirect(visit.url("deploy"))
