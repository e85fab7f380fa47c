"""The engine for code that is not async: every call goes to one background event loop and waits for the answer.

What is written on a connection of the caller's is written on the caller's own thread, where that connection belongs.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from perdure.client.blocking_breakers import BlockingBreakers
from perdure.client.blocking_flow import BlockingFlow
from perdure.client.blocking_pushing import BlockingPushing
from perdure.client.blocking_schedules import BlockingSchedules
from perdure.client.refusing import refuse_in_workflow
from perdure.core.process_fork import ForkAware, detach_loop, never_finalize, watch_forks
from perdure.errors import EngineClosed, UsageError
from perdure.store.sql.dialect import drive
from perdure.store.user_connections.adapter import adapter_for

if TYPE_CHECKING:
    from perdure.client.audit import EventOptions
    from perdure.client.dead_letters import DeadOptions, Decided, Deleted, RequeueOptions
    from perdure.client.engine import Engine
    from perdure.client.handle import Handle
    from perdure.client.outputs import StreamItem
    from perdure.client.reopen import ForkOptions
    from perdure.client.start import Moment, StartOptions
    from perdure.core.audit import Event, EventPage
    from perdure.core.model.dead_letter import DeadLetter, DeadLetterPage
    from perdure.core.model.deploy_report import DeployReport
    from perdure.core.model.orders import Pause
    from perdure.core.model.outputs import Interruption
    from perdure.core.model.record import Record
    from perdure.core.model.run import Run, RunPage, Status
    from perdure.core.model.run_report import RunReport
    from perdure.core.routing import TypeInfo
    from perdure.core.time.duration import Duration
    from perdure.workflow.channels import Channel, Question
    from perdure.workflow.definition import Call, Definition

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Q = TypeVar("Q")
A = TypeVar("A")


class Blocking(BlockingFlow, BlockingPushing, ForkAware):
    """An engine whose methods block. Close it, or use it in a `with`. In a forked child it begins anew."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed = False
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        """Set up what belongs to one process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _after_fork_in_child(self) -> None:
        """Leave the background loop to the parent: it has no thread here."""
        if self._loop is not None:
            detach_loop(self._loop)
        never_finalize(self._loop, self._thread)
        self._begin()

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine and end the background loop."""
        refuse_in_workflow()
        if self._closed:
            return
        self._wait(self._engine.close())
        self._closed = True
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> BlockingHandle[R]:
        """See `Engine.start`. A `connection` is one of a library that is not async."""
        handle = self._on(connection, self._engine.start(call, connection=connection, **options))
        return BlockingHandle(self, handle)

    def start_many(
        self, calls: Sequence[Call[R]], *, connection: object = None, **options: Any
    ) -> builtins.list[BlockingHandle[R]]:
        """See `Engine.start_many`."""
        handles = self._on(connection, self._engine.start_many(calls, connection=connection, **options))
        return [BlockingHandle(self, handle) for handle in handles]

    @overload
    def get(self, run_id: str, workflow: None = None) -> BlockingHandle[Any]: ...

    @overload
    def get(self, run_id: str, workflow: Definition[..., R]) -> BlockingHandle[R]: ...

    def get(self, run_id: str, workflow: Definition[..., Any] | None = None) -> BlockingHandle[Any]:
        """See `Engine.get`."""
        return BlockingHandle(self, self._wait(self._engine.get(run_id, workflow)))

    def events(self, *, limit: int = 100, cursor: int | None = None, **options: Unpack[EventOptions]) -> EventPage:
        """See `Engine.events`."""
        return self._wait(self._engine.events(limit=limit, cursor=cursor, **options))

    def follow_events(self, *, after: int | None = None, **options: Unpack[EventOptions]) -> Generator[Event]:
        """See `Engine.follow_events`."""
        return self._iterate(self._engine.follow_events(after=after, **options))

    def prune_events(self, older_than: Duration) -> int:
        """See `Engine.prune_events`."""
        return self._wait(self._engine.prune_events(older_than))

    def list(self, **filters: Any) -> RunPage:
        """See `Engine.list`."""
        return self._wait(self._engine.list(**filters))

    def send(
        self,
        run_id: str,
        name: Channel[Any] | str,
        value: object = None,
        *,
        key: str | None = None,
        connection: object = None,
    ) -> None:
        """See `Engine.send`."""
        self._on(connection, self._engine.send(run_id, name, value, key=key, connection=connection))

    def broadcast(
        self, name: Channel[Any] | str, value: object = None, *, correlation: str, key: str | None = None
    ) -> int:
        """See `Engine.broadcast`."""
        return self._wait(self._engine.broadcast(name, value, correlation=correlation, key=key))

    def cancel(self, run_id: str, reason: str = "") -> bool:
        """See `Engine.cancel`."""
        return self._wait(self._engine.cancel(run_id, reason))

    def pause(self, run_id: str | None = None, **what: Any) -> bool:
        """See `Engine.pause`."""
        return self._wait(self._engine.pause(run_id, **what))

    def resume(self, run_id: str | None = None, **what: Any) -> bool:
        """See `Engine.resume`."""
        return self._wait(self._engine.resume(run_id, **what))

    def paused(self) -> builtins.list[Pause]:
        """See `Engine.paused`."""
        return self._wait(self._engine.paused())

    def types(self) -> builtins.list[TypeInfo]:
        """See `Engine.types`."""
        return self._wait(self._engine.types())

    def evict(self, run_id: str) -> bool:
        """See `Engine.evict`."""
        return self._wait(self._engine.evict(run_id))

    def wake(self, run_id: str, at: Moment | None = None) -> None:
        """See `Engine.wake`."""
        self._wait(self._engine.wake(run_id, at))

    def why(self, run_id: str) -> str:
        """See `Engine.why`."""
        return self._wait(self._engine.why(run_id))

    @property
    def breakers(self) -> BlockingBreakers:
        """See `Engine.breakers`."""
        return BlockingBreakers(self)

    @property
    def schedules(self) -> BlockingSchedules:
        """See `Engine.schedules`."""
        return BlockingSchedules(self)

    def dead_letters(
        self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[DeadOptions]
    ) -> DeadLetterPage:
        """See `Engine.dead_letters`."""
        return self._wait(self._engine.dead_letters(limit=limit, cursor=cursor, **which))

    def dead_letter(self, run_id: str) -> DeadLetter:
        """See `Engine.dead_letter`."""
        return self._wait(self._engine.dead_letter(run_id))

    def requeue(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: DeadOptions | None = None,
        **changes: Unpack[RequeueOptions],
    ) -> Decided:
        """See `Engine.requeue`."""
        return self._wait(self._engine.requeue(run_ids, where=where, **changes))

    def discard(
        self, run_ids: str | Sequence[str] | None = None, *, where: DeadOptions | None = None, reason: str = ""
    ) -> Decided:
        """See `Engine.discard`."""
        return self._wait(self._engine.discard(run_ids, where=where, reason=reason))

    def purge(self, older_than: Duration, **which: Unpack[DeadOptions]) -> Deleted:
        """See `Engine.purge`."""
        return self._wait(self._engine.purge(older_than, **which))

    def prune(self, older_than: Duration, **which: Any) -> Deleted:
        """See `Engine.prune`."""
        return self._wait(self._engine.prune(older_than, **which))

    def check(self, *, types: Sequence[str] | None = None, limit: int | None = None) -> DeployReport:
        """See `Engine.check`."""
        return self._wait(self._engine.check(types=types, limit=limit))

    @contextmanager
    def worker(self, **options: Any) -> Generator[None]:
        """A worker on the background loop, for as long as the `with` lasts. See `Engine.worker`."""
        worker = self._engine.worker(**options)
        self._wait(worker.start())
        process = self._process
        try:
            yield
        finally:
            # A child that was forked in the block leaves the worker to its parent.
            if process == self._process:
                self._wait(worker.stop())

    def _on(self, connection: object, coroutine: Coroutine[Any, Any, R]) -> R:
        if connection is None:
            return self._wait(coroutine)
        try:
            refuse_in_workflow()
            adapter = adapter_for(connection)
            if adapter.is_async:
                raise UsageError(
                    f"a connection of {adapter.library} that is async belongs to its event loop; use the engine itself there: "
                    "`await engine.start(..., connection=connection)`"
                )
            return drive(coroutine)
        finally:
            coroutine.close()

    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        try:
            self._check()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _check(self) -> None:
        """Raise unless the caller may wait for the background loop."""
        refuse_in_workflow()
        if self._closed:
            raise EngineClosed(f"{self._engine!r} was closed; make a new one")
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking engine cannot wait on its own event loop; call it from a sync step instead")

    def _running(self) -> asyncio.AbstractEventLoop:
        # Begun when it is needed: whoever only writes on connections needs none, and a server that forks must not copy it.
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="perdure blocking", daemon=True)
                self._thread.start()
            return self._loop

    def _iterate(self, items: AsyncGenerator[R]) -> Generator[R]:
        process = self._process
        try:
            while (item := self._wait(_next(items))) is not None:
                yield item
                if process != self._process:
                    raise EngineClosed(
                        "this iteration was begun by the process that this one was forked from; begin another"
                    )
        finally:
            # Whoever closed the engine in the middle of it has ended it.
            with suppress(EngineClosed):
                if process == self._process:
                    self._wait(_end(items))
                else:
                    never_finalize(items)


