"""Errors as data: `Failure` stores an exception, and `ErrorTypes` restores it.

A `Failure` has an error's class name, message, plain arguments and attributes, notes, cause, group members and the text
of its traceback, each bounded. `ErrorTypes` makes an exception of the original class if that class was known when the
engine started, else a `StepFailed`. Names in data are looked up, never imported and never evaluated.
"""

from __future__ import annotations

import builtins
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from perdure import errors
from perdure.core.codec.codec import Codec
from perdure.core.codec.decoders import decoder_for
from perdure.errors import DecodeError, StepFailed

_MESSAGE_CHARACTERS = 4_000
_TRACEBACK_CHARACTERS = 8_000
_NOTES_CHARACTERS = 8_000
_PLAIN_CHARACTERS = 4_000
#: Levels of causes and members from which a stored failure is read in part only.
_DEEPEST = 64
#: Most errors in one failure: causes, members of groups, and their causes.
_ERRORS = 16

#: Beginning of the names of Perdure's own files.
_PACKAGE = errors.__file__.removesuffix("errors.py")

#: Errors of the user's code, in whose tracebacks Perdure's own frames only bury the line to mend.
_USAGE = (errors.UsageError, errors.WorkflowError)

_plain = msgspec.json.Decoder()


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data. Every field has a default, for failures written by other languages."""

    #: Qualified name of its class, without a module for builtins.
    type: str = "Exception"
    message: str = ""
    #: JSON array of its arguments; None unless plain and small.
    args: str | None = None
    #: JSON object of its plain attributes.
    state: str | None = None
    notes: tuple[str, ...] = ()
    cause: Failure | None = None
    #: Members of an ExceptionGroup.
    members: tuple[Failure, ...] = ()
    traceback: str = ""
    #: Of a run: errors of undos that failed, by the location of the step that was to be undone.
    not_undone: dict[str, Failure] = {}
    #: Of a step: reason why it was not retried, `exhausted` or `fatal`.
    given_up: str = ""
    #: Of a cancelled run: JSON of the value that its code returned after the cancellation.
    partial: str | None = None

    @classmethod
    def of(cls, error: BaseException, codec: Codec) -> Failure:
        """Describe an error. Never raises, even if the error's own methods do."""
        try:
            described = _Describer(codec).describe(error)
        except Exception as problem:
            described = cls(message=f"<describing it raised {type(problem).__name__}>", type=type_name(type(error)))
        assert described is not None
        return described

    def to_json(self) -> str:
        """Encode for the database."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, payload: str | bytes) -> Failure:
        """Decode from the database. Raises `DecodeError`."""
        try:
            return _failure_decoder.decode(payload)
        except Exception as error:
            raise DecodeError(f"cannot decode a stored error: {error}") from error

    @classmethod
    def read(cls, payload: str | bytes | None) -> Failure:
        """Decode from the database as far as possible. Never raises, whatever is stored.

        Fields of a wrong type are left out. Text that is no JSON object is the message of an error of no known type.
        """
        try:
            failure = _failure_decoder.decode(payload or "{}")
        except Exception:
            return _Reader().read(payload or "")
        return failure if _is_shallow(failure) else _Reader().read(payload or "")

    def partial_result(self, returns: Any, codec: Codec) -> Any:
        """Partial result of a cancelled run: of the declared type, or plain if it is not of that type. Never raises."""
        if self.partial is None:
            return None
        for declared in (returns, Any):
            try:
                return codec.decode(self.partial, declared, "partial result")
            except DecodeError:
                continue
        return None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.type, self.message) if part) or "an error that says nothing"

    def format(self) -> str:
        """Text as Python prints a traceback, with cause, notes, members of a group and failed undos."""
        lines: list[str] = []
        if self.cause is not None:
            lines += [self.cause.format(), "", _BECAUSE, ""]
        if self.traceback:
            lines += ["Traceback (most recent call last):", self.traceback.rstrip("\n")]
        lines += [str(self), *self.notes]
        for number, member in enumerate(self.members, 1):
            lines += [f"  +-- {number} of {len(self.members)} --", _indented(member.format())]
        if self.partial is not None:
            lines.append(f"Partial result: {_clip(self.partial, _PLAIN_CHARACTERS)}")
        for location, problem in self.not_undone.items():
            lines += [f"  +-- Undoing {location!r} failed: {problem}", _indented(problem.format())]
        return "\n".join(lines)


_BECAUSE = "The above exception was the direct cause of the following exception:"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.split("\n"))


_failure_decoder = decoder_for(Failure)


class _Reader:
    """Reads errors that are damaged, or that other languages have written in their own way, within a budget."""

    def __init__(self) -> None:
        self._left = _ERRORS

    def read(self, payload: str | bytes) -> Failure:
        text = payload if isinstance(payload, str) else payload.decode(errors="backslashreplace")
        try:
            return self._failure(_plain.decode(text))
        except Exception:
            return Failure(type="", message=_clip(_clean(text), _MESSAGE_CHARACTERS))

    def _failure(self, value: object) -> Failure:
        self._left -= 1
        if not isinstance(value, dict):
            return Failure(type="", message=_text(value))
        undone = value.get("not_undone")
        return Failure(
            type=_text(value.get("type") or "Exception"),
            message=_text(value.get("message")),
            args=_json(value.get("args"), list),
            state=_json(value.get("state"), dict),
            notes=tuple(_text(note) for note in _elements(value.get("notes"))),
            cause=None if value.get("cause") is None or self._left <= 0 else self._failure(value["cause"]),
            members=tuple(self._failure(one) for one in _elements(value.get("members")) if self._left > 0),
            traceback=_text(value.get("traceback")),
            not_undone={name: self._failure(one) for name, one in undone.items() if self._left > 0}
            if isinstance(undone, dict)
            else {},
            given_up=_text(value.get("given_up")),
            partial=partial if isinstance(partial := value.get("partial"), str) else None,
        )


def _is_shallow(failure: Failure) -> bool:
    """Return whether code may descend into the causes and members of a failure."""
    level = [failure]
    for _ in range(_DEEPEST):
        level = [
            one
            for parent in level
            for one in (parent.cause, *parent.members, *parent.not_undone.values())
            if one is not None
        ]
        if not level:
            return True
    return False


def _text(value: object) -> str:
    """A value where text should be."""
    text = "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _clip(_clean(text), _MESSAGE_CHARACTERS)


def _json(value: object, kind: type[Any]) -> str | None:
    """JSON where it should be, also if it was not encoded once more."""
    if isinstance(value, kind):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else None


def _elements(value: object) -> list[Any]:
    return value[:_ERRORS] if isinstance(value, list) else [] if value is None else [value]


class _Describer:
    """Describes one error with its causes and members, within a budget."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._left = _ERRORS
        self._seen: set[int] = set()

    def describe(self, error: BaseException | None) -> Failure | None:
        if error is None or id(error) in self._seen or self._left <= 0:
            return None
        self._seen.add(id(error))
        self._left -= 1
        if type(error) is StepFailed and isinstance(passed := getattr(error, "failure", None), Failure):
            # An error of an unknown class is passed on unchanged, for a process that knows the class.
            return passed
        members = self._members(error)
        return Failure(
            type=type_name(type(error)),
            message=_clip(_message(error), _MESSAGE_CHARACTERS),
            args=None if members else self._plain(_arguments(error)),
            state=self._plain(_state(error)),
            notes=_notes(error),
            cause=self.describe(_cause(error)),
            members=members,
            traceback=_traceback(error),
        )

    def _members(self, error: BaseException) -> tuple[Failure, ...]:
        if not isinstance(error, BaseExceptionGroup):
            return ()
        described = (self.describe(member) for member in error.exceptions)
        return tuple(member for member in described if member is not None)

    def _plain(self, value: object) -> str | None:
        """Encode a value if it is small and survives plain JSON; else None."""
        if not value:
            return None
        try:
            text = self._codec.encode(value, "an error's arguments")
            same = _is_plain(value) and len(text) <= _PLAIN_CHARACTERS
        except Exception:
            return None
        return text if same else None


