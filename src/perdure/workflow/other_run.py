"""`OtherRun`: any run, by its id, as a workflow sees it; it need not be a child."""

from __future__ import annotations

from typing import Any, TypeVar, cast, overload

from perdure.core.ids import check_id
from perdure.core.model.record import NewMessage, RecordKind
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
