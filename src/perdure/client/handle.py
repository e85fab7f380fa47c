"""A handle on one run, from outside."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Generic, TypeVar, Unpack, overload

from msgspec import UNSET
from msgspec.structs import replace

from perdure.client.runs import messages, reopen, results
from perdure.client.runs.inspect import read_report
from perdure.client.runs.namespace import Runs
from perdure.client.runs.reopen import ForkOptions, RetryOptions
from perdure.client.runs.start import Moment
from perdure.client.session import Session
from perdure.core.audit import Event
from perdure.core.codec.snapshot import snapshot
from perdure.core.model.outputs import Interruption, StreamItem
from perdure.core.model.record import Message, Record
from perdure.core.model.reports import RunReport
from perdure.core.model.run import Run, Status
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.core.option_checks import check_instance
from perdure.core.run_log import LoggedLine, check_log_page
from perdure.core.time.duration import Duration
from perdure.store.sql.reads import interruptions, read_log
from perdure.workflow.channels import Channel, Question
from perdure.workflow.definition import Definition

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class Handle(Generic[R_co]):
    """A run of an engine, by id. It holds no state of the run: two handles of one run are the same."""

    __perdure_advice__ = "which belongs to its engine"

    #: Id of the run.
    id: str

    def __init__(self, session: Session, run_id: str, returns: Any) -> None:
        self._session = session
        self.id = run_id
        self._returns = returns

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    @property
    def _runs(self) -> Runs:
        return Runs(self._session)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end and return the result.

        Raises `RunFailed`, `RunCancelled`, or `TimeoutError` after `timeout`.
        """
        result: R_co = await self._session.results.wait_for(self.id, self._returns, timeout)
        return result

    async def info(self) -> Run:
        """Read its row and its attributes. Raises `RunNotFound`."""
        run = await self._session.find(self.id)
        shown = await (await self._session.connect()).attributes([self.id])
        return replace(run, attributes=shown.get(self.id, {}))

    async def status(self) -> Status:
        """Read its status."""
        return (await self._session.find(self.id)).status

    async def history(self) -> builtins.list[Record]:
        """Read its recorded operations, in order."""
        return await (await self._session.connect()).history(self.id)

    async def inbox(self) -> builtins.list[Message]:
        """Read the messages that were sent to it and that it has not received yet, in order."""
        return await (await self._session.connect()).inbox(self.id, 0)

    async def logs(self, *, after: int | None = None, limit: int = 100) -> builtins.list[LoggedLine]:
        """Read the log lines that workers with `keep_log` have kept with it, in order.

        They are the latest ones, at most `limit`; with `after`, the first ones past the line of that number.
        """
        last, most = check_log_page(after, limit)
        await self._session.find(self.id)
        return await read_log(await self._session.connect(), self.id, last, most)

    async def events(self) -> builtins.list[Event]:
        """Read its audit trail."""
        return await (await self._session.connect()).events(self.id)

    async def report(self) -> RunReport:
        """Summarize its attempts, steps, durations and errors, with what it waits for or has under way."""
        run = await self._session.find(self.id)
        return await read_report(await self._session.connect(), run, await self.history(), await self.events())

    async def interruptions(self) -> tuple[Interruption, ...]:
        """Read the attempts that ended without an outcome because their worker was lost or stopped, in order."""
        return await interruptions(await self._session.connect(), self.id)

    async def why(self) -> str:
        """Say in a sentence why it is where it is."""
        return await self._runs.why(self.id)

    @overload
    async def send(
        self, name: Channel[T], value: T, *, key: str | None = None, connection: object = None, reason: str = ""
    ) -> None: ...

    @overload
    async def send(
        self, name: str, value: object = None, *, key: str | None = None, connection: object = None, reason: str = ""
    ) -> None: ...

    def send(
        self,
        name: Channel[Any] | str,
        value: object = None,
        *,
        key: str | None = None,
        connection: object = None,
        reason: str = "",
    ) -> Coroutine[Any, Any, None]:
        """Send it a message. With a `key`, sending twice is sending once.

        On a `connection` of yours, it is sent when you commit. The audit trail keeps the `reason`.
        """
        return messages.send(self._session, self.id, name, snapshot(value), key, connection, reason)

    async def set_aside_messages(self) -> builtins.list[SetAsideMessage]:
        """List the messages that its workflow could not decode, with their errors and what became of them."""
        return await messages.set_aside_messages(self._session, self.id)

    async def deliver_again(self, number: int, value: object = ...) -> None:
        """Put a message that was set aside into its inbox again, as it is or with another value.

        Raises `RunFinished`, and `UsageError` if there is no such message or it was decided before.
        """
        await messages.decide(self._session, self.id, number, snapshot(value), deliver=True)

    async def drop_message(self, number: int) -> None:
        """Drop a message that was set aside. Raises `UsageError` if there is none, or it was decided before."""
        await messages.decide(self._session, self.id, number, ..., deliver=False)

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
        """Ask its workflow a question, which that receives by `ctx.receive_question`, and wait for the answer.

        With a `key`, asking again gives the answer that there is. Raises `TimeoutError` after `timeout`, `RunFinished`
        if it ends without an answer, `RunFailed` or `RunCancelled` if it ends badly.
        """
        return messages.ask(
            self._session, self.id, question, snapshot(value), returns=returns, key=key, timeout=timeout
        )

    @overload
    async def state(self, key: str, type: type[T], *, default: T) -> T: ...

    @overload
    async def state(self, key: str, type: type[T]) -> T | None: ...

    @overload
    async def state(self, key: str, type: Any = ..., *, default: Any = ...) -> Any: ...

    async def state(self, key: str, type: Any = Any, *, default: Any = None) -> Any:
        """Read the latest value that it published under a key, also after its end; `default` if there is none."""
        return await results.state(self._session, self.id, key, type, default)

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
        """Wait until it has published a certain value under a key, and return that value.

        `wanted` is the value, or a function that tells of a value whether it is meant; without it, any value is. A
        value that is replaced at once may not be seen. Raises `TimeoutError` after `timeout`, and `RunFinished` if the
        run ends without such a value.
        """
        return await results.wait_state(self._session, self.id, key, wanted, type, timeout)

    async def states(self) -> dict[str, Any]:
        """Read everything that it has published, by key."""
        return await results.states(self._session, self.id)

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
        """Yield what it emits, from the first item or from the one after a position, until it ends.

        Without `follow`, only the items that are there now. To go on after an interruption, pass the last position seen
        as `after`.
        """
        return results.stream(self._session, self.id, name, type, after, follow=follow)

    async def cancel(self, reason: str = "") -> bool:
        """Ask it to stop: its workflow gets a `CancelledError` and may clean up. False if it had finished already."""
        return await messages.cancel(self._session, self.id, reason)

    async def terminate(self, reason: str = "", *, undo: bool = False) -> bool:
        """End it now, in whatever status it is, without its code; False if it had finished already.

        With `undo`, its completed steps are undone first. `Runs.terminate` says what that means.
        """
        return await self._runs.terminate(self.id, reason, undo=undo)

    async def pause(self, reason: str = "") -> bool:
        """Pause it once the steps that are under way have ended; False if it is paused already or has finished."""
        return await self._runs.pause(self.id, reason)

    async def resume(self, reason: str = "") -> bool:
        """End its pause; False if it is not paused."""
        return await self._runs.resume(self.id, reason)

    async def set_priority(self, priority: int, reason: str = "") -> bool:
        """Change its priority; False if it has that priority already, or has finished."""
        return await Runs(self._session).set_priority(self.id, priority, reason)

    async def unpin(self, reason: str = "") -> bool:
        """Let workers of every build continue it; False if it is not pinned, or has finished."""
        return await Runs(self._session).unpin(self.id, reason)

    async def evict(self, reason: str = "") -> bool:
        """Make the worker that holds it give it back, for another to take; False if no worker held it."""
        return await self._runs.evict(self.id, reason)

    async def wake(self, at: Moment | None = None, reason: str = "") -> None:
        """End its sleep at another time, by default now. Raises `UsageError` if it is not asleep."""
        await self._runs.wake(self.id, at, reason)

    async def retry(self, **changes: Unpack[RetryOptions]) -> int:
        """Let it go again, as its status allows, and return its generation.

        `Runs.retry` says what happens in each status. Each generation has its own outcome: a parent that was told of a
        failure is not told again. A run past its deadline needs another one. Raises `RunFinished` if it completed, and
        `UsageError` if there is nothing to retry.
        """
        return await self._runs.retry(self.id, **changes)

    async def delete(self, reason: str = "", *, purge: bool = False) -> bool:
        """Hide it from listings; pause it if it is not over. False if it was hidden. `purge` deletes it for good."""
        return await self._runs.delete(self.id, reason, purge=purge)

    async def undelete(self) -> bool:
        """Bring it back; False if it was not deleted."""
        return await self._runs.undelete(self.id)

    async def fork(self, **options: Unpack[ForkOptions]) -> Handle[R_co]:
        """Start a new run that goes on from a step of this one: `fork(from_step="charge#2", results={"quote": 7})`.

        It has the input and, up to that step, the history of this run, with other arguments or results where they are
        given. No earlier step is executed again. `from_step` is a location, or the number of the step's record (`seq`).
        Raises `UsageError` before anything is written.
        """
        return Handle(self._session, await reopen.fork(self._session, self.id, **options), self._returns)


async def get_handle(
    session: Session, run_id: str, workflow: Definition[..., Any] | None = None, kind: type[Handle[Any]] = Handle
) -> Handle[Any]:
    """Make a handle on a run that exists. Raises `RunNotFound`."""
    run = await session.find(run_id)
    check_instance("workflow", workflow, Definition, "the workflow `checkout`")
    known = session.workflows.get(run.type) if workflow is None else workflow
    return kind(session, run.id, Any if known is None else known.signature.returns)
