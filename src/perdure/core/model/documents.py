"""Documents for people: sources of workflows and reports of deploy checks, by kind, name and build.

Nothing in Perdure depends on them. Their size is bounded, and only the latest few are kept.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.reports import DeployReport

#: Characters of a build, and of a source or docstring that are kept.
BUILD_CHARACTERS = 200
SOURCE_CHARACTERS = 64_000
DOC_CHARACTERS = 8_000
#: Builds of a type whose sources are kept, and reports of deploy checks that are kept.
SOURCES_KEPT = 10
REPORTS_KEPT = 10
#: Types that a stored report lists, and characters of the texts of each.
REPORTED_TYPES = 200
_TEXT_CHARACTERS = 500


class DocumentKind(StrEnum):
    """Kind of a document."""

    #: Source of a workflow, by type and build.
    SOURCE = "source"
    #: Report of a deploy check, by id.
    DEPLOY = "deploy"


class Document(Struct, frozen=True, kw_only=True):
    """A document, as stored. `body` is JSON."""

    kind: DocumentKind
    name: str
    build: str = ""
    body: str = "{}"
    #: Time of the last change, and its author.
    at: int = 0
    actor: str = ""


class SourceText(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a document of the kind `source`."""

    doc: str = ""
    source: str = ""
    #: Name of the file, without the folders of the machine, and line of the first line of the source.
    file: str = ""
    line: int = 0
    #: True if the source was longer than what is kept.
    cut: bool = False


class WorkflowSource(Struct, frozen=True, kw_only=True):
    """Source and docstring of a workflow or an activity, as the workers of a build registered them."""

    type: str
    build: str
    doc: str
    source: str
    #: Name of the file, and line of the first line of the source in it; empty and 0 if they are unknown.
    file: str
    line: int
    #: True if the source was longer than what is kept.
    cut: bool
    #: Time of the registration.
    registered_at: int


class TypeFindings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a deploy check for the runs of one type."""

    type: str
    #: Runs that were checked, and those of them that the code does not fit.
    checked: int
    diverged: int = 0
    #: Runs that go on although an argument differs.
    warned: int = 0
    #: First finding: run, problem, operation in the history, operation of the code, and the likely fix.
    run_id: str = ""
    problem: str = ""
    expected: str = ""
    found: str = ""
    fix: str = ""

    @property
    def goes_on(self) -> int:
        """Number of checked runs that go on with the code."""
        return self.checked - self.diverged


class DeployBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a document of the kind `deploy`."""

    checked: int = 0
    more: bool = False
    types: tuple[TypeFindings, ...] = ()
    #: Number of types that are not listed.
    more_types: int = 0


class StoredDeployReport(Struct, frozen=True, kw_only=True):
    """Report of a deploy check, as stored: by type, the runs that go on and those that would diverge."""

    id: str
    at: int
    actor: str
    #: Build of the code that was checked.
    build: str
    #: Number of runs that were checked; `more`: there are others beyond the limit of the check.
    checked: int
    more: bool
    #: Types with diverging runs first.
    types: tuple[TypeFindings, ...]
    more_types: int

    @property
    def diverged(self) -> int:
        """Number of checked runs that would diverge, of the types that are listed."""
        return sum(one.diverged for one in self.types)

    @property
    def ok(self) -> bool:
        """True if every checked run goes on with the code."""
        return not self.diverged


_source_decoder = decoder_for(SourceText)
_deploy_decoder = decoder_for(DeployBody)


def deploy_body(report: DeployReport) -> str:
    """Summarize a report by type, as JSON of bounded size."""
    by_type: dict[str, TypeFindings] = {
        type: TypeFindings(type=type, checked=count) for type, count in report.by_type.items()
    }
    bad: set[str] = set()
    for finding in sorted(report.findings, key=lambda one: one.is_warning):
        there = by_type.get(finding.type, TypeFindings(type=finding.type, checked=0))
        first = {} if there.run_id else _first(finding)
        counted = {} if finding.run_id in bad else {"warned": there.warned + 1}
        if not finding.is_warning and finding.run_id not in bad:
            counted = {"diverged": there.diverged + 1}
        bad.add(finding.run_id)
        by_type[finding.type] = msgspec.structs.replace(there, **first, **counted)
    listed = sorted(by_type.values(), key=lambda one: (-one.diverged, -one.warned, one.type))
    body = DeployBody(
        checked=report.checked,
        more=report.more,
        types=tuple(listed[:REPORTED_TYPES]),
        more_types=max(0, len(listed) - REPORTED_TYPES),
    )
    return msgspec.json.encode(body).decode()


def _first(finding: object) -> dict[str, str]:
    names = ("run_id", "problem", "expected", "found", "fix")
    return {name: str(getattr(finding, name))[:_TEXT_CHARACTERS] for name in names}


def deploy_report(document: Document) -> StoredDeployReport:
    """Decode a stored report; one that cannot be read says nothing of any type."""
    try:
        body = _deploy_decoder.decode(document.body)
    except msgspec.MsgspecError:
        body = DeployBody()
    return StoredDeployReport(
        id=document.name,
        at=document.at,
        actor=document.actor,
        build=document.build,
        checked=body.checked,
        more=body.more,
        types=body.types,
        more_types=body.more_types,
    )


def workflow_source(document: Document) -> WorkflowSource:
    """Decode a stored source; one that cannot be read is empty."""
    try:
        body = _source_decoder.decode(document.body)
    except msgspec.MsgspecError:
        body = SourceText()
    return WorkflowSource(
        type=document.name,
        build=document.build,
        doc=body.doc,
        source=body.source,
        file=body.file,
        line=body.line,
        cut=body.cut,
        registered_at=document.at,
    )
