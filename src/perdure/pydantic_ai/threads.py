"""Executor of the sync functions of an agent: tools and callbacks that are a `def`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CallbackExecutor(Executor):
    """Runs functions in threads if a step calls them, and at once if workflow code does.

    A run's loop has no threads. It calls a function itself if the executor has `runs_in_workflows`.
    """

    runs_in_workflows = True

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(thread_name_prefix="perdure-agent")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread."""
        return self._threads.submit(fn, *args, **kwargs)
