"""`Child`: a child run that a workflow has started.

The id of a child follows from its location in the parent, so replay starts no child twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar, cast

from perdure.core.ids import check_name, short_key
from perdure.core.model.record import NewMessage, RecordKind
from perdure.workflow.runtime import Operation, Runtime, SpawnedChild

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Child(Generic[R_co]):
    """A child run. Await it for its result, any number of times; cancelling the wait does not cancel the child."""

    __slots__ = ("_runtime", "_spawned")

    def __init__(self, runtime: Runtime, spawned: SpawnedChild) -> None:
        self._runtime = runtime
        self._spawned = spawned

    def __repr__(self) -> str:
        return f"<child {self.id}>"

    @property
    def id(self) -> str:
        """The id of the child run."""
        return self._spawned.id

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.result().__await__()

    def result(self) -> Operation[R_co]:
        """An operation that resolves to the child's result, or raises its error."""
        return cast("Operation[R_co]", _followed(self._spawned.ended))

    def send(self, name: str, value: object = None) -> None:
        """Send the child a message."""
        payload = self._runtime.encode(value, f"message {name!r} to child {self.id!r}")
        name = check_name(name, "message name")
        self._runtime.effect(
            "send",
            lambda key: NewMessage(
                run_id=self.id, name=name, payload=payload, key=key, only_child_of=self._runtime.run_id
            ),
        )

    def cancel(self, reason: str = "") -> None:
        """Cancel the child; awaiting it raises `RunCancelled` once it has ended."""
        payload = self._runtime.encode(reason or f"its parent {self._runtime.run_id!r} cancelled it", "reason")
        # The same key as the cancellation at the end of the parent, so that the child gets one of them.
        message = NewMessage(
            run_id=self.id,
            kind=RecordKind.CANCEL,
            payload=payload,
            key=cancel_key(self._runtime.run_id, self._spawned.location),
            only_child_of=self._runtime.run_id,
        )
        self._runtime.effect("cancel", lambda _: message)
        self._runtime.child_cancelled(self._spawned.location)


def cancel_key(parent_id: str, location: str) -> str:
    """Key of the message that cancels a child."""
    return short_key(f"cancel:{parent_id}:{location}")


def _followed(ended: asyncio.Future[R]) -> asyncio.Future[R]:
    """A future that follows another one, and can be cancelled without cancelling it."""
    follower: asyncio.Future[R] = ended.get_loop().create_future()

    def on_end(_: asyncio.Future[R]) -> None:
        if follower.done():
            return
        if ended.cancelled():
            follower.cancel()
        elif (error := ended.exception()) is not None:
            follower.set_exception(error)
        else:
            follower.set_result(ended.result())

    ended.add_done_callback(on_end)
    return follower
