"""Base of async context managers that tells a person who writes `with`, or awaits them, what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from perdure.client.session import refuse_in_workflow
from perdure.errors import UsageError


class AsyncOnly:
    """An async context manager: `async with`."""

    #: Advice for code that is not async.
    _instead: ClassVar[str] = "in code that is not async, use perdure.blocking.Engine"

    if not TYPE_CHECKING:  # type checkers report these mistakes by themselves

        def __enter__(self) -> NoReturn:
            refuse_in_workflow()
            raise UsageError(f"{self!r} is entered by `async with`, not by `with`; {self._instead}")

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> NoReturn:
            refuse_in_workflow()
            raise UsageError(f"{self!r} is not awaited; enter it: `async with`")
