from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.time.duration import microseconds
from perdure.errors import (
    DecodeError,
    Fatal,
    InvalidDuration,
    PerdureError,
    RetryAfter,
    RunFailed,
    StepFailed,
    StepTimeout,
)
from tests.core import declared
from tests.core.declared import Batch, Declined, Keyword, Odd, Shop, Stop, Stubborn

codec = Codec()
HERE = declared.__name__
types = ErrorTypes(modules=[HERE])


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def crossed(error: BaseException) -> Failure:
    return Failure.from_json(Failure.of(error, codec).to_json())


def came_back(error: BaseException) -> Exception:
    return types.restore(crossed(error), run_id="o-42")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        ValueError("a", 1, None, [1.5, {"k": True}]),
        KeyError("missing"),
        ZeroDivisionError("division by zero"),
        FileNotFoundError(2, "No such file or directory", "/nowhere"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("late"),
        Shop.Closed("sunday"),
        json.JSONDecodeError("Expecting value", "doc", 0),
        Fatal("no use"),
        StepTimeout("step charge took over 30 s"),
        UserWarning("careful"),
        ArithmeticError("é \N{PARTY POPPER}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_known_error_comes_back_as_itself(error: Exception) -> None:
    back = came_back(raised(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args


def test_what_an_os_error_knows_comes_back() -> None:
    back = came_back(FileNotFoundError(2, "No such file or directory", "/nowhere"))
    assert isinstance(back, FileNotFoundError)
    assert (back.errno, back.filename) == (2, "/nowhere")


def test_retry_after_keeps_its_delay() -> None:
    back = came_back(RetryAfter("5m", "busy"))
    assert isinstance(back, RetryAfter)
    assert (back.delay, str(back)) == ("5m", "busy")


def test_an_error_whose_constructor_decorates_its_message_is_not_decorated_twice() -> None:
    back = came_back(raised(Declined(51)))
    assert isinstance(back, Declined)
    assert str(back) == "declined with 51"
    assert back.code == 51


def test_an_error_with_keyword_arguments_keeps_its_plain_attributes() -> None:
    back = came_back(Keyword(order="o-42", amounts=[1, 2]))
    assert isinstance(back, Keyword)
    assert (back.order, back.amounts, str(back)) == ("o-42", [1, 2], "o-42")
    assert not hasattr(back, "secret_handle")


def test_arguments_that_are_not_plain_give_way_to_the_message() -> None:
    back = came_back(ValueError(object))
    assert type(back) is ValueError
    assert back.args == ("<class 'object'>",)


def test_a_message_that_cannot_be_rebuilt_is_kept_as_a_note() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    back = came_back(error)
    assert type(back) is UnicodeDecodeError
    assert any(str(error) in note for note in back.__notes__)


def test_an_unknown_error_comes_back_as_a_failed_step_with_the_originals_name() -> None:
    class Local(Exception):
        pass

    back = came_back(raised(Local("boom")))
    assert type(back) is StepFailed
    assert "o-42" in str(back)
    assert "Local: boom" in str(back)
    assert back.failure is not None
    assert back.failure.type.endswith("Local")


def test_an_unknown_error_that_passes_through_is_known_again_where_its_class_is() -> None:
    unknown = ErrorTypes().restore(crossed(raised(Declined(51))), run_id="child")
    assert type(unknown) is StepFailed
    back = came_back(raised(unknown))
    assert type(back) is Declined


def test_an_allowed_class_is_known_wherever_it_lives() -> None:
    class Local(Exception):
        pass

    assert type(ErrorTypes(allowed=[Local]).restore(crossed(Local("x")))) is Local


def test_a_class_that_refuses_to_be_built_comes_back_as_a_failed_step() -> None:
    back = came_back(Stubborn(1, object(), 3))
    assert type(back) is StepFailed
    assert "Stubborn" in str(back)


@pytest.mark.parametrize("error", [StopIteration(5), Stop("x"), StopAsyncIteration()])
def test_what_would_end_a_coroutine_comes_back_as_a_failed_step(error: Exception) -> None:
    assert type(came_back(error)) is StepFailed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError("x")])
def test_what_is_no_ordinary_exception_never_comes_back_as_itself(error: BaseException) -> None:
    assert type(came_back(error)) is StepFailed


def test_causes_come_along() -> None:
    back = came_back(raised(Declined(1), raised(KeyError("card"), OSError(5, "disk"))))
    assert type(back.__cause__) is KeyError
    assert type(back.__cause__.__cause__) is OSError


def test_an_error_raised_while_handling_another_has_it_as_its_cause() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - that is the point
    except ValueError as error:
        assert type(came_back(error).__cause__) is KeyError
        error.__suppress_context__ = True
        assert came_back(error).__cause__ is None


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    back = came_back(first)
    assert type(back.__cause__) is KeyError
    assert back.__cause__.__cause__ is None


def test_a_long_chain_of_causes_is_cut() -> None:
    error = ValueError("0")
    for number in range(1, 5_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    back: BaseException | None = came_back(error)
    length = 0
    while back is not None:
        back, length = back.__cause__, length + 1
    assert 8 <= length <= 32


def test_a_group_comes_back_with_its_members() -> None:
    group = ExceptionGroup("several", [Declined(1), ExceptionGroup("inner", [KeyError("x"), Declined(2)])])
    back = came_back(raised(group))
    assert type(back) is ExceptionGroup
    assert back.message == "several"
    assert type(back.exceptions[0]) is Declined
    inner = back.exceptions[1]
    assert isinstance(inner, ExceptionGroup)
    assert [type(each) for each in inner.exceptions] == [KeyError, Declined]
    caught, rest = back.split(Declined)
    assert caught is not None
    assert rest is not None


def test_a_group_of_an_own_class_comes_back_as_that_class() -> None:
    assert type(came_back(Batch("several", [Declined(1)]))) is Batch


def test_a_group_with_a_cancellation_comes_back_as_an_ordinary_group() -> None:
    back = came_back(BaseExceptionGroup("mixed", [asyncio.CancelledError(), ValueError("x")]))
    assert type(back) is ExceptionGroup
    assert [type(each) for each in back.exceptions] == [StepFailed, ValueError]


def test_a_huge_group_is_cut_and_still_a_group() -> None:
    back = came_back(ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]))
    assert isinstance(back, ExceptionGroup)
    assert 8 <= len(back.exceptions) <= 32


def test_the_original_traceback_is_shown_with_the_error() -> None:
    back = came_back(raised(Declined(51)))
    shown = "".join(traceback.format_exception(back))
    assert "in raised" in shown
    assert "test_failure.py" in shown


def test_notes_come_along() -> None:
    error = ValueError("x")
    error.add_note("see the manual")
    assert came_back(error).__notes__ == ["see the manual"]


def test_an_error_of_which_every_part_fails_is_still_described() -> None:
    failure = crossed(raised(Odd()))
    assert failure.type == f"{HERE}.Odd"
    assert "RuntimeError" in failure.message
    assert type(types.restore(failure)) is Odd


def test_a_failure_is_bounded_however_large_the_error() -> None:
    error = ValueError("x" * 10_000_000, ["y"] * 100_000)
    error.add_note("z" * 10_000_000)
    error.payload = "w" * 10_000_000  # type: ignore[attr-defined] # an error may carry anything
    for _ in range(100):
        error.__cause__ = ValueError("x" * 1_000_000)
        error = raised(ValueError("\x01" * 1_000_000), error)  # type: ignore[assignment] # an error may carry anything
    assert len(Failure.of(error, codec).to_json().encode()) < 1_048_576
    assert len(Failure.of(ExceptionGroup("g", [error] * 100), codec).to_json().encode()) < 1_048_576


def test_a_traceback_of_deep_recursion_is_bounded() -> None:
    def fall(depth: int) -> None:
        if depth % 2:
            fall(depth + 1)
        fall(depth + 1)

    with pytest.raises(RecursionError) as caught:
        fall(0)
    failure = crossed(caught.value)
    assert failure.type == "RecursionError"
    assert len(failure.traceback) < 10_000


@given(st.text())
def test_any_message_is_stored_and_free_of_what_databases_refuse(text: str) -> None:
    payload = Failure.of(ValueError(text), codec).to_json()
    assert "\\u0000" not in payload.replace("\\\\", "")
    back = types.restore(Failure.from_json(payload))
    assert type(back) is ValueError
    if "\0" not in text and text.isprintable() and len(text) < 100:
        assert str(back) == text


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.exec",
        "eval",
        "print",
        "object",
        "type",
        "SystemExit",
        "KeyboardInterrupt",
        "BaseException",
        "perdure.errors.Evicted",
        f"{HERE}.detonate",
        f"{HERE}.Trap",
        f"{HERE}.os.system",
        f"{HERE}.calls",
        "__import__('os').system('true')",
        "",
        "..",
        "\u202e",
    ],
)
def test_a_name_in_data_stays_inert(name: str) -> None:
    failure = Failure(type=name, message="x", args='["touch /tmp/pwned"]', state='{"__class__":"x","__dict__":{}}')
    before = set(sys.modules)
    back = types.restore(Failure.from_json(failure.to_json()), run_id="r")
    assert type(back) is StepFailed
    assert not declared.calls
    assert set(sys.modules) == before