class BlockingHandle(Generic[R_co]):
    """A run, seen from code that is not async."""

    def __init__(self, blocking: Blocking, handle: Handle[R_co]) -> None:
        self._blocking = blocking
        self._on, self._wait = blocking._on, blocking._wait
        self._handle = handle
        self.id = handle.id

    def result(self, timeout: Duration | None = None) -> R_co:
        """See `Handle.result`."""
        return self._wait(self._handle.result(timeout))

    def run(self) -> Run:
        """See `Handle.run`."""
        return self._wait(self._handle.run())

    def status(self) -> Status:
        """See `Handle.status`."""
        return self._wait(self._handle.status())

    def history(self) -> list[Record]:
        """See `Handle.history`."""
        return self._wait(self._handle.history())

    def events(self) -> list[Event]:
        """See `Handle.events`."""
        return self._wait(self._handle.events())

    def report(self) -> RunReport:
        """See `Handle.report`."""
        return self._wait(self._handle.report())

    def interruptions(self) -> tuple[Interruption, ...]:
        """See `Handle.interruptions`."""
        return self._wait(self._handle.interruptions())

    def why(self) -> str:
        """See `Handle.why`."""
        return self._wait(self._handle.why())

    def send(
        self, name: Channel[Any] | str, value: object = None, *, key: str | None = None, connection: object = None
    ) -> None:
        """See `Handle.send`."""
        self._on(connection, self._handle.send(name, value, key=key, connection=connection))

    @overload
    def ask(
        self, question: Question[Q, A], value: Q, *, key: str | None = None, timeout: Duration | None = None
    ) -> A: ...

    @overload
    def ask(
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
    ) -> Any:
        """See `Handle.ask`."""
        asking: Any = self._handle.ask
        return self._wait(asking(question, value, returns=returns, key=key, timeout=timeout))

    def state(self, key: str, type: Any = Any, *, default: Any = None) -> Any:
        """See `Handle.state`."""
        return self._wait(self._handle.state(key, type, default=default))

    def states(self) -> dict[str, Any]:
        """See `Handle.states`."""
        return self._wait(self._handle.states())

    def stream(
        self, name: str, type: Any = Any, *, after: int | None = None, follow: bool = True
    ) -> Generator[StreamItem[Any]]:
        """See `Handle.stream`."""
        return self._blocking._iterate(self._handle.stream(name, type, after=after, follow=follow))

    def cancel(self, reason: str = "") -> bool:
        """See `Handle.cancel`."""
        return self._wait(self._handle.cancel(reason))

    def retry(self, *, deadline: Moment | None = None) -> int:
        """See `Handle.retry`."""
        return self._wait(self._handle.retry(deadline=deadline))

    def recover(self) -> bool:
        """See `Handle.recover`."""
        return self._wait(self._handle.recover())

    def requeue(self, **changes: Unpack[RequeueOptions]) -> int:
        """See `Handle.requeue`."""
        return self._wait(self._handle.requeue(**changes))

    def delete(self, reason: str = "") -> bool:
        """See `Handle.delete`."""
        return self._wait(self._handle.delete(reason))

    def undelete(self) -> bool:
        """See `Handle.undelete`."""
        return self._wait(self._handle.undelete())

    def fork(self, **options: Unpack[ForkOptions]) -> BlockingHandle[R_co]:
        """See `Handle.fork`."""
        return BlockingHandle(self._blocking, self._wait(self._handle.fork(**options)))

    def pause(self, reason: str = "") -> bool:
        """See `Handle.pause`."""
        return self._wait(self._handle.pause(reason))

    def resume(self) -> bool:
        """See `Handle.resume`."""
        return self._wait(self._handle.resume())

    def evict(self) -> bool:
        """See `Handle.evict`."""
        return self._wait(self._handle.evict())

    def wake(self, at: Moment | None = None) -> None:
        """See `Handle.wake`."""
        self._wait(self._handle.wake(at))


async def _next(items: AsyncGenerator[R]) -> R | None:
    return await anext(items, None)


async def _end(items: AsyncGenerator[R]) -> None:
    await items.aclose()
