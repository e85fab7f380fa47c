"""The page of deploy checks: the latest report by type, and the reports before it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from starlette.responses import Response

from perdure.client.session import session_of
from perdure.core.model.documents import StoredDeployReport, TypeFindings
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.texts import age, count
from perdure.errors import PerdureError

#: Runs that a check from the page replays.
CHECKED = 1000


async def deploy(request: PageRequest) -> Response:
    """The latest report, or the one in the URL, and a list of the others."""
    store = await session_of(request.engine).connect()
    now = await store.now()
    reports = await request.engine.audit.deploy_checks(limit=20)
    chosen = request.http.query_params.get("report", "")
    report = next((one for one in reports if one.id == chosen), reports[0] if reports else None)
    return request.render(
        "deploy.html",
        page="deploy",
        title="Deploy",
        sentence=_sentence(report, now),
        report=report,
        types=[_shown(request, one) for one in report.types] if report is not None else [],
        reports=reports,
        can_check=request.operates and bool(request.engine.workflows),
        now=now,
    )


def _shown(request: PageRequest, one: TypeFindings) -> TypeFindings:
    return replace(
        one,
        expected=request.shown.text(one.expected),
        found=request.shown.text(one.found),
        fix=request.shown.text(one.fix),
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


async def confirm_check(request: PageRequest, problem: str = "") -> Response:
    """The page that says what a check does."""
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="deploy",
        title="Check the code of this server",
        sentence=f"Up to {CHECKED:,} unfinished runs, newest first, are replayed against the workflows of this server. "
        "Runs stay as they are; a summary is stored.",
        facts=[*sorted(request.engine.workflows)[:20]],
        fields=[],
        button="Check now",
        danger=False,
        problem=problem,
        action=request.url("deploy", "check"),
        back=request.url("deploy"),
    )


async def perform_check(request: PageRequest, form: Mapping[str, str]) -> Response:
    """Check, and lead to the report."""
    try:
        await request.engine.check(limit=CHECKED)
    except PerdureError as error:
        return await confirm_check(request, problem=str(error))
    return request.redirect(request.url("deploy"))