class ErrorTypes:
    """The classes that errors may be restored as, fixed at construction.

    These are the builtin exceptions, Perdure's own, those in `allowed`, and those in the namespaces of the imported
    modules named in `modules`.
    """

    def __init__(self, allowed: Iterable[type[Exception]] = (), modules: Iterable[str] = ()) -> None:
        self._known: dict[str, type[Exception]] = {}
        for name in sorted(set(modules)):
            module = sys.modules.get(name)
            if module is not None:
                self._learn(_exceptions_in(vars(module), name))
        self._learn(_exceptions_in(vars(builtins), "builtins"))
        self._learn(_exceptions_in(vars(errors), errors.__name__))
        self._learn(allowed)

    def restore(self, failure: Failure, *, run_id: str = "", where: str = "") -> Exception:
        """Make the exception that a failure describes: of its own class if that is known, else a `StepFailed`.

        A note shows the traceback; `where` is its heading, such as `In the step 'charge'`. Never raises: a class whose
        constructor or attributes do not cope with what is stored leads to a `StepFailed`.
        """
        try:
            return self._restore(failure, run_id, where or "Where it happened", _ERRORS)
        except Exception as problem:
            error = _unknown(failure, run_id)
            error.add_note(f"An exception of its class could not be made: {type(problem).__name__}")
            return error

    def _restore(self, failure: Failure, run_id: str, where: str, levels: int) -> Exception:
        members = [self._restore(member, run_id, where, levels - 1) for member in failure.members] if levels else []
        error = self._group(failure, members) if members else self._instance(failure)
        if error is None:
            error = _unknown(failure, run_id)
        if failure.cause is not None and levels:
            error.__cause__ = self._restore(failure.cause, run_id, where, levels - 1)
        for note in failure.notes:
            error.add_note(note)
        for location, problem in failure.not_undone.items():
            error.add_note(f"What {location!r} did was not undone: {problem}")
        if failure.traceback:
            error.add_note(f"{where} (most recent call last):\n{failure.traceback.rstrip(chr(10))}")
        return error

    def _learn(self, classes: Iterable[type[Exception]]) -> None:
        for each in classes:
            # A coroutine or generator cannot raise these two.
            if not issubclass(each, StopIteration | StopAsyncIteration):
                self._known[type_name(each)] = each

    def _group(self, failure: Failure, members: list[Exception]) -> Exception:
        known = self._known.get(failure.type)
        if known is not None and issubclass(known, ExceptionGroup):
            try:
                return known(failure.message, members)
            except Exception:
                # A plain group in place of one with its own constructor is still caught by `except*`.
                return ExceptionGroup(failure.message, members)
        return ExceptionGroup(failure.message, members)

    def _instance(self, failure: Failure) -> Exception | None:
        known = self._known.get(failure.type)
        if known is None or issubclass(known, BaseExceptionGroup):
            return None
        arguments = _read(failure.args, list)
        error = _construct(known, arguments, failure.message) or _assemble(known, arguments, failure.message)
        if error is None:
            return None
        state = _read(failure.state, dict) or {}
        # A stored value must not hide a method of the error.
        vars(error).update(
            {
                name: value
                for name, value in state.items()
                if not name.startswith("__") and not callable(getattr(known, name, None))
            }
        )
        if _message(error) != failure.message:
            error.add_note(f"Its message was: {failure.message}")
        return error


