"""What a `Context` asks of whatever executes the workflow. The replay layer answers."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from perdure.core.model import FAR
from perdure.workflow.steps import StepOptions, StepSpec

if TYPE_CHECKING:
    from perdure.workflow.definition import Call


class StepRequest(Struct, frozen=True):
    """A step that a workflow asks for."""

    name: str
    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions
    #: Whether the function gets a connection, and its writes there are durable together with its record.
    transaction: bool = False


class ChildOptions(Struct, frozen=True, kw_only=True):
    """How a child run differs from its parent; None: as the parent."""

    id: str | None = None
    queue: str | None = None
    priority: int | None = None
    deadline: int = FAR


class WorkflowRandom(random.Random):
    """Random numbers that are the same on replay. Calling it gives a float in [0, 1)."""

    def __call__(self) -> float:
        """The next random float in [0, 1)."""
        return self.random()


class Runtime(Protocol):
    """The executing side of a workflow."""

    run_id: str
    #: Workflow time, in microseconds.
    time: int

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay."""

    @property
    def random(self) -> WorkflowRandom:
        """The run's one source of random numbers."""

    def step(self, request: StepRequest) -> asyncio.Future[Any]:
        """Run a step; resolves to its decoded result."""

    def sleep_until(self, due: int) -> asyncio.Future[None]:
        """Resolve at a time."""

    def receive(self, name: str, type: Any, due: int | None) -> asyncio.Future[Any]:
        """Resolve to the next message of that name, or raise `TimeoutError` at `due`."""

    def call(self, call: Call[Any], options: ChildOptions) -> asyncio.Future[Any]:
        """Start a child run; resolves to its decoded result."""
