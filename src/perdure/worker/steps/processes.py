"""Processes for steps that would keep a thread busy: `@step(process=True)`.

Each is a fresh interpreter, started when it is first needed and reused. A call occupies a thread of the worker, which
talks to the process. Unlike a thread, a process is killed when its step times out or is cancelled. All processes end
with the worker: it kills them when it stops, and they end by themselves when it dies.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.headers import NO_HEADERS, Headers
from perdure.errors import ProcessDied, StepFailed, UsageError
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import ActivityInfo, StepInfo, current_step

#: Seconds that an interpreter may take to start.
START_SECONDS = 60.0

_EMITTED, _RETURNED, _RAISED, _BEAT = range(4)


class StepProcesses:
    """A pool of processes, up to a limit; further steps wait."""

    def __init__(self, limit: int | None = None) -> None:
        self._room = threading.Semaphore(limit or os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    def call(self, request: StepRequest, info: StepInfo, begun: Callable[[], object]) -> ProcessCall:
        """Make a call, to be run in a thread; `begun` is called there once it has a process."""
        return ProcessCall(self, request, info, begun)

    def take(self) -> _Process:
        """Take a process, waiting for one if necessary. Call it in a thread."""
        self._room.acquire()
        try:
            with self._lock:
                if self._closed:
                    raise ProcessDied("the worker has stopped")
                process = self._idle.pop() if self._idle else _Process()
                self._all.add(process)
                return process
        except BaseException:
            self._room.release()
            raise

    def give_back(self, process: _Process) -> None:
        """Return a process to the pool, unless it is dead."""
        with self._lock:
            again = not process.is_dead and not self._closed
            if again:
                self._idle.append(process)
            else:
                self._all.discard(process)
        if not again:
            process.end()
        self._room.release()

    def close(self) -> None:
        """Kill all processes."""
        with self._lock:
            self._closed = True
            processes, self._all, idle, self._idle = self._all, set(), self._idle, []
        for process in processes:
            process.kill()
        for process in idle:
            process.end()


class ProcessCall:
    """A call of a step's function in a process."""

    def __init__(self, pool: StepProcesses, request: StepRequest, info: StepInfo, begun: Callable[[], object]) -> None:
        self._pool = pool
        self._request = request
        self._info = info
        self._begun = begun
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._killed = False

    def run(self) -> Any:
        """Call the function, and return or raise what it does. Call it in a thread."""
        data = _pickled(self._request, self._info)
        process = self._pool.take()
        try:
            with self._lock:
                self._process = process
                if self._killed:
                    return None
            process.get_ready(self._info)
            self._begun()
            return process.call(data, self._info)
        finally:
            with self._lock:
                self._process = None
            self._pool.give_back(process)

    def kill(self) -> None:
        """Kill the process; the result is not needed any more. Call it from any thread."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


class _Process:
    """An interpreter that calls one function after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="perdure step", daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False
        self.is_dead = False

    def get_ready(self, info: StepInfo) -> None:
        """Wait until the interpreter has started, which does not count against a step's timeout."""
        if not self._ready:
            if not self._connection.poll(START_SECONDS):
                self.kill()
            self._receive(info)
            self._ready = True

    def call(self, data: bytes, info: StepInfo) -> Any:
        """Call a function and wait for its end."""
        try:
            self._connection.send_bytes(data)
        except OSError:
            raise self._died(info) from None
        while True:
            kind, content = pickle.loads(self._receive(info))  # noqa: S301 - our own process wrote it
            if kind == _RETURNED:
                return content
            if kind == _RAISED:
                raise content
            if kind == _BEAT and isinstance(info, ActivityInfo):
                info.heartbeat(content)
            else:
                info.emit(*content)

    def kill(self) -> None:
        """Kill the process; harmless when it has ended."""
        self.is_dead = True
        self._process.kill()

    def end(self) -> None:
        """Kill the process and release its resources."""
        self.kill()
        self._process.join()
        self._connection.close()

    def _receive(self, info: StepInfo) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._died(info) from None

    def _died(self, info: StepInfo) -> ProcessDied:
        self.is_dead = True
        self._process.join()
        why = (
            ""
            if self._ready
            else '; if that happens each time: a script needs `if __name__ == "__main__":` around the start of a '
            "worker, and what a step needs has to be importable"
        )
        return ProcessDied(
            f"the process of step {info.location!r} of run {info.run_id!r} ended with exit code "
            f"{self._process.exitcode} before the step did{why}"
        )


