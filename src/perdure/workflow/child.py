"""Runs that a workflow starts: children, whose results it can have, and others that it leaves to themselves.

Their ids follow from the place in the workflow, so that one that is executed again starts nothing twice.
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
    """A child run under way. Await it for its result, as often as you like; giving up the wait does not stop it."""

    __slots__ = ("_runtime", "_spawned")

    def __init__(self, runtime: Runtime, spawned: SpawnedChild) -> None:
        self._runtime = runtime
        self._spawned = spawned

    def __repr__(self) -> str:
        return f"<child {self.id}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._spawned.id

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.result().__await__()

    def result(self) -> Operation[R_co]:
        """Its result; its error is raised where that is awaited."""
        return cast("Operation[R_co]", _followed(self._spawned.ended))

    def send(self, name: str, value: object = None) -> None:
        """Send it a message."""
        payload = self._runtime.encode(value, f"message {name!r} to child {self.id!r}")
        name = check_name(name, "message name")
        self._runtime.effect(
            "send",
            lambda key: NewMessage(
                run_id=self.id, name=name, payload=payload, key=key, only_child_of=self._runtime.run_id
            ),
        )

    def cancel(self, reason: str = "") -> None:
        """Ask it to stop; whoever awaits it gets `RunCancelled` when it has."""
        payload = self._runtime.encode(reason or f"its parent {self._runtime.run_id!r} cancelled it", "reason")
        # The key is that of the cancellation when the parent ends: once is enough.
        message = NewMessage(
            run_id=self.id,
            kind=RecordKind.CANCEL,
            payload=payload,
            key=cancel_key(self._runtime.run_id, self._spawned.location),
            only_child_of=self._runtime.run_id,
        )
        self._runtime.effect("cancel", lambda _: message)


def cancel_key(parent_id: str, location: str) -> str:
    """The key of the message that stops a child."""
    return short_key(f"cancel:{parent_id}:{location}")


def _followed(ended: asyncio.Future[R]) -> asyncio.Future[R]:
    """A future that ends as the other one does, and may be given up without giving that one up."""
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
