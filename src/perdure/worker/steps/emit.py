"""Items that steps emit while they run, kept until the next turn of their run takes them.

Called from any thread. Each attempt has room for so much: a step in a thread that emits faster than the database writes waits for
room, one that occupies the worker's loop cannot wait there and gets `StreamFull`. What comes after an attempt is over is dropped.

The announcement to the run only makes items leave early. The end of an attempt may overtake it, so every turn takes along the items
that are pending when it is made.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.codec.codec import Codec
from perdure.core.ids import check_name
from perdure.core.model.outputs import NewOutput, OutputKind, step_key
from perdure.errors import StreamFull

if TYPE_CHECKING:
    from perdure.core.model.turn import Lease

#: What one attempt may have emitted that no turn has taken yet: items, and bytes of JSON.
ROOM_ITEMS = 4096
ROOM_BYTES = 1 << 20

#: How often a thread that waits for room looks whether anybody still wants its result, in seconds.
_LOOK = 0.1


class EmitUsage:
    """The side of an attempt that emits."""

    __slots__ = ("bytes", "count", "items")

    def __init__(self) -> None:
        #: Ever emitted.
        self.count = 0
        #: Not yet taken.
        self.items = 0
        self.bytes = 0


class EmittingAttempt(Protocol):
    """An attempt at a step."""

    run_id: str
    number: int

    @property
    def operation(self) -> Any:
        """The step."""

    @property
    def emission(self) -> EmitUsage:
        """What it has emitted; the same object each time."""

    @property
    def may_wait(self) -> bool:
        """Whether what it emits can be taken before it ends."""

    def is_over(self) -> bool:
        """Whether nobody wants its result any more."""


class EmittingRun(Protocol):
    """The run whose turns take it."""

    lease: Lease

    def emitted(self) -> None:
        """There may be something to take. From a plain callback of the loop."""


class EmitBuffer:
    """See the module. One for each worker."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()
        #: By run. Every turn looks whether there are any, without the lock.
        self.pending: dict[EmittingRun, list[tuple[EmitUsage, NewOutput]]] = {}

    def begin(self) -> None:
        """The running loop is the worker's."""
        self._loop = asyncio.get_running_loop()

    def emit(self, run: EmittingRun, attempt: EmittingAttempt, stream: str, value: object) -> None:
        """Append to a stream of the run with its next turn. Raises `StreamFull`, `EncodeError` and the like."""
        # Of this attempt as long as it is not over, which is looked at later.
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
                self._loop.call_soon_threadsafe(run.emitted)

    def take(self, run: EmittingRun) -> list[NewOutput]:
        """Remove and return the pending items of a run."""
        with self._changed:
            taken = self.pending.pop(run, [])
            self._make_free(taken)
        return [output for _, output in taken]

    def peek(self, run: EmittingRun) -> list[NewOutput]:
        """Return the pending items of a run and keep them, until `discard` says that they are durable."""
        with self._changed:
            return [output for _, output in self.pending.get(run, ())]

    def discard(self, run: EmittingRun, count: int) -> None:
        """Remove the first pending items of a run."""
        with self._changed:
            pending = self.pending.get(run, [])
            self._make_free(pending[:count])
            del pending[:count]
            if not pending:
                self.pending.pop(run, None)
            elif self._loop is not None and not self._loop.is_closed():
                # They were announced together with those that are gone.
                self._loop.call_soon_threadsafe(run.emitted)

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
                    f"({emission.bytes} bytes) that could not be written yet. Let an async step await something in between, "
                    "such as asyncio.sleep(0.01), or emit fewer and larger items"
                )
            self._changed.wait(_LOOK)

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False
