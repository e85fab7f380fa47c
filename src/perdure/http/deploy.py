"""Handlers for deploy checks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from perdure.core.model.reports import DeployFinding, DeployReport
from perdure.http.api import ApiRequest, Limit, Reply
from perdure.http.redaction import Redactor
from perdure.http.views import Page, ShownText, Time, view_of, views_of


class CheckQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of the unfinished runs to check, newest first."""

    type: tuple[str, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class DeployReportView(Struct, frozen=True, kw_only=True):
    """Result of a check: runs that the code of this server does not fit."""

    ok: bool
    checked: int
    more: bool
    findings: tuple[DeployFinding, ...]


def _report_view(report: DeployReport, shown: Redactor) -> DeployReportView:
    findings = tuple(
        structs.replace(one, expected=shown.text(one.expected), found=shown.text(one.found), fix=shown.text(one.fix))
        for one in report.findings
    )
    return view_of(DeployReportView, report, shown, findings=findings)


async def check(api: ApiRequest, query: CheckQuery) -> DeployReportView:
    """Replay unfinished runs against the code of this server. Nothing is written."""
    done = await api.engine.check(types=query.type or None, limit=query.limit, save=False)
    return _report_view(done, api.shown)


class CheckBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of the unfinished runs to check, newest first."""

    types: Annotated[list[str], Meta(max_length=1000)] = []
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000


async def run_deploy_check(api: ApiRequest, body: CheckBody) -> Reply[DeployReportView]:
    """Replay unfinished runs against the code of this server, and store a summary."""
    done = await api.engine.check(types=body.types or None, limit=body.limit)
    return Reply(_report_view(done, api.shown), 201)


class DeployChecksQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of reports."""

    limit: Limit = 10


class TypeFindingsView(Struct, frozen=True, kw_only=True):
    """Result of a check for one type: numbers of runs, and the first finding."""

    type: str
    checked: int
    goes_on: int
    diverged: int
    warned: int
    #: First finding; empty if there is none.
    run_id: str
    problem: str
    expected: ShownText
    found: ShownText
    fix: ShownText


class StoredReportView(Struct, frozen=True, kw_only=True):
    """Stored summary of a deploy check."""

    id: str
    at: Time
    actor: str
    build: str
    ok: bool
    checked: int
    more: bool
    #: Types with diverging runs first; `more_types` are not listed.
    types: tuple[TypeFindingsView, ...]
    more_types: int


async def list_deploy_checks(api: ApiRequest, query: DeployChecksQuery) -> Page[StoredReportView]:
    """List the latest stored summaries of deploy checks, latest first."""
    found = await api.engine.audit.deploy_checks(limit=query.limit)
    return Page(views_of(StoredReportView, found, api.shown))
