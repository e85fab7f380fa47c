"""Replay in processes with other hash seeds, which finds workflow code that depends on the order of a set.

A process cannot change its own hash seed. So helper processes are started, once for the life of this one, each with a
seed of its own. For each request a helper forks a child, which imports the workflows anew and replays the histories.
Whatever differs depends on the process: the order of a set, `hash`, `id`, or the state of a module.

The helpers also resume crashed runs for `crash_everywhere` (`crash_processes.py`), because they have nothing in memory.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from perdure.client.engine import Engine
from perdure.client.session import Session, session_of
from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Record
from perdure.core.model.run import Run, Status
from perdure.errors import DecodeError, Diverged
from perdure.worker.run.workflow_run import execution_of
from perdure.workflow.definition import Definition, Workflow

logger = logging.getLogger("perdure.testing")

#: A set of two words has the same order in all of them, and here, once in eight times.
SEEDS = ("1", "2", "3")

#: Time for one request, in seconds; a module that starts a server when it is imported never answers.
PATIENCE = 60.0

#: Runs that are each replayed in a process of their own; the rest shares one.
_APART = 100

#: First byte of a request: histories to replay, or states to resume from.
REPLAY, RESUME = b"r", b"c"
#: First byte of an answer.
DONE, FAILED = b"+", b"-"

_LENGTH = struct.Struct(">I")
_SILENT = logging.Logger("perdure.hash_seeds", logging.CRITICAL + 1)  # noqa: LOG001 - it has no handlers on purpose


class CodePlace(msgspec.Struct, frozen=True):
    """Place that a class or a workflow can be imported from."""

    module: str
    name: str
    file: str = ""


class ReplayRequest(msgspec.Struct, frozen=True):
    """Histories to replay, and the code to replay them with."""

    path: list[str]
    workflows: list[CodePlace]
    errors: list[CodePlace]
    runs: list[tuple[Run, tuple[Record, ...]]]


class Difference(msgspec.Struct, frozen=True):
    """A run that went another way."""

    run_id: str
    type: str
    expected: str
    found: str
    #: True: it went the same way and ended otherwise.
    is_result: bool = False


class ReplayAnswer(msgspec.Struct, frozen=True):
    """Differences, or the reason why the helper could not replay."""

    differences: list[Difference] = []
    problem: str = ""


def place_of_code(code: Any) -> CodePlace | None:
    """Find out from where a definition or class is imported; None for one inside a function or a script."""
    module = sys.modules.get(code.__module__)
    if module is None or "<locals>" in code.__qualname__ or module.__spec__ is None:
        return None
    return CodePlace(code.__module__, code.__qualname__, getattr(module, "__file__", None) or "")


def make_request(session: Session, errors: Iterable[type[Exception]], loaded: Sequence[LoadedRun]) -> ReplayRequest:
    """Select the runs whose code other processes can import."""
    places = {type: place for type, code in session.workflows.items() if (place := place_of_code(code)) is not None}
    return ReplayRequest(
        path=list(sys.path),
        workflows=list(places.values()),
        errors=[place for each in errors if (place := place_of_code(each)) is not None],
        runs=[
            (one.run, one.records)
            for one in loaded
            if one.run.type in places and one.run.started_at and isinstance(session.workflows[one.run.type], Workflow)
        ],
    )


# this process


class SeededProcess:
    """A helper process with a hash seed."""

    def __init__(self, seed: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from perdure.testing.hash_seeds import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # A group of its own, so that a replay without end can be ended with its process.
            start_new_session=True,
        )
        self.seed = seed
        #: True: it did not answer. A process that was killed may still be there for a moment.
        self._silent = False

    @property
    def alive(self) -> bool:
        """True if the process can be asked."""
        return not self._silent and self._process.poll() is None

    def replay(self, request: bytes) -> ReplayAnswer:
        """Send histories and wait for the differences."""
        answer, problem = self.ask(REPLAY, request)
        return ReplayAnswer(problem=problem) if problem else _ANSWER.decode(answer)

    def ask(self, kind: bytes, request: bytes) -> tuple[bytes, str]:
        """Send a request and wait for its answer, or for the reason why there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._kill)
        timer.start()
        try:
            _write(self._process.stdin, kind + request)
            answer = _read(self._process.stdout)
        except OSError as error:
            self._silent = True
            return b"", f"the helper process is gone: {error}"
        finally:
            timer.cancel()
        if answer is None:
            self._silent = True
            return b"", f"the helper process ended, or took longer than {PATIENCE:.0f} s"
        return (answer[1:], "") if answer[:1] == DONE else (b"", answer[1:].decode())

    def _kill(self) -> None:
        if hasattr(os, "killpg"):
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


class SeededProcesses:
    """The helper processes of this process, started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[SeededProcess] = []
        self._owner = 0

    def replay(self, request: ReplayRequest, first: int = 0) -> list[Difference]:
        """Replay with every seed from the number `first` on; returns the differences of the first that has some."""
        encoded = _ENCODER.encode(request)
        with self._lock:
            for process in self._started()[first:]:
                answer = process.replay(encoded)
                if answer.problem:
                    logger.warning("workflows were not replayed with another hash seed: %s", answer.problem)
                    return []
                if answer.differences:
                    return answer.differences
        return []

    def spread(self, kind: bytes, requests: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Send each request to one of the processes, in turn; returns the answers, or reasons why there is none."""
        with self._lock:
            return [self._started()[number % len(SEEDS)].ask(kind, request) for number, request in enumerate(requests)]

    def _started(self) -> list[SeededProcess]:
        if self._owner != os.getpid():
            # Those of a parent process belong to it.
            self._processes, self._owner = [SeededProcess(seed) for seed in SEEDS], os.getpid()
            atexit.register(self._close, os.getpid())
        for index, process in enumerate(self._processes):
            if not process.alive:
                process.close()
                self._processes[index] = SeededProcess(process.seed)
        return self._processes

    def _close(self, owner: int) -> None:
        if owner == os.getpid():
            for process in self._processes:
                process.close()
            self._processes, self._owner = [], 0