def _unknown(failure: Failure, run_id: str) -> StepFailed:
    return StepFailed(f"{f'Run {run_id}: ' if run_id else ''}{failure}", failure=failure)


def _construct(known: type[Exception], arguments: list[Any] | None, message: str) -> Exception | None:
    """Call the constructor; None if the message differs, because the constructor decorates it once more."""
    try:
        error = known(*(arguments or ()))
    except Exception:
        return None
    return error if _message(error) == message and type(error) is known else None


def _assemble(known: type[Exception], arguments: list[Any] | None, message: str) -> Exception | None:
    try:
        error = known.__new__(known, *([message] if arguments is None else arguments))
        error.args = (message,) if arguments is None else tuple(arguments)
    except Exception:
        return None
    return error if type(error) is known else None


def _exceptions_in(namespace: Mapping[str, Any], module: str) -> Iterator[type[Exception]]:
    for value in list(namespace.values()):
        if not isinstance(value, type):
            continue
        if issubclass(value, Exception):
            yield value
        elif value.__module__ == module and value.__qualname__.count(".") < 3 and module != "builtins":
            yield from _exceptions_in(vars(value), module)


def _read(payload: str | None, kind: type[Any]) -> Any:
    try:
        value = None if payload is None else _plain.decode(payload)
    except Exception:
        return None
    return value if isinstance(value, kind) else None


