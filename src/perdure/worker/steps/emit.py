"""Buffer of items that steps emit, until the next turn of their run takes them.

It is called from any thread. Each attempt has limited room: a step in a thread that emits faster than the database
writes waits for room; a step on the worker's loop cannot wait there and gets `StreamFull`. Items of an attempt that is
over are dropped.

The announcement to the run only makes items leave early. The end of an attempt may overtake it, so every turn takes the
items that are pending when it is made.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.codec.codec import Codec
from perdure.core.ids import check_name
from perdure.core.model.outputs import NewOutput, OutputKind, step_key
from perdure.errors import StreamFull

if TYPE_CHECKING:
    from perdure.core.model.turn import Lease

#: Room of one attempt: items, and bytes of JSON, that no turn has taken yet.
ROOM_ITEMS = 4096
ROOM_BYTES = 1 << 20

#: Seconds between two checks whether an attempt that waits for room is over.
_LOOK = 0.1


class EmitUsage:
    """Counters of the items that one attempt has emitted."""

    __slots__ = ("bytes", "count", "items")

    def __init__(self) -> None:
        #: All items.
        self.count = 0
        #: Items, and their bytes, that no turn has taken.
        self.items = 0
        self.bytes = 0


class EmittingAttempt(Protocol):
    """An attempt at a step, as the buffer sees it."""

    run_id: str
    number: int

    @property
    def operation(self) -> Any:
        """The step."""

    @property
    def emission(self) -> EmitUsage:
        """Counters of the attempt; the same object each time."""

    @property
    def may_wait(self) -> bool:
        """True if emitting may block until a turn has taken earlier items."""

    def is_over(self) -> bool:
        """True if the result is not needed any more."""


class EmittingRun(Protocol):
    """A run whose turns take the items."""

    lease: Lease

    def emitted(self) -> None:
        """Handle newly pending items. Called from a plain callback of the loop."""


class EmitBuffer:
    """Pending items of one worker's runs."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = Context()
        self._changed = threading.Condition()
        #: Items by run. Every turn checks without the lock whether there are any.
        self.pending: dict[EmittingRun, list[tuple[EmitUsage, NewOutput]]] = {}

    def begin(self) -> None:
        """Use the running loop as the worker's."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def emit(self, run: EmittingRun, attempt: EmittingAttempt, stream: str, value: object) -> None:
        """Append an item to a stream of the run, with its next turn. Raises `StreamFull` and `EncodeError`."""
        # Read before the check below that the attempt is not over, so that it is the attempt's own token.
        token = run.lease.token
        name = check_name(stream, "name of a stream")
        location = attempt.operation.location
        payload = self._codec.encode(value, f"item of stream {name!r} of step {location!r} of run {attempt.run_id!r}")
        with self._changed:
            emission = attempt.emission
            self._make_room(attempt, emission, len(payload))
            if attempt.is_over() or self._loop is None or self._loop.is_closed():
                return
            emission.count += 1
            emission.items += 1
            emission.bytes += len(payload)
            key = step_key(location, token, attempt.number, emission.count)
            output = NewOutput(kind=OutputKind.STREAM, name=name, payload=payload, key=key)
            pending = self.pending.setdefault(run, [])
            pending.append((emission, output))
            if len(pending) == 1:
                self._loop.call_soon_threadsafe(run.emitted, context=self._context)

    def take(self, run: EmittingRun) -> list[NewOutput]:
        """Remove and return the pending items of a run."""
        with self._changed:
            taken = self.pending.pop(run, [])
            self._make_free(taken)
        return [output for _, output in taken]

    def peek(self, run: EmittingRun) -> list[NewOutput]:
        """Return the pending items of a run and keep them until `discard`."""
        with self._changed:
            return [output for _, output in self.pending.get(run, ())]

    def discard(self, run: EmittingRun, count: int) -> None:
        """Remove the first pending items of a run, which are durable."""
        with self._changed:
            pending = self.pending.get(run, [])
            self._make_free(pending[:count])
            del pending[:count]
            if not pending:
                self.pending.pop(run, None)
            elif self._loop is not None and not self._loop.is_closed():
                # The rest was announced together with the removed items.
                self._loop.call_soon_threadsafe(run.emitted, context=self._context)

    def _make_free(self, taken: list[tuple[EmitUsage, NewOutput]]) -> None:
        for emission, output in taken:
            emission.items -= 1
            emission.bytes -= len(output.payload)
        self._changed.notify_all()

    def _make_room(self, attempt: EmittingAttempt, emission: EmitUsage, size: int) -> None:
        while emission.items >= ROOM_ITEMS or (emission.items and emission.bytes + size > ROOM_BYTES):
            if attempt.is_over():
                return
            if not attempt.may_wait or self._is_here():
                raise StreamFull(
                    f"step {attempt.operation.location!r} of run {attempt.run_id!r} has emitted {emission.items} items "
                    f"({emission.bytes} bytes) that could not be written yet; let an async step await something in "
                    "between, such as asyncio.sleep(0.01), or emit fewer and larger items"
                )
            self._changed.wait(_LOOK)

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False