def test_state_in_data_cannot_reach_what_python_reserves() -> None:
    back = types.restore(
        Failure(type="ValueError", message="x", args='["x"]', state='{"__notes__":5,"__x__":1,"fine":2}')
    )
    assert vars(back) == {"fine": 2}
    assert type(back) is ValueError


def test_modules_are_never_imported_to_find_a_class() -> None:
    script = (
        "import sys\n"
        "from perdure.core.codec.failure import ErrorTypes, Failure\n"
        "types = ErrorTypes(modules=['wave', 'no.such.module'])\n"
        "error = types.restore(Failure(type='wave.Error', message='x'))\n"
        "assert type(error).__name__ == 'StepFailed' and 'wave' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_classes_that_appear_after_the_start_are_not_known() -> None:
    fixed = ErrorTypes(modules=[__name__])
    globals()["Late"] = type("Late", (Exception,), {"__module__": __name__})
    try:
        assert type(fixed.restore(Failure(type=f"{__name__}.Late"))) is StepFailed
        assert type(ErrorTypes(modules=[__name__]).restore(Failure(type=f"{__name__}.Late"))) is not StepFailed
    finally:
        del globals()["Late"]


def test_every_error_of_perdure_is_known() -> None:
    own = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(own) > 25
    for each in own:
        members = (Failure(type="ValueError", message="v"),) if issubclass(each, ExceptionGroup) else ()
        failure = Failure(type=f"{each.__module__}.{each.__name__}", message="m", members=members)
        assert isinstance(ErrorTypes().restore(failure), each)


def test_the_outcome_of_a_child_run_comes_back() -> None:
    back = came_back(raised(RunFailed("run c failed", run_id="c"), ValueError("why")))
    assert isinstance(back, RunFailed)
    assert isinstance(back, PerdureError)
    assert back.run_id == "c"
    assert type(back.__cause__) is ValueError


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ('{"message":"out of paper"}', "out of paper"),
        ('{"type":"PrinterError","message":"jam"}', "PrinterError: jam"),
        ("{}", ""),
    ],
)
def test_a_failure_written_in_another_language_needs_only_what_it_has(payload: str, shown: str) -> None:
    assert shown in str(types.restore(Failure.from_json(payload)))