def type_name(kind: type[BaseException]) -> str:
    """Name of a class as `Failure.type` has it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return _clean(error.message if isinstance(error, BaseExceptionGroup) else str(error))
    except Exception as problem:
        return f"<its __str__ raised {type(problem).__name__}>"


def _arguments(error: BaseException) -> list[Any]:
    try:
        # OSError and similar classes have arguments here that `args` leaves out.
        reduced = error.__reduce__()
        return list(reduced[1]) if isinstance(reduced, tuple) and reduced[0] is type(error) else list(error.args)
    except Exception:
        return []


def _state(error: BaseException) -> dict[str, Any]:
    try:
        attributes = vars(error)
    except TypeError:
        return {}
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(name, str) and name[:2] != "__" and _is_plain(value)
    }


def _is_plain(value: object, depth: int = 0) -> bool:
    if depth > 8:
        return False
    if type(value) is list:
        return all(_is_plain(each, depth + 1) for each in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(each, depth + 1) for key, each in value.items())
    return type(value) in {type(None), bool, int, float, str}


def _notes(error: BaseException) -> tuple[str, ...]:
    notes, room = [], _NOTES_CHARACTERS
    for note in getattr(error, "__notes__", None) or ():
        if isinstance(note, str) and room > 0:
            notes.append(_clip(_clean(note), room))
            room -= len(notes[-1])
    return tuple(notes)


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _traceback(error: BaseException) -> str:
    try:
        frames = traceback.extract_tb(_first_of_user(error.__traceback__))
        if isinstance(error, _USAGE):
            frames = traceback.StackSummary.from_list([one for one in frames if not one.filename.startswith(_PACKAGE)])
        text = "".join(frames.format())
    except Exception:
        return ""
    return _clip(_clean(text), _TRACEBACK_CHARACTERS)


def _first_of_user(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Skip frames of Perdure before the first of other code; none if there is no other code."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        first = first.tb_next
    return trace if first is None else first


def _clean(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _clip(text: str, limit: int) -> str:
    """Shorten a text that is too long to both of its ends."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


# Not stored with an error, because names with two underscores are left out.
_ATTEMPTS = "__perdure_trial__"


class AttemptSummary(Struct, frozen=True):
    """Number of failed attempts at a step, and the reason for giving up. Travels on the exception."""

    #: Number of attempts.
    attempts: int
    #: Reason for giving up: `exhausted` or `fatal`; empty if unknown.
    given_up: str


def attach_attempts(error: BaseException, summary: AttemptSummary) -> None:
    """Attach a summary to an exception."""
    vars(error)[_ATTEMPTS] = summary


def attempts_of(error: BaseException) -> AttemptSummary | None:
    """The summary attached to an exception; None if no step raised it."""
    found = vars(error).get(_ATTEMPTS)
    return found if isinstance(found, AttemptSummary) else None
