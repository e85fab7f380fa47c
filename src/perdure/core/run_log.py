"""Lines of a run's log that are kept with the run."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.outputs import NewOutput, Output, OutputKind
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Most lines that one run may keep, and that one call reads.
MOST_LINES = 10_000
#: Longest text and traceback of a line that is kept, in characters.
LONGEST_TEXT = 2000
LONGEST_TRACEBACK = 8000


class LoggedLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A log line of a run, as `perdure logs` shows it."""

    #: Number of the line in the log of its run; it rises.
    number: int = 0
    #: Time of the line, in microseconds since the epoch.
    at: int
    #: Name of the level, such as `INFO`.
    level: str
    #: Name of the logger.
    logger: str
    text: str
    #: Step or activity whose code logged the line; empty for workflow code and for Perdure itself.
    location: str = ""
    #: Attempt at the step, the activity or the run, from 1; 0: unknown.
    attempt: int = 0
    #: Error with its traceback; empty if the line has none.
    traceback: str = ""


_DECODER = decoder_for(LoggedLine)


def clipped(text: str, longest: int) -> str:
    """Text that every database stores, of bounded length: its beginning."""
    sound = text.encode(errors="replace").decode()
    return sound if len(sound) <= longest else f"{sound[:longest]}…"


def clipped_end(text: str, longest: int) -> str:
    """Text that every database stores, of bounded length: its end."""
    sound = text.encode(errors="replace").decode()
    return sound if len(sound) <= longest else f"…{sound[-longest:]}"


def line_output(line: LoggedLine, key: str) -> NewOutput:
    """The output that stores a line; `key` tells it from all other lines of the run."""
    return NewOutput(kind=OutputKind.LOG, name="", payload=msgspec.json.encode(line).decode(), key=key)


def line_of(output: Output) -> LoggedLine:
    """Decode a line; one that cannot be decoded says so."""
    try:
        line = _DECODER.decode(output.payload)
    except msgspec.MsgspecError as error:
        line = LoggedLine(at=output.at, level="ERROR", logger="perdure", text=f"this line cannot be read: {error}")
    return msgspec.structs.replace(line, number=output.position)


def check_log_page(after: object, limit: object) -> tuple[int, int]:
    """Check the number after which a page of lines begins, and its length. Raises `UsageError`."""
    last = -1 if after is None else check_whole("after", after, 0)
    most = check_whole("limit", limit, 1)
    if last >= 2**63 or most > MOST_LINES:
        raise UsageError(f"logs(after={brief(after)}, limit={brief(limit)}): a run keeps at most {MOST_LINES} lines")
    return last, most
