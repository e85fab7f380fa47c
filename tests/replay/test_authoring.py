"""`@workflow`, the calls that it builds, and how their arguments come back."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from perdure import Context, workflow
from perdure.core.codec.codec import Codec
from perdure.errors import BadArguments, DecodeError, EncodeError, InvalidName
from perdure.workflow.definition import Call, Workflow
from tests.replay.driver import Driver

codec = Codec()


@dataclass
class Order:
    id: str
    price: Decimal


@workflow("test.checkout.v1")
async def checkout(ctx: Context, order: Order, /, express: bool = False, *, note: str = "") -> str:
    """Sell something."""
    return f"{order!r} {express} {note!r}"


def arguments_of(call: Call[Any]) -> dict[str, Any]:
    assert call.definition is not None
    return call.definition.signature.decode(call.encode(codec), codec, "input")


def perform(call: Call[Any]) -> Any:
    """Run a call's workflow with its arguments as they come back from the database."""
    signature = _signature(call)
    return Driver(lambda ctx: signature.call(ctx, arguments_of(call)), returns=call.returns).result


def _signature(call: Call[Any]) -> Any:
    assert call.definition is not None
    return call.definition.signature


def test_a_workflow_keeps_its_name_and_words() -> None:
    assert checkout.__name__ == "checkout"
    assert checkout.__doc__ == "Sell something."
    assert repr(checkout) == "<workflow test.checkout.v1>"


def test_calling_a_workflow_builds_a_value_and_runs_nothing() -> None:
    call = checkout(Order("o-1", Decimal("9.99")), express=True)
    assert call.type == "test.checkout.v1"
    assert call.arguments == {"order": Order("o-1", Decimal("9.99")), "express": True}
    assert call.returns is str


def test_arguments_come_back_as_what_they_are_declared_to_be() -> None:
    call = checkout(Order("o-1", Decimal("9.99")), True, note="ring")
    assert arguments_of(call) == {"order": Order("o-1", Decimal("9.99")), "express": True, "note": "ring"}
    assert perform(call) == "Order(id='o-1', price=Decimal('9.99')) True 'ring'"


def test_what_is_left_out_takes_its_default_when_the_run_is_started() -> None:
    call = checkout(Order("o-1", Decimal(1)))
    assert arguments_of(call) == {"order": Order("o-1", Decimal(1)), "express": False, "note": ""}
    assert perform(call) == "Order(id='o-1', price=Decimal('1')) False ''"


@pytest.mark.parametrize(
    ("args", "kwargs", "part"),
    [
        ((), {}, "missing a required argument: 'order'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_that_do_not_fit_the_parameters_are_refused_at_once(args: Any, kwargs: Any, part: str) -> None:
    with pytest.raises(BadArguments, match=part) as caught:
        checkout(*args, **kwargs)
    assert "test.checkout.v1()" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_arguments_of_the_wrong_type_are_refused_when_they_are_stored() -> None:
    with pytest.raises(BadArguments, match="order"):
        checkout("no order").encode(codec)  # type: ignore[arg-type] # wrong on purpose


def test_arguments_that_cannot_be_stored_name_the_field() -> None:
    with pytest.raises(EncodeError, match=r"order\.price"):
        checkout(Order("o-1", Decimal("NaN"))).encode(codec)


def test_a_call_by_name_alone_is_stored_by_position_or_by_name() -> None:
    assert Call.named("else.v1", 1, "a").encode(codec) == '[1,"a"]'
    assert Call.named("else.v1", x=1).encode(codec) == '{"x":1}'
    assert Call.named("else.v1").returns is Any
    with pytest.raises(BadArguments, match="all arguments by name, or all by position"):
        Call.named("else.v1", 1, x=2)


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        ("[]", r"lacks the arguments \['order'\]"),
        ('[{"id":"1","price":"1"},true,"a","b"]', "4 positional arguments"),
        ('{"order":{"id":"1","price":"1"},"colour":1}', "'colour'"),
        ('{"order":{"id":1,"price":"1"}}', "argument 'order'"),
        ('"text"', "input"),
    ],
)
def test_input_that_does_not_fit_says_which_argument_is_wrong(payload: str, part: str) -> None:
    with pytest.raises(DecodeError, match=part):
        checkout.signature.decode(payload, codec, "input")


def test_positional_input_is_taken_too() -> None:
    payload = Call.named("test.checkout.v1", {"id": "1", "price": "2"}, True).encode(codec)
    expected = {"order": Order("1", Decimal(2)), "express": True, "note": ""}
    assert checkout.signature.decode(payload, codec, "input") == expected


def test_a_workflow_is_an_async_function() -> None:
    def plain(ctx: Context) -> None: ...

    with pytest.raises(BadArguments, match="must be an `async def`"):
        workflow("test.plain.v1")(plain)  # type: ignore[arg-type] # wrong on purpose


def test_a_workflow_takes_a_context_first() -> None:
    async def nothing() -> None: ...

    async def keyword_only(*, ctx: Context) -> None: ...

    for function in (nothing, keyword_only):
        with pytest.raises(BadArguments, match="must take the Context as its first parameter"):
            Workflow("test.bad.v1", function, retry=None)  # type: ignore[arg-type] # wrong on purpose


def test_a_workflow_names_each_of_its_parameters() -> None:
    async def many(ctx: Context, *items: int) -> None: ...

    async def any_names(ctx: Context, **items: int) -> None: ...

    for function in (many, any_names):
        with pytest.raises(BadArguments, match="items"):
            Workflow("test.bad.v1", function, retry=None)


def test_a_workflow_needs_a_type_that_can_be_stored() -> None:
    async def fine(ctx: Context) -> None: ...

    for name in ("", "a/b", " a", "x" * 300):
        with pytest.raises(InvalidName):
            workflow(name)(fine)


def test_annotations_may_name_what_is_local() -> None:
    @dataclass
    class Local:
        x: int

    @workflow("test.local.v1")
    async def local(ctx: Context, value: Local) -> Local:
        return value

    call = local(Local(3))
    assert arguments_of(call) == {"value": Local(3)}
    assert call.returns is Local


def test_annotations_may_be_defined_later_but_not_never() -> None:
    @workflow("test.later.v1")
    async def later(ctx: Context, value: Later) -> None: ...

    assert arguments_of(later(Later(1))) == {"value": Later(1)}

    @workflow("test.never.v1")
    async def never(ctx: Context, value: Never) -> None: ...  # type: ignore[name-defined]  # noqa: F821 # the mistake that is tested

    with pytest.raises(BadArguments, match="'Never' is not defined"):
        never.signature.resolve()


def test_parameters_without_annotations_are_plain_values() -> None:
    @workflow("test.bare.v1")
    async def bare(ctx, value, other=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 # users write it
        return [value, other]

    assert arguments_of(bare({"a": [1]}, other=[1, 2])) == {"value": {"a": [1]}, "other": [1, 2]}
    with pytest.raises(EncodeError, match="argument 'other' .* it is a tuple and comes back as a list; annotate it"):
        arguments_of(bare({"a": [1]}, other=(1, 2)))


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    def traced(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    @workflow("test.traced.v1")
    @traced
    async def inner(ctx: Context, order: Order) -> Decimal:
        return order.price

    call: Call[Any] = inner(Order("o-1", Decimal(7)))
    assert arguments_of(call) == {"order": Order("o-1", Decimal(7))}
    assert call.returns is Decimal
    assert perform(call) == "7"


@dataclass
class Later:
    y: int
