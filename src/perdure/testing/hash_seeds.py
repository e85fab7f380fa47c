"""Replay in processes with other hash seeds, which finds workflow code that depends on the order of a set.

A process cannot change its own hash seed. So helper processes are started, once for the life of this one, each with a
seed of its own. For each request a helper forks a child, which imports the workflows anew and replays the histories.
Whatever differs depends on the process: the order of a set, `hash`, `id`, or the state of a module.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
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


class ReplayAnswer(msgspec.Struct, frozen=True):
    """Differences, or the reason why the helper could not replay."""

    differences: list[Difference] = []
    problem: str = ""


def place_of_code(code: Any) -> CodePlace | None:
    """Find out from where a definition or class is imported; None for one inside a function or a script."""
    module = sys.modules.get(code.__module__)
    if module is None or "<locals>" in code.__qualname__ or code.__module__ == "__main__":
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

    def ask(self, request: bytes) -> ReplayAnswer:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._kill)
        timer.start()
        try:
            _write(self._process.stdin, request)
            answer = _read(self._process.stdout)
        except OSError as error:
            self._silent = True
            return ReplayAnswer(problem=f"the helper process is gone: {error}")
        finally:
            timer.cancel()
        self._silent = answer is None
        problem = f"the helper process ended, or took longer than {PATIENCE:.0f} s"
        return ReplayAnswer(problem=problem) if answer is None else _ANSWER.decode(answer)

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

    def replay(self, request: ReplayRequest) -> list[Difference]:
        """Replay with every seed; returns the differences of the first that has some."""
        encoded = _ENCODER.encode(request)
        with self._lock:
            for process in self._started():
                answer = process.ask(encoded)
                if answer.problem:
                    logger.warning("workflows were not replayed with another hash seed: %s", answer.problem)
                    return []
                if answer.differences:
                    return answer.differences
        return []

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
    while (request := _read(requests)) is not None:
        if not hasattr(os, "fork"):
            _write(answers, _answer(request))
        elif (child := os.fork()) == 0:
            _write(answers, _answer(request))
            os._exit(0)
        elif os.waitpid(child, 0)[1]:
            _write(answers, _ENCODER.encode(ReplayAnswer(problem="a replay ended its process")))


def _answer(request: bytes) -> bytes:
    try:
        return _ENCODER.encode(ReplayAnswer(differences=_replay(_REQUEST.decode(request))))
    except Exception as error:
        return _ENCODER.encode(ReplayAnswer(problem=f"{type(error).__name__}: {error}"))


def _replay(request: ReplayRequest) -> list[Difference]:
    sys.path[:] = request.path
    definitions = [_definition(place) for place in request.workflows]
    session = session_of(Engine("sqlite://", definitions, errors=[_import(place) for place in request.errors]))
    found = [
        _compare_apart(session, run, records) if index < _APART else _compare(session, run, records)
        for index, (run, records) in enumerate(request.runs)
    ]
    return [difference for difference in found if difference is not None]


def _compare_apart(session: Session, run: Run, records: tuple[Record, ...]) -> Difference | None:
    """Replay a run in a process of its own, which has nothing left of other runs."""
    if not hasattr(os, "fork"):
        return _compare(session, run, records)
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(target, "wb") as pipe:
            pipe.write(_ENCODER.encode(_compare(session, run, records)))
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        return Difference(run.id, run.type, "the recorded path", "the replay ended its process")
    difference: Difference | None = _DIFFERENCE.decode(answer)
    return difference


def _definition(place: CodePlace) -> Definition[Any, Any]:
    code = _import(place)
    # A class is a state machine.
    return code.definition() if isinstance(code, type) else code  # type: ignore[attr-defined, no-any-return] # it has `definition`


def _import(place: CodePlace) -> Any:
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


def _compare(session: Session, run: Run, records: tuple[Record, ...]) -> Difference | None:
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
        return Difference(run.id, run.type, "it completes", found)
    if _value(session, workflow, outcome.payload) != _value(session, workflow, run.output):
        return Difference(run.id, run.type, f"the result {run.output}", f"the result {outcome.payload}")
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
