"""The event loop of one run: a FIFO of ready callbacks, and nothing else.

Workflow code runs on it, one drain at a time, from a plain callback of the worker's loop. It has no clock (the history
has the time), no sockets and no threads; asking for one raises an error that says to use a step. The same completions
in the same order give the same interleaving, which makes asyncio itself replayable.

asyncio keeps tasks in sets, and a set iterates by hash. By default that is the memory address, so `asyncio.wait` and an
aborting `TaskGroup` would act in another order on replay. The futures and tasks of a run hash by the run and a counter.

`refusal_of` says errors of asyncio in workflow code in terms of workflows.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import sys
from asyncio import tasks
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar
from zlib import crc32

from msgspec import Struct

from perdure.core.codec.failure import attempts_of
from perdure.core.process_fork import suppress_pending_warning
from perdure.errors import Evicted, LoopStuck, NotInWorkflow, WorkflowError
from perdure.workflow.scopes import Scope, current_scope

#: Identifies the caller's thread.
thread_id = get_ident


class DrainContext:
    """Environment in which loops of runs are drained: the worker's loop, and hooks for asynchronous generators.

    Setting it up takes as long as some steps do, so a caller that drains many runs enters it once.
    """

    __slots__ = ("_hooks", "entered", "loop", "thread")

    def __init__(self) -> None:
        #: The loop that runs when no run does.
        self.loop = _get_running_loop()
        self.thread = thread_id()
        self._hooks = sys.get_asyncgen_hooks()
        #: Whether new asynchronous generators are held by their runs.
        self.entered = False  # equivalent: constant: nothing is drained before it is entered

    def __enter__(self) -> DrainContext:
        sys.set_asyncgen_hooks(_hold, _keep)
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False
        sys.set_asyncgen_hooks(*self._hooks)


def _hold(generator: AsyncGenerator[Any, Any]) -> None:
    """Let the run that begins a generator hold it."""
    hold = getattr(_get_running_loop(), "hold_generator", None)
    if hold is not None:
        hold(generator)


def _keep(_: AsyncGenerator[Any, Any]) -> None:
    """Do nothing: the run holds its generators, so there is nothing to finalize."""


T = TypeVar("T")

#: Callbacks without a durable operation after which a drain counts as an endless loop.
STUCK_AFTER = 100_000


class TimerSink(Protocol):
    """Receiver of asyncio's timers, which become durable timers of the run."""

    def add_timer(self, when: float, handle: RunTimerHandle, *, is_sleep: bool) -> None:
        """Fire `handle` at `when`."""

    def drop_timer(self, handle: RunTimerHandle) -> None:
        """Cancel the timer of a handle."""

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of log records of the workflow."""


class WorkflowGuard(Protocol):
    """Observer of what workflow code does besides waiting."""

    def saw_io(self, event: str, args: tuple[Any, ...], frame: FrameType | None) -> None:
        """Look at an audit event; may raise."""


class ReadyCallback(Struct, eq=False):
    """A callback in the queue."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    #: Whether the callback was cancelled.
    off: bool = False

    def cancel(self) -> None:
        """Cancel the callback."""
        self.off = True

    def cancelled(self) -> bool:
        """True if the callback was cancelled."""
        return self.off


class RunTimerHandle(asyncio.TimerHandle):
    """A timer that the workflow set through asyncio; `location` is its place in the history."""

    __slots__ = ("location", "ready")

    def __init__(self, when: float, ready: ReadyCallback, loop: RunLoop) -> None:
        super().__init__(when, ready.callback, ready.args, loop, ready.context)
        self.location = ""
        self.ready = ready
        self._scheduled = True  # else asyncio does not tell the loop of a cancellation

    def cancel(self) -> None:
        """Cancel the timer."""
        self.ready.cancel()
        super().cancel()


