"""Hypothesis strategies for messages and failures. Only this module of Perdure imports hypothesis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from hypothesis import strategies as st

from perdure.core.codec.codec import Codec
from perdure.core.option_checks import check_list, check_mapping
from perdure.core.printed_text import brief
from perdure.errors import EncodeError, UsageError
from perdure.workflow.channels import Channel

#: Errors that another attempt may cure.
_TRANSIENT: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)


def messages(
    *channels: Channel[Any],
    values: Mapping[str, st.SearchStrategy[Any]] | None = None,
    min_size: int = 0,
    max_size: int = 5,
) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Lists of names and values of messages, for `env.send` and for `messages=` of `crash_everywhere`.

    The values of a channel fit its type and can be stored. `values` has strategies by name, for messages without a
    channel or with other values than any that fit.
    """
    for channel in channels:
        if not isinstance(channel, Channel):
            raise UsageError(f"messages({brief(channel)}): give channels, such as Channel('approval', str)")
    by_name = {
        channel.name: st.from_type(channel.type).filter(partial(_is_storable, channel.type)) for channel in channels
    } | check_mapping("values", {} if values is None else values, "{'approval': st.booleans()}")
    if not by_name:
        raise UsageError("messages(): give channels, or values by name: messages(values={'approval': st.booleans()})")
    one = st.one_of([st.tuples(st.just(name), value) for name, value in by_name.items()])
    return st.lists(one, min_size=min_size, max_size=max_size)


def _is_storable(type: Any, value: object) -> bool:
    """True if a value survives the database: a text with a NUL does not."""
    try:
        Codec().encode(value, "the value of a message", type)
    except EncodeError:
        return False
    return True


class FailurePlan:
    """Errors of the first calls of a step, one for each; later calls succeed."""

    def __init__(self, errors: Iterable[Exception]) -> None:
        #: Errors, in order.
        self.errors: tuple[Exception, ...] = check_list("errors", errors, "[ConnectionError('away')]")

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that raises the errors, one for each call, and then calls `function`; for `env.replace`."""
        left = list(self.errors)

        async def fail_first(*args: Any, **kwargs: Any) -> Any:
            if left:
                raise left.pop(0)
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return fail_first

    def __repr__(self) -> str:
        return f"FailurePlan({list(self.errors)!r})"


def failures(*errors: type[Exception], min_size: int = 0, max_size: int = 2) -> st.SearchStrategy[FailurePlan]:
    """Plans of how a step fails before it succeeds; by default with `ConnectionError` and `TimeoutError`."""
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise UsageError(f"failures({brief(error)}): give classes of errors")
    one = st.sampled_from(errors or _TRANSIENT).map(lambda error: error("planned failure"))
    return st.lists(one, min_size=min_size, max_size=max_size).map(FailurePlan)


def failures_of(
    *steps: Callable[..., Any], errors: tuple[type[Exception], ...] = (), max_size: int = 2
) -> st.SearchStrategy[dict[Callable[..., Any], Callable[..., Any]]]:
    """Replacements of steps that fail before they succeed, by step, for `env.replace`."""
    errors = check_list("errors", errors, "(ConnectionError,)")
    plans = st.tuples(*(failures(*errors, max_size=max_size) for _ in steps))
    return plans.map(lambda drawn: {step: plan.around(step) for step, plan in zip(steps, drawn, strict=True)})