@pytest.mark.parametrize("payload", ["", "nope", "[]", '{"type":5}', '{"type":', b"\xff"])
def test_a_corrupt_failure_is_a_decode_error(payload: str | bytes) -> None:
    with pytest.raises(DecodeError, match="stored error"):
        Failure.from_json(payload)


@pytest.mark.parametrize("levels", [10, 100, 900, 950, 5_000])
@pytest.mark.parametrize(("before", "after"), [('{"cause":', "}"), ('{"members":[', "]}")])
def test_a_failure_of_any_depth_is_read_or_refused(levels: int, before: str, after: str) -> None:
    try:
        failure = Failure.from_json(before * levels + "{}" + after * levels)
    except DecodeError as error:
        assert levels > 100
        assert "stored error" in str(error)
    else:
        assert levels < 5_000
        assert isinstance(types.restore(failure), Exception)


def test_a_failure_with_more_causes_than_the_stack_has_room_for_is_restored() -> None:
    by_cause = by_member = Failure(message="the first")
    for _ in range(2_000):
        by_cause, by_member = Failure(type="ValueError", cause=by_cause), Failure(members=(by_member,))
    assert type(types.restore(by_cause).__cause__) is ValueError
    assert type(types.restore(by_member)) is ExceptionGroup


def test_an_error_with_hostile_attributes_is_still_described() -> None:
    class Hostile(Exception):
        @property
        def __notes__(self) -> list[str]:  # type: ignore[override] # an error may carry anything
            raise RuntimeError("hands off")

    failure = crossed(Hostile("x"))
    assert failure.type.endswith("Hostile")
    assert "RuntimeError" in failure.message


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_stands_in_args_and_state_restoring_gives_an_exception(value: Any) -> None:
    payload = json.dumps(value)
    for name in ("ValueError", "OSError", "UnicodeDecodeError", "ExceptionGroup", "KeyError", f"{HERE}.Declined", "?"):
        back = types.restore(Failure(type=name, message="m", args=payload, state=payload))
        assert isinstance(back, Exception)
        traceback.format_exception(back)


def test_a_traceback_of_a_usage_error_has_the_frames_of_the_user_only() -> None:
    with pytest.raises(InvalidDuration) as caught:
        microseconds("soon")
    failure = crossed(caught.value)
    assert "test_failure.py" in failure.traceback
    assert "duration.py" not in failure.traceback


def test_a_traceback_of_another_error_keeps_the_frames_of_perdure_below_those_of_the_user() -> None:
    with pytest.raises(AttributeError) as caught:
        Failure.format(None)  # type: ignore[arg-type] # an error in Perdure, on purpose
    stored = crossed(caught.value).traceback
    assert "test_failure.py" in stored
    assert "codec/failure.py" in stored


def test_the_note_of_a_restored_error_names_the_place_and_does_not_repeat_the_message() -> None:
    back = types.restore(crossed(raised(ValueError("card declined"))), where="In the step 'charge'")
    [note] = back.__notes__
    assert note.startswith("In the step 'charge' (most recent call last):\n  File ")
    assert "ValueError: card declined" not in note
