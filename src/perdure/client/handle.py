"""A run, seen from outside."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from perdure.client import second
from perdure.core.model import Event, Message, Record, Run, Status

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.client.options import Moment
    from perdure.client.second import ForkOptions
    from perdure.core.duration import Duration

R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """A run of an engine, by id. Holds nothing: two handles of one run are the same."""

    def __init__(self, engine: Engine, run_id: str, returns: Any) -> None:
        self._engine = engine
        self.id = run_id
        self._returns = returns

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the outcome and give the result. Raises `RunFailed`, `RunCancelled`, or `TimeoutError` after `timeout`."""
        result: R_co = await self._engine._result(self.id, self._returns, timeout)
        return result

    async def run(self) -> Run:
        """Everything that the database knows of it. Raises `RunNotFound`."""
        return await self._engine._run(self.id)

    async def status(self) -> Status:
        """Where it stands."""
        return (await self.run()).status

    async def history(self) -> builtins.list[Record]:
        """What has happened to it so far, in order."""
        return await self._engine._history(self.id)

    async def inbox(self) -> builtins.list[Message]:
        """What was sent to it and it has not taken in yet, in order."""
        return await self._engine._inbox(self.id)

    async def events(self) -> builtins.list[Event]:
        """Its audit trail."""
        return await self._engine._events(self.id)

    async def why(self) -> str:
        """Why it is where it is, in a sentence."""
        return await self._engine.why(self.id)

    async def send(self, name: str, value: object = None, *, key: str | None = None, connection: object = None) -> None:
        """Send it a message. With a `key`, sending twice is sending once; on a `connection` of yours, when you commit."""
        await self._engine.send(self.id, name, value, key=key, connection=connection)

    async def cancel(self, reason: str = "") -> bool:
        """Ask it to stop; False if it had finished already."""
        return await self._engine.cancel(self.id, reason)

    async def unblock(self) -> bool:
        """Let a blocked run go on; False if it is not blocked."""
        return await self._engine.unblock(self.id)

    async def retry(self, *, deadline: Moment | None = None) -> int:
        """Open it again where it failed, or was cancelled: what succeeded stays, what failed is done anew. The new generation.

        Each generation has its own outcome: a parent that was told of the failure is not told again. A run past its deadline
        needs another one. Raises `RunFinished` if it completed, and `UsageError` if it has not ended yet.
        """
        return await second.retry(self._engine, self.id, deadline)

    async def recover(self) -> bool:
        """Give what has failed in it its attempts anew, at once: failing steps, a failed run, one set aside as poison.

        False if there is nothing of the kind, or if it is being worked on just now.
        """
        return await second.recover(self._engine, self.id)

    async def fork(self, **options: Unpack[ForkOptions]) -> Handle[R_co]:
        """Start a new run that goes on from a step of this one: `fork(from_step="charge#2", results={"quote": 7})`.

        It has the input and, up to that step, the history of this run, with other arguments or results where they are given;
        nothing before the step is executed again. Raises `UsageError` before anything is written.
        """
        return Handle(self._engine, await second.fork(self._engine, self.id, **options), self._returns)
