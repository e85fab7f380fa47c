"""Histories of runs in a file, to be replayed without a database.

The file is JSON Lines, in UTF-8. Its first line is the header: `{"perdure": "histories", "version": 1, …}`. Each
further line is one run: `{"sum": "…", "history": {…}}`. `sum` is the beginning of the SHA-256 of the bytes of
`history`, so that a damaged line is noticed even if it is JSON. A reader ignores fields that it does not know, and
refuses a newer version. Payloads are as they are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.headers import with_headers
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import DeployReport
from perdure.core.model.run import Run
from perdure.core.redaction import Redaction
from perdure.errors import UsageError

FORMAT = "histories"
VERSION = 1
#: Bytes of the first line, at most.
LONGEST_HEADER = 65_536
_SUM_CHARACTERS = 16


class HistoriesHeader(Struct, frozen=True, kw_only=True):
    """First line of a file of histories."""

    perdure: str
    version: int
    #: Time of the export, in microseconds since the epoch, and the build that exported.
    exported_at: int = 0
    build: str = ""
    #: Parts of payloads were replaced.
    redacted: bool = False


class RunHistory(Struct, frozen=True, kw_only=True):
    """A run with all that its replay needs."""

    run: Run
    records: tuple[Record, ...]
    #: Locations of children whose outcome the history does not have yet.
    children: tuple[str, ...] = ()
    #: Parts of the payloads were replaced.
    redacted: bool = False


class _HistoryLine(Struct, frozen=True):
    sum: str
    history: Raw


class DamagedLine(Struct, frozen=True):
    """A line of a file that cannot be read, by its number, from 1."""

    line: int
    error: str


class UnreadableRun(Struct, frozen=True, kw_only=True):
    """A run that an export left out, because it cannot be read, and why."""

    run_id: str
    error: str


class ExportReport(Struct, frozen=True, kw_only=True):
    """Numbers of runs and records that were written to a file; `more`: there are others beyond the limit."""

    runs: int = 0
    records: int = 0
    more: bool = False
    #: Runs that were left out.
    unreadable: tuple[UnreadableRun, ...] = ()


class HistoriesReport(DeployReport, frozen=True, kw_only=True):
    """Result of the replay of a file."""

    #: Lines that could not be read; the others were replayed.
    damaged: tuple[DamagedLine, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every run can continue with this code, and every line could be read."""
        return not self.damaged and all(finding.is_warning for finding in self.findings)


_header = decoder_for(HistoriesHeader)
_line = decoder_for(_HistoryLine)
_history = decoder_for(RunHistory)


def to_line(history: RunHistory) -> bytes:
    """Encode a run as a line of a file."""
    body = msgspec.json.encode(history)
    return msgspec.json.encode(_HistoryLine(_sum(body), Raw(body))) + b"\n"


def to_header(header: HistoriesHeader) -> bytes:
    """Encode the first line of a file."""
    return msgspec.json.encode(header) + b"\n"


def read_histories(lines: Iterable[bytes], name: str) -> Iterator[RunHistory | DamagedLine]:
    """Decode a file a line at a time; a line that cannot be read becomes a `DamagedLine`.

    Raises `UsageError` if it is no file of histories, or was written by a newer version of Perdure.
    """
    numbered = enumerate(lines, 1)
    header = _read_header(next(numbered, (1, b""))[1], name)
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            found = _line.decode(line)
            if found.sum != _sum(bytes(found.history)):
                raise ValueError("its checksum does not fit; the line was changed")
            history = _history.decode(bytes(found.history))
            yield replace(history, redacted=history.redacted or header.redacted)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield DamagedLine(number, " ".join(str(error).split()))


def _read_header(line: bytes, name: str) -> HistoriesHeader:
    try:
        header = _header.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        header = HistoriesHeader(perdure="", version=0)
    if header.perdure != FORMAT:
        raise UsageError(f"{name} is no file of histories: its first line is no header; write one: perdure export")
    if header.version > VERSION:
        raise UsageError(
            f"{name} has version {header.version} of the format, and this Perdure reads versions up to {VERSION}; "
            "install the version that wrote it, or export it anew"
        )
    return header


def _sum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:_SUM_CHARACTERS]


def portable(run: Run) -> Run:
    """A run without what no replay needs: its outcome, its lease, its idempotency key and its attributes."""
    return replace(
        run, output=None, error=None, nonce="", worker=None, idempotency_key=None, lease_until=0, attributes=None
    )


def without_proof(history: RunHistory) -> RunHistory:
    """A history without the seed of an activity, which proves the tokens of its attempts and which no replay needs.

    A history of nothing but attempts at its own type, or of nothing, is taken for that of an activity.
    """
    run = history.run
    if any(one.kind is not RecordKind.ATTEMPT or one.location != run.type for one in history.records):
        return history
    return replace(history, run=replace(run, seed=""))


def redact_history(history: RunHistory, redaction: Redaction) -> RunHistory:
    """Replace parts of the input, of the headers and of all payloads."""
    run = history.run
    headers = {name: str(redaction.member(name, value)) for name, value in run.headers.items()}
    return replace(
        history,
        run=replace(run, input=_redacted(run.input, redaction) or "", options=with_headers(run.options, headers)),
        records=tuple(replace(one, payload=_redacted(one.payload, redaction)) for one in history.records),
        redacted=True,
    )


def _redacted(payload: str | None, redaction: Redaction) -> str | None:
    if payload is None:
        return None
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return redaction.text(payload)
    return msgspec.json.encode(redaction.value(value)).decode()
