"""Scopes: parts of a workflow with their own locations, such as a branch of a join or an iteration of a loop.

The current scope travels with the run's tasks, so that every operation inside, of a `Context` or of asyncio itself,
gets its location there.
"""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import Record

T = TypeVar("T")


class WorkflowRandom(Random):
    """Random numbers that are the same on replay. Calling it gives a float in [0, 1)."""

    def __call__(self) -> float:
        """The next random float in [0, 1)."""
        return self.random()


class Scope:
    """Counters of the operations in one part of a workflow.

    Each scope has its own, so that locations do not depend on other parts, whose history may have been deleted.
    """

    __slots__ = ("_counts", "_number", "functions", "futures", "path", "random", "tasks")

    def __init__(self, path: str = "") -> None:
        #: Empty for the workflow itself; otherwise it ends with a slash.
        self.path = path
        self._counts: dict[str, int] = {}
        self._number = -1
        #: Function of each step in the scope, by name.
        self.functions: dict[str, object] = {}
        #: Number of futures and tasks made in the scope.
        self.futures = 0
        self.tasks = 0
        #: Its random numbers, once they were used, and the seed that they were made from.
        self.random: tuple[str, WorkflowRandom] | None = None

    def next(self, name: str) -> str:
        """Location of the next operation of that name."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return self.path + name if count == 1 else f"{self.path}{name}#{count}"

    @property
    def number(self) -> int:
        """Number that distinguishes the scope, the same in every process."""
        if self._number < 0:
            self._number = int.from_bytes(blake2b(self.path.encode(), digest_size=8).digest()) if self.path else 0
        return self._number

    @property
    def location(self) -> str:
        """Location of the scope itself."""
        return self.path[:-1]

    def branch(self, name: str) -> Scope:
        """A named scope inside, entered once."""
        return Scope(f"{self.path}{name}/")

    def iteration(self, number: int) -> Scope:
        """The scope of one iteration."""
        return Scope(f"{self.path}~{number}/")


current_scope: ContextVar[Scope] = ContextVar("perdure_scope")


@contextmanager
def inside(scope: Scope) -> Generator[None]:
    """Make a scope the current one for a `with` block."""
    before = current_scope.get()
    current_scope.set(scope)
    try:
        yield
    finally:
        # Not `reset`, which fails if a run is ended from another context. Nothing is set if the garbage collector ends
        # the run in the middle of another one, whose scope is the current one.
        if current_scope.get(None) is scope:
            current_scope.set(before)


def begin_in(scope: Scope, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task of the running workflow inside a scope."""
    surroundings = copy_context()
    surroundings.run(current_scope.set, scope)
    return asyncio.get_running_loop().create_task(coroutine, context=surroundings)


async def shielded(awaitable: Awaitable[T]) -> T:
    """Await something to its end, and raise a cancellation that came meanwhile, caused by the awaitable's error."""
    # A task of the workflow's own loop, which replay repeats.
    part = asyncio.get_running_loop().create_task(_whole(awaitable))
    interrupted: asyncio.CancelledError | None = None
    try:
        while not part.done():
            try:
                await asyncio.wait([part])
            except asyncio.CancelledError as error:
                interrupted = interrupted or error
    finally:
        # The run may be evicted before the task has begun; nothing else would close the coroutine then.
        if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()
    if interrupted is not None:
        raise interrupted from (None if part.cancelled() else part.exception())
    return part.result()


async def _whole(awaitable: Awaitable[T]) -> T:
    return await awaitable


class Checkpoint(Struct, frozen=True):
    """Progress of a scope, as recorded in the history."""

    #: JSON of the state that the scope continues with, or of its result.
    value: str
    #: Iterations before this one have ended.
    upto: int = 0
    ended: bool = False
    #: Undos that failed in dropped branches: the `Failure` as JSON, by location.
    errors: dict[str, str] = {}
    #: Number of the first record that checkpoints of the scope have deleted, or of the first checkpoint; -1: unknown.
    first: int = -1
    #: Digest of the state that the code began the loop with when this was recorded; empty: unknown.
    begins: str = ""


class _StoredCheckpoint(msgspec.Struct):
    upto: int
    ended: bool
    value: msgspec.Raw
    errors: dict[str, str] = {}
    first: int = -1
    begins: str = ""


_stored = decoder_for(_StoredCheckpoint)


def checkpoint_payload(latest: Checkpoint) -> str:
    """Encode a checkpoint for its record."""
    errors = f',"errors":{msgspec.json.encode(latest.errors).decode()}' if latest.errors else ""
    begins = f',"begins":"{latest.begins}"' if latest.begins else ""
    ended = "true" if latest.ended else "false"
    return f'{{"upto":{latest.upto},"ended":{ended},"value":{latest.value}{errors},"first":{latest.first}{begins}}}'


def read_checkpoint(record: Record) -> Checkpoint:
    """Decode the checkpoint of a record."""
    stored = _stored.decode(record.payload or "")
    value = bytes(stored.value).decode()
    return Checkpoint(value, stored.upto, stored.ended, stored.errors, stored.first, stored.begins)


def deleted_before(checkpoint: Record, record: Record) -> bool | None:
    """True if checkpoints of a scope, up to this one, deleted records before a record; None: that is unknown."""
    first = read_checkpoint(checkpoint).first
    return None if first < 0 else first <= record.seq


def renumbered(checkpoint: Record, kept: Sequence[int], numbers: Sequence[int]) -> Record:
    """Return a checkpoint for a copy of its history, which keeps some records and gives each another number."""
    known = read_checkpoint(checkpoint)
    if known.first < 0:
        return checkpoint
    first = numbers[bisect_left(kept, known.first)]
    return replace(checkpoint, payload=checkpoint_payload(replace(known, first=first)))
