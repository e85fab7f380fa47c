"""`OtherRun`: any run, by its id, as a workflow sees it; it need not be a child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, cast, overload

from msgspec import UNSET

from perdure.core.ids import check_id, check_name
from perdure.core.model.outputs import (
    OutputKind,
    SeenOutputs,
    StreamItem,
    WantedOutput,
    check_stream,
    is_wanted_state,
    state_digest,
    unreached_state,
)
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import UsageError
from perdure.workflow.channels import Channel, expected_message
from perdure.workflow.runtime import Operation, Runtime

T = TypeVar("T")


class OtherRun:
    """A run that another part of the system has started. It holds no state: two of one id are the same."""

    __slots__ = ("_id", "_runtime")

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime = runtime
        self._id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._id

    @overload
    def result(self, returns: type[T]) -> Operation[T]: ...

    @overload
    def result(self, returns: Any = ...) -> Operation[Any]: ...

    def result(self, returns: Any = Any) -> Operation[Any]:
        """Wait until the run has ended; resolves to its result, decoded to `returns`, or raises its error.

        A run that ended before answers at once. A run that does not exist raises `RunNotFound`. Giving up the wait
        does nothing to the run.
        """
        if self.id == self._runtime.run_id:
            raise UsageError(f"run {self.id!r} waits for its own end, which would never come")
        return cast("Operation[Any]", self._runtime.watch("run.result", self.id, returns))

    @overload
    async def state(self, key: str, type: type[T], *, default: T) -> T: ...

    @overload
    async def state(self, key: str, type: type[T]) -> T | None: ...

    @overload
    async def state(self, key: str, type: Any = ..., *, default: Any = ...) -> Any: ...

    async def state(self, key: str, type: Any = Any, *, default: Any = None) -> Any:
        """Read the latest value that the run published under a key, also after its end; `default` if there is none.

        The value is recorded, so that replay sees the same. A run that does not exist raises `RunNotFound`.
        """
        name = check_name(key, "key of a state")
        found = await self._look("run.state", WantedOutput(kind=OutputKind.STATE, name=name, now=True))
        return self._state(name, found.outputs[0].payload, type) if found.outputs else default

    @overload
    async def wait_state(
        self, key: str, wanted: T | Callable[[T], bool], type: type[T], *, timeout: Duration | None = None
    ) -> T: ...

    @overload
    async def wait_state(
        self, key: str, wanted: Any = ..., type: Any = ..., *, timeout: Duration | None = None
    ) -> Any: ...

    async def wait_state(
        self, key: str, wanted: Any = UNSET, type: Any = Any, *, timeout: Duration | None = None
    ) -> Any:
        """Wait until the run has published a certain value under a key, and return that value.

        `wanted` is the value, or a function that tells of a value whether it is meant; without it, any value is. Each
        value that the wait has seen is one record. Raises `TimeoutError` after `timeout`, and `RunFinished` if the run
        ends without such a value.
        """
        name, seen = check_name(key, "key of a state"), ""
        limit = None if timeout is None else microseconds(timeout) / 1e6
        bound = asyncio.timeout(limit)
        try:
            async with bound:
                while True:
                    found = await self._look("run.state", WantedOutput(kind=OutputKind.STATE, name=name, seen=seen))
                    for one in found.outputs:
                        value, seen = self._state(name, one.payload, type), state_digest(one.payload)
                        if is_wanted_state(wanted, value):
                            return value
                    if found.ended:
                        raise unreached_state(self.id, name)
        except TimeoutError:
            if not bound.expired():
                raise
            raise TimeoutError(f"run {self.id!r} did not publish the awaited {name!r} within {limit:g} s") from None

    @overload
    def stream(
        self, name: str, type: type[T], *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[T]]: ...

    @overload
    def stream(
        self, name: str, type: Any = ..., *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[Any]]: ...

    async def stream(
        self, name: str, type: Any = Any, *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[Any]]:
        """Yield what the run emits, from the first item or from the one after a position, until it ends.

        Without `follow`, only the items that are there now. The items are recorded, up to a hundred at a time.
        """
        last = check_stream(name, after)
        while True:
            wants = WantedOutput(kind=OutputKind.STREAM, name=name, position=last + 1, now=not follow)
            found = await self._look("run.stream", wants)
            for one in found.outputs:
                last = one.position
                value = self._runtime.decode(one.payload, type, f"item of stream {name!r} of run {self.id!r}")
                yield StreamItem(one.position, value, one.source)
            if found.ended or not (follow or found.more):
                return

    def _state(self, name: str, payload: str, type: Any) -> Any:
        return self._runtime.decode(payload, type, f"state {name!r} of run {self.id!r}")

    async def _look(self, name: str, wants: WantedOutput) -> SeenOutputs:
        if self.id == self._runtime.run_id:
            raise UsageError(f"run {self.id!r} reads its own {wants.kind} {wants.name!r}; keep the value in a variable")
        return cast("SeenOutputs", await self._runtime.watch(name, self.id, SeenOutputs, wants=wants))

    def send(self, channel: Channel[T] | str, value: T | Any = None, *, key: str | None = None) -> None:
        """Send the run a message, exactly once; see `ctx.send`."""
        wanted = expected_message(channel)
        given = None if key is None else check_id(key, "message key")
        payload = self._runtime.encode(value, f"message {wanted.name!r} to run {self.id!r}", wanted.type)

        def message(own_key: str) -> NewMessage:
            return NewMessage(run_id=self.id, name=wanted.name, payload=payload, key=given or own_key)

        self._runtime.effect("send", message)

    def cancel(self, reason: str = "") -> None:
        """Cancel the run; awaiting its result raises `RunCancelled` once it has ended.

        A run that has finished or does not exist stays as it is.
        """
        payload = self._runtime.encode(reason or f"run {self._runtime.run_id!r} cancelled it", "reason")
        self._runtime.effect(
            "cancel", lambda key: NewMessage(run_id=self.id, kind=RecordKind.CANCEL, payload=payload, key=key)
        )