def _pickled(request: StepRequest, info: StepInfo) -> bytes:
    given = dict(info.credentials()), dict(info.headers), info.log_fields
    told: tuple[Any, ...] = given, info.run_id, info.location, info.attempt, info.due
    if isinstance(info, ActivityInfo):
        told += info.type, info.max_attempts, info.parent_id, info.attempt_id, info.ready_at, info.last_heartbeat
        told += (info.token,)
    try:
        return pickle.dumps((request.spec.function, request.args, request.kwargs, *told))
    except Exception as error:
        raise UsageError(
            f"step {info.location!r} of run {info.run_id!r} is to run in a process of its own, so its function and "
            f"arguments have to be picklable: {error}; define the function at the top of a module, "
            "and pass it plain data"
        ) from error


class _Caller:
    """The process's side of `step_info`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credentials: Mapping[str, Any] = {}
        self._headers: Headers = NO_HEADERS
        self._fields: dict[str, object] = {}
        self._token = ""

    def given(self, credentials: Mapping[str, Any], headers: Headers, fields: dict[str, object]) -> None:
        """Set the credentials, the headers and the fields of log records for the next call."""
        self._credentials, self._headers, self._fields = credentials, headers, fields

    def given_token(self, token: str) -> None:
        """Set the token of the attempt."""
        self._token = token

    def token(self) -> str:
        """Token of the attempt."""
        return self._token

    def credentials(self) -> Mapping[str, Any]:
        """Credentials at the time of the call."""
        return self._credentials

    def headers(self) -> Headers:
        """Headers of the run."""
        return self._headers

    def run_fields(self) -> dict[str, object]:
        """Fields of log records about the run."""
        return self._fields

    def is_over(self) -> bool:
        """Return False: a process whose result is not needed is killed."""
        return False

    def emit(self, stream: str, value: object) -> None:
        """Send an item to the worker."""
        self._connection.send_bytes(pickle.dumps((_EMITTED, (stream, value))))

    def beat(self, details: object) -> None:
        """Send a heartbeat to the worker."""
        self._connection.send_bytes(pickle.dumps((_BEAT, details)))

    def is_cancelled(self) -> bool:
        """Return False: a cancelled process is killed."""
        return False

    def uncancel(self) -> bool:
        """Return False: a cancelled process is killed."""
        return False

    async def cancelled(self) -> None:
        """Raise `UsageError`: a cancelled process is killed."""
        raise UsageError("an activity in a process of its own is killed when it is cancelled; it cannot wait for that")


def _serve(connection: Connection) -> None:
    """Main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker gets the same signal and decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send_bytes(b"ready")
    while True:
        try:
            data = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answer(data, _Caller(connection)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _answer(data: bytes, caller: _Caller) -> bytes:
    try:
        call = pickle.loads(data)  # noqa: S301 - the worker wrote it
        function, args, kwargs, given, run_id, location, number, due, *more = call
        caller.given(*given)
        if more:
            type, max_attempts, parent_id, attempt_id, ready_at, last, token = more
            caller.given_token(token)
            current_step.set(
                ActivityInfo(
                    run_id,
                    location,
                    number,
                    due,
                    caller,
                    type,
                    max_attempts,
                    parent_id,
                    attempt_id,
                    ready_at,
                    last,
                    caller,
                )
            )
        else:
            current_step.set(StepInfo(run_id, location, number, due, caller))
        result = function(*args, **kwargs)
    except BaseException as error:
        return _raised(error)
    try:
        return pickle.dumps((_RETURNED, result))
    except Exception as error:
        return _raised(UsageError(f"what a step returns from a process of its own has to be picklable: {error}"))


def _raised(error: BaseException) -> bytes:
    where = "".join(traceback.format_tb(error.__traceback__))
    failure = Failure.of(error, Codec())
    try:
        error.add_note(f"In its process (most recent call last):\n{where}")
        data = pickle.dumps((_RAISED, error))
        pickle.loads(data)  # noqa: S301 - some classes can be pickled and not be made again
    except Exception:
        data = pickle.dumps((_RAISED, StepFailed(str(failure), failure=failure)))
    return data
