"""Steps of agent libraries: calls of models and tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from msgspec import structs

from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.option_checks import check_retry
from perdure.core.policy.retry import Retry
from perdure.errors import StepFailed
from perdure.workflow.context import Context
from perdure.workflow.step import StepOptions, make_step_settings

#: Replacements for characters that names of steps cannot have.
_SAFE = str.maketrans({"/": ".", "#": "-", "~": "-", ":": "-", "<": "", ">": ""})


def safe_name(name: str) -> str:
    """Return a name for a step, made of names that a library gives."""
    return name.translate(_SAFE)


def giving_up_on(options: StepOptions | None, errors: tuple[type[Exception], ...]) -> StepOptions:
    """Check options of a step, and let its retry policy give up on errors that another attempt would only repeat."""
    given = options or {}
    make_step_settings(given)
    retry = check_retry(given.get("retry")) or Retry()
    policy = structs.replace(retry, give_up_on=(*retry.give_up_on, *errors))
    return cast("StepOptions", {**given, "retry": policy})


async def execute_step(ctx: Context, name: str, body: Callable[[], Awaitable[Any]], options: StepOptions) -> Any:
    """Execute `body` as a step."""

    async def execute() -> Any:
        return await body()

    return await ctx.options(**options).options(name=safe_name(name)).step(execute)


class LibraryErrors:
    """Restores errors of a library in workflows, although the engine does not know their classes."""

    def __init__(self, classes: Iterable[type[Exception]]) -> None:
        self._types = ErrorTypes(classes)

    def restore(self, error: StepFailed) -> Exception:
        """Return the error of the library that a step has failed with; the same error if it is of another class."""
        failure = getattr(error, "failure", None)
        restored = self._types.restore(failure) if isinstance(failure, Failure) else error
        return error if isinstance(restored, StepFailed) else restored