processes = SeededProcesses()


# the helper process


def serve() -> None:
    """Answer requests until the parent process ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # What the code prints must not get between the answers, and was printed by the test already.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    # A child that never collects garbage copies fewer pages.
    gc.disable()
    gc.freeze()
    while (request := _read(requests)) is not None:
        if request[:1] == RESUME:
            _warm_up()
        if not hasattr(os, "fork"):
            _write(answers, _answer(request))
        elif (child := os.fork()) == 0:
            _write(answers, _answer(request))
            os._exit(0)
        elif os.waitpid(child, 0)[1]:
            _write(answers, FAILED + b"a replay ended its process")


@functools.cache
def _warm_up() -> None:
    """Import and prepare what each child would otherwise import and prepare again."""
    from perdure.testing.crash_processes import warm_up

    warm_up()


def _answer(request: bytes) -> bytes:
    try:
        if request[:1] == REPLAY:
            return DONE + _ENCODER.encode(ReplayAnswer(differences=_replay(_REQUEST.decode(request[1:]))))
        # Imported late: it builds on the environment, which builds on this module.
        from perdure.testing.crash_processes import answer

        return DONE + answer(request[1:])
    except Exception as error:
        return FAILED + f"{type(error).__name__}: {error}".encode()


def _replay(request: ReplayRequest) -> list[Difference]:
    sys.path[:] = request.path
    definitions = [_definition(place) for place in request.workflows]
    session = session_of(Engine("sqlite://", definitions, errors=[import_code(place) for place in request.errors]))
    # The only run has this process for itself.
    apart = _APART if len(request.runs) > 1 else 0
    found = [
        _compare_apart(session, run, records) if index < apart else compare(session, run, records)
        for index, (run, records) in enumerate(request.runs)
    ]
    return [difference for difference in found if difference is not None]


def _compare_apart(session: Session, run: Run, records: tuple[Record, ...]) -> Difference | None:
    """Replay a run in a process of its own, which has nothing left of other runs."""
    answer = in_child(lambda: _ENCODER.encode(compare(session, run, records)))
    if not answer:
        return Difference(run.id, run.type, "the recorded path", "the replay ended its process")
    difference: Difference | None = _DIFFERENCE.decode(answer)
    return difference


def in_child(make: Callable[[], bytes]) -> bytes:
    """Call a function in a forked child, or here if the system cannot fork; empty if the child ended early."""
    if not hasattr(os, "fork"):
        return make()
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(target, "wb") as pipe:
            pipe.write(make())
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def _definition(place: CodePlace) -> Definition[Any, Any]:
    code = import_code(place)
    # A class is a state machine.
    return code.definition() if isinstance(code, type) else code  # type: ignore[attr-defined, no-any-return] # it has `definition`


def import_code(place: CodePlace) -> Any:
    """Import a class, a workflow or another object by its place."""
    try:
        found: Any = importlib.import_module(place.module)
    except ModuleNotFoundError:
        # A test module, which pytest imports under a name that is on no path.
        spec = importlib.util.spec_from_file_location(place.module, place.file)
        if spec is None or spec.loader is None:
            raise
        found = sys.modules[place.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for part in place.name.split("."):
        found = getattr(found, part)
    return found


def compare(session: Session, run: Run, records: tuple[Record, ...]) -> Difference | None:
    """Replay a run; None if it goes the same way."""
    workflow = session.workflows[run.type]
    assert isinstance(workflow, Workflow)
    execution = execution_of(
        *(run, workflow, records, session.codec, session.errors, _SILENT), layers=session.layers.workflow
    )
    try:
        execution.begin()
        execution.replay(lambda: True)
    except Diverged as error:
        return Difference(run.id, run.type, error.expected, error.found)
    except DecodeError as error:
        return Difference(run.id, run.type, "the recorded values", str(error))
    finally:
        execution.evict()
    if execution.warnings:
        return Difference(run.id, run.type, "the recorded arguments", execution.warnings[0])
    if run.status is not Status.COMPLETED:
        return None
    outcome = execution.outcome
    if outcome is None or outcome.status is not Status.COMPLETED:
        found = "it still waits" if outcome is None else f"it ends as {outcome.status.value}"
        return Difference(run.id, run.type, "it completes", found, is_result=True)
    if _value(session, workflow, outcome.payload) != _value(session, workflow, run.output):
        return Difference(run.id, run.type, f"the result {run.output}", f"the result {outcome.payload}", True)
    return None


def _value(session: Session, workflow: Workflow[Any, Any], payload: str | None) -> Any:
    """The result, decoded: the elements of a set are stored in any order."""
    try:
        return session.codec.decode(payload or "null", workflow.signature.returns, "result")
    except DecodeError:
        return payload


# both


_ENCODER = msgspec.msgpack.Encoder()
_REQUEST = msgspec.msgpack.Decoder(ReplayRequest)
_ANSWER = msgspec.msgpack.Decoder(ReplayAnswer)
_DIFFERENCE = msgspec.msgpack.Decoder(Difference | None)


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    return pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
