"""A run, seen from outside."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from perdure.client import outputs, reopen
from perdure.client.inspect import report
from perdure.client.messages import ask
from perdure.client.outputs import StreamItem
from perdure.core.audit import Event
from perdure.core.codec.snapshot import snapshot
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run, Status
from perdure.core.model.run_report import RunReport
from perdure.store.sql.reads import interruptions
from perdure.workflow.channels import Channel, Question

if TYPE_CHECKING:
    from perdure.client.dead_letters import RequeueOptions
    from perdure.client.engine import Engine
    from perdure.client.reopen import ForkOptions
    from perdure.client.start import Moment
    from perdure.core.time.duration import Duration

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


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

    async def report(self) -> RunReport:
        """Its attempts, steps, durations, and everything that went wrong and when."""
        run = await self.run()
        return report(run, await self.history(), await self.events(), await self.interruptions())

    async def interruptions(self) -> tuple[Interruption, ...]:
        """Workers that did not finish what they had begun of it: lost, or stopped; in order."""
        return await interruptions(await self._engine._opened(), self.id)

    async def why(self) -> str:
        """Why it is where it is, in a sentence."""
        return await self._engine.why(self.id)

    @overload
    async def send(self, name: Channel[T], value: T, *, key: str | None = None, connection: object = None) -> None: ...

    @overload
    async def send(
        self, name: str, value: object = None, *, key: str | None = None, connection: object = None
    ) -> None: ...

    def send(
        self, name: Channel[Any] | str, value: object = None, *, key: str | None = None, connection: object = None
    ) -> Coroutine[Any, Any, None]:
        """Send it a message. With a `key`, sending twice is sending once; on a `connection` of yours, when you commit."""
        return self._engine.send(self.id, name, value, key=key, connection=connection)

    @overload
    async def ask(
        self, question: Question[Q, A], value: Q, *, key: str | None = None, timeout: Duration | None = None
    ) -> A: ...

    @overload
    async def ask(
        self,
        question: str,
        value: object = None,
        *,
        returns: type[T],
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> T: ...

    @overload
    async def ask(
        self,
        question: str,
        value: object = None,
        *,
        returns: Any = ...,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Any: ...

    def ask(
        self,
        question: Question[Any, Any] | str,
        value: object = None,
        *,
        returns: Any = Any,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Ask it something and wait for the answer that its workflow gives: see `ctx.receive_question`.

        With a `key`, asking again gives the answer that there is. Raises `TimeoutError` after `timeout`, `RunFinished` if it
        ends without an answer, `RunFailed` or `RunCancelled` if it ends badly.
        """
        return ask(self._engine, self.id, question, snapshot(value), returns=returns, key=key, timeout=timeout)

    @overload
    async def state(self, key: str, type: type[T], *, default: T) -> T: ...

    @overload
    async def state(self, key: str, type: type[T]) -> T | None: ...

    @overload
    async def state(self, key: str, type: Any = ..., *, default: Any = ...) -> Any: ...

    async def state(self, key: str, type: Any = Any, *, default: Any = None) -> Any:
        """The latest value that it published under a key, at any time, also when it has ended; `default` if there is none."""
        return await outputs.state(self._engine, self.id, key, type, default)

    async def states(self) -> dict[str, Any]:
        """Everything that it has published, by key."""
        return await outputs.states(self._engine, self.id)

    @overload
    def stream(
        self, name: str, type: type[T], *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[T]]: ...

    @overload
    def stream(
        self, name: str, type: Any = ..., *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[Any]]: ...

    def stream(
        self, name: str, type: Any = Any, *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[Any]]:
        """What it emits, from the item after a position or from the first, as it comes, until it ends.

        Without `follow`, what is there now. Whoever was interrupted goes on `after` the position that they saw last.
        """
        return outputs.stream(self._engine, self.id, name, type, after, follow=follow)

    async def cancel(self, reason: str = "") -> bool:
        """Ask it to stop; False if it had finished already."""
        return await self._engine.cancel(self.id, reason)

    async def pause(self, reason: str = "") -> bool:
        """Let it wait once the steps that are under way have ended; False if it is paused already or has finished."""
        return await self._engine.pause(self.id, reason=reason)

    async def resume(self) -> bool:
        """Let it go on; False if it is not paused."""
        return await self._engine.resume(self.id)

    async def evict(self) -> bool:
        """Have it given back by the worker that holds it, and taken by another if there is one; False if none held it."""
        return await self._engine.evict(self.id)

    async def wake(self, at: Moment | None = None) -> None:
        """Let the sleep that it is in end at another time, now if none is given. Raises `UsageError` if it is not asleep."""
        await self._engine.wake(self.id, at)

    async def unblock(self) -> bool:
        """Let a blocked run go on; False if it is not blocked."""
        return await self._engine.unblock(self.id)

    async def retry(self, *, deadline: Moment | None = None) -> int:
        """Open it again where it failed, or was cancelled: what succeeded stays, what failed is done anew. The new generation.

        Each generation has its own outcome: a parent that was told of the failure is not told again. A run past its deadline
        needs another one. Raises `RunFinished` if it completed, and `UsageError` if it has not ended yet.
        """
        return await reopen.retry(self._engine, self.id, deadline)

    async def recover(self) -> bool:
        """Give what has failed in it its attempts anew, at once: failing steps, a failed run, one set aside as poison.

        False if there is nothing of the kind, or if it is being worked on just now.
        """
        return await reopen.recover(self._engine, self.id)

    async def requeue(self, **changes: Unpack[RequeueOptions]) -> int:
        """Let it go on if it is a dead letter, or was cancelled; its generation. See `Engine.requeue`.

        Other arguments are for an activity, or for a run that has no history yet. Raises `UsageError` if it is not dead, or cannot
        go on like that.
        """
        return await self._engine._requeue(self.id, changes)

    async def delete(self, reason: str = "") -> bool:
        """Hide it from listings once it has finished. See `Engine.delete`."""
        return await self._engine.delete(self.id, reason)

    async def undelete(self) -> bool:
        """Bring it back; False if it was not deleted."""
        return await self._engine.undelete(self.id)

    async def fork(self, **options: Unpack[ForkOptions]) -> Handle[R_co]:
        """Start a new run that goes on from a step of this one: `fork(from_step="charge#2", results={"quote": 7})`.

        It has the input and, up to that step, the history of this run, with other arguments or results where they are given;
        nothing before the step is executed again. Raises `UsageError` before anything is written.
        """
        return Handle(self._engine, await reopen.fork(self._engine, self.id, **options), self._returns)
