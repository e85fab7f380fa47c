"""Stored errors that are damaged, foreign or made to harm: read as far as possible, and restored as some error."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.errors import StepFailed

WHOLE = bool(os.environ.get("PERDURE_PROVE"))


class Refuses(Exception):
    def __init__(self, *args: object) -> None:
        raise RuntimeError("not today")


class RefusesToBe(Exception):
    def __new__(cls, *args: object) -> RefusesToBe:
        raise RuntimeError("not today")


class IsAnother(Exception):
    def __new__(cls, *args: object) -> Any:
        return object.__new__(Refuses)


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not today")

    __repr__ = __str__


class TakesNoNote(Exception):
    def add_note(self, note: str, /) -> None:
        raise RuntimeError("not today")


class Counts(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"{number + 1} of them")
        self.number = number

    @property
    def half(self) -> float:
        return self.number / 2


class OddGroup(ExceptionGroup[Exception]):
    def __new__(cls, *args: Any) -> OddGroup:
        raise RuntimeError("not today")


OWN = [Refuses, RefusesToBe, IsAnother, CannotBeShown, TakesNoNote, Counts, OddGroup]
types = ErrorTypes(OWN)

NAMES = [
    *types._known, *(f"{__name__}.{one.__name__}" for one in OWN), "wave.Error", "os.system", "builtins.eval", "",
    "perdure.core.codec.failure.Failure", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "BaseExceptionGroup",
]  # fmt: skip
ATTRIBUTES = [
    "add_note",
    "args",
    "__class__",
    "__dict__",
    "__notes__",
    "with_traceback",
    "failure",
    "number",
    "half",
    "errno",
    "",
]

finite = st.floats(allow_nan=False, allow_infinity=False)
odd = st.sampled_from([2**70, -1, "\0", "\x1b[2J"])
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | odd,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(ATTRIBUTES) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


def described(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Errors as data: with fields of the right type, or of any other."""
    fields = {
        "type": st.sampled_from(NAMES) | plain,
        "message": st.text(max_size=20) | plain,
        "args": plain.map(json.dumps) | st.lists(plain, max_size=6).map(json.dumps) | plain,
        "state": st.dictionaries(st.sampled_from(ATTRIBUTES), plain, max_size=3).map(json.dumps) | plain,
        "notes": st.lists(st.text(max_size=5), max_size=3) | plain,
        "cause": inner | plain,
        "members": st.lists(inner, max_size=3) | plain,
        "traceback": st.text(max_size=20) | plain,
        "not_undone": st.dictionaries(st.text(max_size=5), inner, max_size=2) | plain,
        "given_up": st.text(max_size=5) | plain,
        "unknown": plain,
    }
    return st.fixed_dictionaries({}, optional=fields)


hostile = st.recursive(described(plain), described, max_leaves=4).map(json.dumps)


@given(hostile | plain.map(json.dumps) | st.text(max_size=30) | st.binary(max_size=30))
@settings(max_examples=20_000 if WHOLE else 400, deadline=None)
def test_whatever_is_stored_is_restored_as_an_error(payload: str | bytes) -> None:
    before = set(sys.modules)
    failure = Failure.read(payload)
    error = types.restore(failure, run_id="r1")
    assert isinstance(error, Exception)
    assert not isinstance(error, StopIteration | StopAsyncIteration)
    traceback.format_exception(error)
    failure.format()
    assert Failure.read(failure.to_json()) == failure
    assert set(sys.modules) == before


@example('{"message": "\\u0000"}')
@given(hostile)
@settings(max_examples=2_000 if WHOLE else 100, deadline=None)
def test_what_can_be_read_of_an_error_is_kept(payload: str) -> None:
    stored, failure = json.loads(payload), Failure.read(payload)
    if isinstance(stored.get("message"), str):
        message = stored["message"]
        # A failure that is read as a whole keeps a NUL as it is; of any other, it is spelled out.
        assert failure.message in (message, message.replace("\0", "\\x00")) or max(message) >= "\ud800"
    if isinstance(stored.get("type"), str) and stored["type"]:
        kind = stored["type"]
        assert failure.type in (kind, kind.replace("\0", "\\x00")) or max(kind) >= "\ud800"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ("boom", "boom"),
        ('"boom"', "boom"),
        ("null", "an error that says nothing"),
        ("[1]", "[1]"),
        ('{"type":5,"message":"m"}', "5: m"),
        ('{"type":"E","message":{"code":7}}', 'E: {"code":7}'),
        ('{"type":"E","message":"m","notes":"n","cause":"c","members":7}', "E: m"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (None, "Exception"),
    ],
)
def test_an_error_in_another_format_is_read_as_far_as_possible(payload: str | bytes | None, shown: str) -> None:
    assert str(Failure.read(payload)) == shown


@pytest.mark.parametrize("levels", [10, 100, 900, 5_000, 200_000])
@pytest.mark.parametrize(
    ("before", "after"), [('{"cause":', "}"), ('{"members":[', "]}"), ('{"not_undone":{"x":', "}}")]
)
def test_an_error_of_any_depth_is_read(levels: int, before: str, after: str) -> None:
    failure = Failure.read(before * levels + "{}" + after * levels)
    assert isinstance(types.restore(failure), Exception)
    assert isinstance(failure.format(), str)


@pytest.mark.parametrize("kind", OWN)
def test_a_class_that_does_not_cope_with_what_is_stored_leads_to_another_error(kind: type[Exception]) -> None:
    for args in (None, "[]", '["x"]', "[1,2,3]", "{"):
        failure = Failure(type=f"{__name__}.{kind.__name__}", message="m", args=args, notes=("n",), traceback="t")
        error = types.restore(failure)
        assert isinstance(error, kind | StepFailed)


def test_stored_data_is_never_pickled() -> None:
    root = Path(sys.modules["perdure"].__file__ or "").parent
    users = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "import pickle" in path.read_text()}
    # Only between processes that one program has started: a worker's, and those that resume a crashed run in a test.
    of_crash_tests = {f"testing/crash_{name}.py" for name in ("processes", "report", "state")}
    assert users - of_crash_tests == {"worker/steps/processes.py"}