def _refuse_io(*_: object, **__: object) -> NoReturn:
    raise NotInWorkflow(
        "workflow code does no I/O of its own (sockets, threads, subprocesses, signals): its effects would be repeated "
        "on replay; do this in a step: `await ctx.step(function, ...)`"
    )


def _refuse_to_block(_: object, awaited: object = None) -> NoReturn:
    if asyncio.iscoroutine(awaited):
        awaited.close()  # else Python warns of it
    raise NotInWorkflow(
        "a workflow runs in an event loop already, so no other code can run that loop; `await` the coroutine in an "
        "`async def` workflow, such as `await agent.run(...)` in place of `agent.run_sync(...)`, or run the function "
        "as a step: `await ctx.step(function, ...)`"
    )


class RunLoop(asyncio.AbstractEventLoop):
    """Event loop of one run."""

    #: Watches the code of the run; none by default.
    guard: WorkflowGuard | None = None

    def __init__(self, run_id: str, timers: TimerSink, started_at: int = 0) -> None:
        #: Callbacks to be run, in order.
        self.ready: deque[ReadyCallback] = deque()
        self._timers: TimerSink | None = timers
        self.run_id = run_id
        # A bare counter would collide between runs in asyncio's global set of tasks.
        self.hash_base = crc32(run_id.encode()) << 24
        #: Scope of everything that is in no other scope.
        self.root = Scope()
        #: Callbacks since the last durable operation; very many mean an endless loop.
        self.idle_callbacks = 0
        #: Start of the run, and workflow time, that of the record being applied; in microseconds.
        self.started_at = self.now = started_at
        self.closed = False
        #: Thread that executes code of the run at the moment; 0 if none does.
        self.thread = 0
        self.tasks: dict[RunTask[Any], None] = {}
        #: Generators that may not be finished, with the path of the scope in which each began.
        self.generators: list[tuple[AsyncGenerator[Any, Any], str]] = []
        #: Called with errors that no task or future could deliver.
        self.on_error: Callable[[dict[str, Any]], None] = _ignore

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of log records of the workflow; none after its end."""
        return {} if self._timers is None else self._timers.log_fields

    # identity

    def next_hash(self) -> int:
        """Return a number that no other future of any run has, the same in every replay."""
        return self.next_hash_in(current_scope.get(self.root))

    def next_hash_in(self, scope: Scope) -> int:
        """Return such a number for an object that is made in a scope."""
        scope.futures += 1
        if not scope.path:
            return self.hash_base + scope.futures
        return self.hash_base + (scope.number << 24) + scope.futures

    def next_task_name(self) -> str:
        """Return a name for a task that was given none."""
        scope = current_scope.get(self.root)
        scope.tasks += 1
        return f"{scope.path}task-{scope.tasks}"

    # time

    def time(self) -> float:
        """Return the seconds of workflow time since the start of the run."""
        return (self.now - self.started_at) / 1e6

    # callbacks

    # The parameters are those of `AbstractEventLoop`, which types them with a variadic type variable.

    def call_soon(  # type: ignore[override] # see above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback."""
        ready = ReadyCallback(callback, args, copy_context() if context is None else context)
        self.ready.append(ready)
        return ready

    def call_later(  # type: ignore[override] # see above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Set a durable timer."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override] # see above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Set a durable timer."""
        handle = RunTimerHandle(
            when, ReadyCallback(callback, args, copy_context() if context is None else context), self
        )
        is_sleep = getattr(callback, "__name__", "") == "_set_result_unless_cancelled"
        if self._timers is not None:
            self._timers.add_timer(when, handle, is_sleep=is_sleep)
        return handle

    def fire(self, handle: RunTimerHandle) -> None:
        """Queue the callback of a timer that is due."""
        self.ready.append(handle.ready)

    def _timer_handle_cancelled(self, handle: RunTimerHandle) -> None:
        if self._timers is not None:
            self._timers.drop_timer(handle)

    # futures and tasks

    def create_future(self) -> RunFuture[Any]:
        """Make a future of this run."""
        return RunFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> RunTask[Any]:
        """Make a task of this run. Also accepts a durable operation, so that a `TaskGroup` can own one."""
        if asyncio.isfuture(coro):
            coro = _await(coro)
        elif _inside_as_completed():
            coro.close()
            raise WorkflowError(
                "asyncio.as_completed over bare coroutines starts them in an order that differs from process to "
                "process; wrap each in asyncio.create_task(...) first"
            )
        task: RunTask[Any] = RunTask(coro, loop=self, name=name, context=context)
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def create_main_task(self, coro: Coroutine[Any, Any, Any], context: Context) -> RunTask[Any]:
        """Make the main task of the workflow. It is not listed with the others; the caller keeps it."""
        # The name and the hash are the first of the root scope, as `RunTask` would ask for them.
        self.root.tasks += 1
        return RunTask(coro, loop=self, name=f"task-{self.root.tasks}", context=context)

    def _forget(self, task: Any) -> None:
        self.tasks.pop(task, None)

    # draining

    def drain(self) -> None:
        """Run callbacks until none is ready. Raises `LoopStuck` if that never happens."""
        if self.thread:
            self.run_ready()
        elif self.ready:
            with self.inside():
                self.run_ready()

    def run_ready(self) -> None:
        """Run callbacks until none is ready, with this as the running loop. Raises as `drain`."""
        self.idle_callbacks = 0
        ready = self.ready
        while ready:
            self.idle_callbacks = count = self.idle_callbacks + 1
            if count > STUCK_AFTER:
                raise LoopStuck(
                    f"the workflow ran {STUCK_AFTER:,} callbacks without waiting for anything durable; "
                    "a loop around `await asyncio.sleep(0)` never lets time pass, use `await ctx.sleep(...)`"
                )
            handle = ready.popleft()
            if handle.off:
                continue
            args = handle.args
            try:
                # Most callbacks wake a task with the future that it waits for; unpacking would make a list first.
                if len(args) == 1:
                    handle.context.run(handle.callback, args[0])
                else:
                    handle.context.run(handle.callback, *args)
            except (SystemExit, KeyboardInterrupt):
                # The task that raised it has it as its exception, from which the run's outcome is made.
                continue
            except Exception as error:
                self.call_exception_handler({"message": "error in a callback of the workflow", "exception": error})

    def wrap_drains(self, wrap: Callable[[Callable[[], None]], None]) -> None:
        """Let `wrap` call what runs the ready callbacks; for tests."""
        self.run_ready = partial(wrap, self.run_ready)  # type: ignore[method-assign] # only tests pay for it

    @property
    def is_current(self) -> bool:
        """True if code of this run is being executed by the caller's thread."""
        # asyncio is not asked, because it asks the operating system for the process id at each call.
        return self.thread == thread_id()

    @contextmanager
    def inside(self) -> Generator[None]:
        """Make this the running loop and the holder of new generators."""
        with DrainContext() as drain_context:
            before, self.thread = self.thread, drain_context.thread
            _set_running_loop(self)
            try:
                yield
            finally:
                self.thread = before
                _set_running_loop(drain_context.loop)

    def hold_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Hold a generator, so that the garbage collector never decides when its `finally` runs."""
        # CPython has `ag_frame`; the type of an async generator does not.
        if len(self.generators) > 64:
            self.generators = [
                held
                for held in self.generators
                if held[0].ag_frame is not None  # type: ignore[attr-defined] # typeshed lacks it
            ]
        self.generators.append((generator, current_scope.get(self.root).path))

    def drop_generators(self, is_location_over: Callable[[str], bool]) -> None:
        """Drop generators that began in parts of the workflow that are over. An abandoned one ends silently."""
        if self.generators:
            self.generators = [held for held in self.generators if not is_location_over(held[1])]

    def forget_tasks(self) -> None:
        """Drop what ended tasks have left: their callbacks, and those of them that did not end."""
        self.ready.clear()
        self.tasks.clear()

    def untie(self) -> None:
        """Drop the references to the execution: the run has ended."""
        self._timers = None
        self.on_error = _ignore
        self.ready.clear()

    # methods that asyncio calls

    #: Always False. A builtin, because asyncio asks for each future.
    get_debug: Any = staticmethod(bool)

    def is_running(self) -> bool:
        """Return True: only running code can ask."""
        return True

    def is_closed(self) -> bool:
        """True if the run was evicted."""
        return self.closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what asyncio could not deliver, except during eviction."""
        if not self.closed:
            self.on_error(context)

    default_exception_handler = call_exception_handler

    def get_task_factory(self) -> None:
        """Return None: tasks are made by `create_task`. anyio asks before it starts a task."""
        return

    def run_in_executor(  # type: ignore[override] # see above
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function here, if the executor has `runs_in_workflows`; refuse threads and processes."""
        if getattr(executor, "runs_in_workflows", False) is not True:
            _refuse_io()
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    @property
    def runtime(self) -> TimerSink | None:
        """The execution that the loop belongs to; None after its end."""
        return self._timers

    # Typed loosely: the parameters of refused methods do not matter.
    _refuse: Any = _refuse_io

    set_debug = _refuse
    get_exception_handler = _refuse
    set_exception_handler = _refuse
    set_task_factory = _refuse
    set_default_executor = _refuse
    shutdown_default_executor = _refuse
    shutdown_asyncgens = _refuse
    call_soon_threadsafe = _refuse
    create_connection = _refuse
    create_server = _refuse
    create_unix_connection = _refuse
    create_unix_server = _refuse
    create_datagram_endpoint = _refuse
    connect_accepted_socket = _refuse
    connect_read_pipe = _refuse
    connect_write_pipe = _refuse
    start_tls = _refuse
    sendfile = _refuse
    subprocess_exec = _refuse
    subprocess_shell = _refuse
    add_reader = _refuse
    remove_reader = _refuse
    add_writer = _refuse
    remove_writer = _refuse
    sock_accept = _refuse
    sock_connect = _refuse
    sock_recv = _refuse
    sock_recv_into = _refuse
    sock_recvfrom = _refuse
    sock_recvfrom_into = _refuse
    sock_sendall = _refuse
    sock_sendto = _refuse
    sock_sendfile = _refuse
    getaddrinfo = _refuse
    getnameinfo = _refuse
    add_signal_handler = _refuse
    remove_signal_handler = _refuse
    run_forever: Any = _refuse_to_block
    run_until_complete: Any = _refuse_to_block
    stop = _refuse
    close = _refuse


def in_workflow() -> bool:
    """True if the caller is workflow code: the running loop is that of a run."""
    return isinstance(_get_running_loop(), RunLoop)


def current_log_fields() -> dict[str, object]:
    """Fields of log records of the workflow whose code calls; none elsewhere."""
    loop = _get_running_loop()
    return loop.log_fields if isinstance(loop, RunLoop) else {}


async def _await(future: asyncio.Future[T]) -> T:
    return await future


def _ignore(_: dict[str, Any]) -> None:
    """Ignore errors of a run that has ended."""


def _inside_as_completed() -> bool:
    frame = sys._getframe(2)
    for _ in range(4):
        if frame.f_globals is not tasks.__dict__:
            return False
        if frame.f_code.co_name == "as_completed" or frame.f_code.co_qualname.startswith("_AsCompletedIterator"):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


# Bound once: `super()` makes an object for each call.
_await_future = asyncio.Future.__await__
_add_done_callback = asyncio.Future.add_done_callback
_remove_done_callback = asyncio.Future.remove_done_callback
_cancel = asyncio.Future.cancel
_result = asyncio.Future.result
_exception = asyncio.Future.exception


class RunFuture(asyncio.Future[T]):
    """A future with a hash that is the same in every process."""

    __slots__ = ("_stable_hash",)

    def __init__(self, *, loop: RunLoop) -> None:
        super().__init__(loop=loop)
        self._stable_hash = loop.next_hash()

    def __hash__(self) -> int:
        return self._stable_hash


class RunTask(asyncio.Task[T]):
    """A task with a hash that is the same in every process."""

    def __init__(self, coroutine: Any, *, loop: RunLoop, name: str | None, context: Context | None) -> None:
        self._stable_hash = loop.next_hash()
        super().__init__(coroutine, loop=loop, name=name or loop.next_task_name(), context=context)

    def __hash__(self) -> int:
        return self._stable_hash


class CancelWatcher(Protocol):
    """An object that is told when the workflow abandons an operation."""

    def abandoned(self, operation: Any) -> None:
        """Handle an operation that the workflow has cancelled."""


class OperationFuture(asyncio.Future[T]):
    """Future of a durable operation: reports its cancellation, and whether anything has ever awaited it.

    One is made for every operation, so asyncio's own code, which is several times faster than a method in Python, makes
    and awaits it. `new_operation_future` sets what that code does not know. Whether something waits shows in the
    callbacks, so `note_waiters` has to check them before the future is resolved.
    """

    __slots__ = ("label", "operation", "stable_hash", "unawaited", "watcher")

    #: The same in every replay; set once, when the future is made.
    stable_hash: int
    #: Table of futures that nothing has awaited, which lists this one; None if it need not be awaited.
    unawaited: dict[int, OperationFuture[Any]] | None
    label: str
    #: Told when the workflow cancels the operation.
    watcher: CancelWatcher | None
    operation: Any

    def __hash__(self) -> int:
        return self.stable_hash

    @property
    def is_forgotten(self) -> bool:
        """True if nothing has awaited the future, provided that it is listed."""
        return not self._callbacks

    def note_waiters(self) -> None:
        """Check whether something waits. Afterwards, awaiting the future is noted by itself."""
        unawaited = self.unawaited
        if unawaited is not None:
            if self._callbacks:
                unawaited.pop(self.stable_hash, None)
                self.unawaited = None
            else:
                self.__class__ = UnawaitedFuture  # pyright: ignore[reportAttributeAccessIssue] # of the same layout

    def observe(self, fn: Callable[[Any], object]) -> None:
        """Call back when the future is done, without counting as awaiting it."""
        self.note_waiters()
        _add_done_callback(self, fn)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback. Its owner has awaited the future."""
        self._is_awaited()
        return _remove_done_callback(self, fn)

    def cancel(self, msg: Any | None = None) -> bool:
        """Abandon the operation."""
        cancelled = _cancel(self, msg)
        if cancelled:
            self._is_awaited()
            if self.watcher is not None:
                self.watcher.abandoned(self.operation)
        return cancelled

    def _is_awaited(self) -> None:
        if self.unawaited is not None:
            self.unawaited.pop(self.stable_hash, None)
            self.unawaited = None


class UnawaitedFuture(OperationFuture[T]):
    """A future that nothing had awaited when it was resolved or observed; it notes awaiting by itself."""

    __slots__ = ()

    @property
    def is_forgotten(self) -> bool:
        """True if nothing has awaited the future, provided that it is listed."""
        return True

    def note_waiters(self) -> None:
        """Do nothing: waiters are noted anyway."""

    def __await__(self) -> Generator[Any, None, T]:
        self._is_awaited()
        return _await_future(self)

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call back when the future is done, which counts as awaiting it."""
        self._is_awaited()
        _add_done_callback(self, fn, context=context)

    def result(self) -> T:
        """Return the result, which counts as awaiting: all that `gather` of Python 3.12 does with a done future."""
        self._is_awaited()
        return _result(self)

    def exception(self) -> BaseException | None:
        """Return the exception, which counts as awaiting."""
        self._is_awaited()
        return _exception(self)


def new_operation_future(
    loop: RunLoop, scope: Scope, label: str, unawaited: dict[int, OperationFuture[Any]] | None
) -> OperationFuture[Any]:
    """Make a future for an operation, listed until something awaits it."""
    future: OperationFuture[Any] = OperationFuture(loop=loop)
    if scope.path:
        number = loop.next_hash_in(scope)
    else:
        # As `next_hash_in` does; inlined, because every step passes here.
        scope.futures += 1
        number = loop.hash_base + scope.futures
    future.stable_hash = number
    future.label = label
    future.unawaited = unawaited
    if unawaited is not None:
        unawaited[number] = future
    future.watcher = future.operation = None
    return future


#: Throws after which code that does not end stays in memory.
MAX_THROWS = 8


def end_tasks(loop: RunLoop, main: RunTask[Any] | None) -> bool:
    """End every task and generator of a run, the newest first and `main` last; False if one did not end.

    Closing a coroutine runs the user's `finally` blocks and handlers, and dropping it prints warnings. So a private
    exception is thrown through what is left of a run. Durable operations that the code calls meanwhile never resolve,
    and code that does not end after a bounded number of throws stays in memory for ever.
    """
    loop.closed = True
    if main is not None:
        loop.tasks = {main: None, **loop.tasks}
    if not loop.tasks and not loop.generators:
        return True
    # In a copy of the context: what cleanup code sets must not reach the worker.
    return copy_context().run(_end_all, loop)


def end_code(loop: RunLoop, main: RunTask[Any]) -> bool:
    """End every task and generator of a run that goes on without them, with its undos; False if one did not end."""
    try:
        return end_tasks(loop, main)
    finally:
        loop.forget_tasks()
        loop.closed = False


def _end_all(loop: RunLoop) -> bool:
    ended = True
    with loop.inside():
        for _ in range(MAX_THROWS):
            tasks, loop.tasks = loop.tasks, {}
            generators, loop.generators = loop.generators, []
            for task in reversed(tasks):
                ended &= _end_task(task)
            for generator, _ in reversed(generators):
                ended &= _throw_through(generator)
            # Cleanup code may have started more. A task that has not begun runs no code, so this ends.
            if not loop.tasks and not loop.generators:
                break
    return ended


def _end_task(task: Any) -> bool:
    suppress_pending_warning(task)
    coroutine = task.get_coro()
    if task.done() or coroutine is None or _throw_through(coroutine):
        return True
    # The garbage collector would close it, and its refusal would be printed. So it is never collected.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))
    return False


def _throw_through(code: Any) -> bool:
    error = Evicted()
    thrower: Coroutine[Any, Any, Any] = code
    try:
        if isinstance(code, AsyncGenerator):
            thrower = code.athrow(error)
            thrower.send(None)
        for _ in range(MAX_THROWS):
            thrower.throw(error)
    except BaseException:  # any exception means that the code has ended
        return True
    return False


def refusal_of(error: RuntimeError) -> NotInWorkflow | None:
    """Translate an error of asyncio that workflow code has met; None for other errors, and for those of steps."""
    text = str(error)
    if attempts_of(error) is not None:
        return None
    if "cannot be called from a running event loop" in text:
        _close_argument(error)
        return NotInWorkflow(
            f"a workflow runs in an event loop already, so {text.partition(' ')[0]} does not work in it; run the "
            "function as a step: `await ctx.step(function, ...)`, where replay does not run it again"
        )
    if "attached to a different loop" in text:
        return NotInWorkflow(
            "workflow code awaited something of another event loop, such as a future, a lock or a connection that was "
            "made outside; replay could not wait for it again; await it in a step: `await ctx.step(function, ...)`"
        )
    return None


def _close_argument(error: RuntimeError) -> None:
    """Close the coroutine that `asyncio.run` was given; otherwise Python warns first that it was never awaited."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None and trace.tb_frame.f_globals.get("__name__") == "asyncio.runners":
        for value in list(trace.tb_frame.f_locals.values()):
            if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                value.close()
