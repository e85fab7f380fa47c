"""An execution that a test drives by hand, in place of a worker.

The test says what completes and in which order; the driver keeps the records. `settled` ends a test: it replays the
history cut at every record, and each time the workflow must be in the state in which it was then, and end as it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Status
from perdure.replay.execution import Execution
from perdure.replay.operations import (
    ChildOperation,
    OpenOperation,
    RunOrigin,
    ScopeOperation,
    StepOperation,
    TimerOperation,
    WatchOperation,
)
from perdure.replay.outcome import RunOutcome
from perdure.workflow.context import Context

#: 2024-01-01T00:00:00Z, when every run of these tests begins.
START = 1_704_067_200_000_000
BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = 1_000_000

Function = Callable[..., Any]


class Together(NamedTuple):
    """Messages that arrived together: name, payload, entry of the inbox."""

    messages: tuple[tuple[str, str | None, int], ...]
    at: int


codec = Codec()


def work(key: object) -> Any:
    """A step that is never called: these tests say what steps return."""
    raise AssertionError(f"step {key!r} was called")


def unwork(key: object) -> Any:
    """Undo such a step."""
    raise AssertionError(f"step {key!r} was undone")


def named(ctx: Context, name: str, *args: Any) -> Any:
    """A step of that name."""
    return ctx.options(name=name).step(work, *(args or (name,)))


def deed(ctx: Context, name: str, *args: Any) -> Any:
    """A transaction of that name."""
    return ctx.options(name=name).transaction(work, *(args or (name,)))


class Driver:
    """A run of `function`, taken up with `history`."""

    def __init__(
        self,
        function: Function,
        *arguments: Any,
        history: Sequence[Record] = (),
        run_id: str = "run-1",
        seed: str = "seed",
        attempt: int = 1,
        generation: int = 1,
        returns: Any = Any,
        errors: ErrorTypes | None = None,
        gives_up: bool = True,
        make: Callable[..., Execution] = Execution,
    ) -> None:
        """`gives_up`: no other attempt at the run follows a failure. `make`: makes the execution."""
        self.history = list(history)
        self.positions: list[list[str]] = []
        #: Contents of the history each time, and the events in between.
        self.stages: list[tuple[Record, ...]] = []
        self.happened: list[Record | Together] = []
        self._remake: Callable[[Sequence[Record]], Driver] = lambda records: Driver(
            function, *arguments, history=records, run_id=run_id, seed=seed, attempt=attempt, generation=generation,
            returns=returns, errors=errors, gives_up=gives_up, make=make,
        )  # fmt: skip
        origin = RunOrigin(
            run_id=run_id, type="test.flow.v1", started_at=START, seed=seed, generation=generation, attempt=attempt
        )
        self.execution = make(
            lambda context: function(context, *arguments), returns, origin, history,
            codec=codec, errors=errors or ErrorTypes(modules=[__name__]), logger=logging.getLogger("tests.replay"),
            gives_up=lambda error, now: gives_up,
        )  # fmt: skip
        self.execution.begin()
        try:
            assert self.execution.replay(lambda: True)
        except Exception:
            assert self.execution.unsaved == [], "a run that diverges has nothing to write"
            assert self.execution.evict()
            raise
        self._before = len(self.history)
        self._save()

    def __del__(self) -> None:
        # Else the garbage collector would say in some other test that a task was destroyed.
        if hasattr(self, "execution"):
            self.execution.evict()

    # what the workflow waits for

    @property
    def open(self) -> list[str]:
        """Locations of open operations and, as `receive:name`, awaited messages."""
        return [operation.location for operation in self.execution.open_operations()] + [
            f"receive:{name}" for name in self.execution.awaited_messages()
        ]

    def operation(self, location: str) -> OpenOperation:
        """The open operation there."""
        found = [operation for operation in self.execution.open_operations() if operation.location == location]
        assert found, f"nothing is open at {location!r}, only {self.open}"
        return found[0]

    @property
    def position(self) -> list[str]:
        """All that the outside sees of where the workflow stands."""
        described = [describe(operation) for operation in self.execution.open_operations()]
        ended = [] if self.outcome is None else [f"{self.outcome.status} {_plain(self.outcome)}"]
        awaited = sorted(f"receive:{name}" for name in self.execution.awaited_messages())
        return [*described, *awaited, *ended]

    # what happens to it

    def complete(self, location: str, value: Any = None, *, after: float = 0) -> None:
        """A step or a child returned."""
        operation = self.operation(location)
        payload = codec.encode(value, "result")
        digest = operation.digest if isinstance(operation, StepOperation) else ""
        self._record(operation.kind, location, payload, after, digest=digest, attempts=1)

    def fail(self, location: str, error: BaseException, *, after: float = 0) -> None:
        """A step or a child failed for good."""
        operation = self.operation(location)
        digest = operation.digest if isinstance(operation, StepOperation) else ""
        self._record(operation.kind, location, _failure(error), after, failed=True, digest=digest, attempts=1)

    def begin(self, location: str) -> None:
        """A step that must not run twice is about to begin."""
        operation = self.operation(location)
        assert isinstance(operation, StepOperation)
        self.feed(
            Record(
                seq=0, kind=RecordKind.BEGIN, location=location, payload=None, at=self.execution.time,
                digest=operation.digest, attempts=operation.attempts + 1,
            )
        )  # fmt: skip

    def stumble(self, location: str, error: BaseException, *, attempts: int = 1, retry_at: int = 0) -> None:
        """An attempt at a step failed, and another will follow."""
        self._record(
            RecordKind.ATTEMPT, location, _failure(error), 0, failed=True, attempts=attempts, retry_at=retry_at
        )

    def fire(self) -> str:
        """The next timer is due. Gives its location."""
        timer = self.execution.next_timer()
        assert timer is not None, f"no timer is set, only {self.open}"
        self._record(RecordKind.TIMER, timer.location, None, (timer.due - self.execution.time) / SECOND)
        return timer.location

    def wake(self, location: str, at: int) -> None:
        """Change the end of a sleep from outside."""
        self._record(RecordKind.WAKE, location, str(at), 0)

    def late(self, location: str) -> None:
        """A child that was given up has ended all the same."""
        self._record(RecordKind.CHILD, location, "1", 0)

    def message(self, name: str, value: Any = None, *, after: float = 0) -> None:
        """A message arrived."""
        self._record(RecordKind.MESSAGE, name, codec.encode(value, "message"), after)

    def messages(self, *messages: tuple[str, Any], after: float = 0) -> None:
        """Messages arrived together."""
        arrived = tuple((name, codec.encode(value, "message"), 0) for name, value in messages)
        self.feed(Together(arrived, self.execution.time + round(after * SECOND)))

    def cancel(self, reason: str = "asked to") -> None:
        """Cancel the run from outside."""
        self._record(RecordKind.CANCEL, "", codec.encode(reason, "reason"), 0)

    def terminate(self, reason: str = "asked to") -> None:
        """Terminate the run from outside, with its undos."""
        self._record(RecordKind.CANCEL, "", codec.encode(reason, "reason"), 0, failed=True)

    def feed(self, record: Record | Together) -> None:
        """Let the event of a record happen."""
        self.happened.append(record)
        if isinstance(record, Together):
            self.execution.record_messages(record.messages, record.at)
            self._save()
            return
        if record.kind is RecordKind.BEGIN:
            operation = self.operation(record.location)
            assert isinstance(operation, StepOperation)
            self.execution.record_beginning(operation, record.at, record.attempts)
            self._save()
            return
        self.execution.record(
            record.kind, record.location, record.payload, record.at, failed=record.failed, digest=record.digest,
            attempts=record.attempts, retry_at=record.retry_at,
        )  # fmt: skip
        self._save()

    def _record(self, kind: RecordKind, location: str, payload: str | None, after: float, **fields: Any) -> None:
        now = self.execution.time + round(after * SECOND)
        self.happened.append(Record(seq=0, kind=kind, location=location, payload=payload, at=now, **fields))
        self.execution.record(kind, location, payload, now, **fields)
        self._save()

    def _save(self) -> None:
        while scopes := [each for each in self.execution.open_operations() if isinstance(each, ScopeOperation)]:
            self.execution.record_checkpoint(scopes[0], self.execution.time)
        self.history.extend(self.execution.unsaved)
        self.execution.unsaved = []
        for first, last in self.execution.checkpoints.take_trimmed():
            self.history = [record for record in self.history if not first <= record.seq <= last]
        self.positions.append(self.position)
        self.stages.append(tuple(self.history))

    # how it ended

    @property
    def outcome(self) -> RunOutcome | None:
        """None while it goes on."""
        return self.execution.outcome

    @property
    def ended(self) -> RunOutcome:
        """Outcome of the run."""
        assert self.outcome is not None, f"it still waits for {self.open}"
        return self.outcome

    @property
    def result(self) -> Any:
        """Result of the workflow."""
        assert self.ended.status is Status.COMPLETED, f"it ended with {self.ended.error!r}"
        assert self.ended.payload is not None
        return codec.decode(self.ended.payload, Any, "result")

    @property
    def partial(self) -> Any:
        """Value that the workflow returned after its cancellation."""
        assert self.ended.status is Status.CANCELLED, f"it ended as {self.ended.status}"
        assert self.ended.partial is not None
        return codec.decode(self.ended.partial, Any, "partial result")

    @property
    def error(self) -> BaseException:
        """Exception of the workflow."""
        assert self.ended.error is not None, f"it returned {self.ended.payload}"
        return self.ended.error

    def again(self, history: Iterable[Record] | None = None) -> Driver:
        """The same run taken up by another worker, with all of its history or with the one given."""
        return self._remake(tuple(self.history if history is None else history))

    def settled(self) -> Driver:
        """Replay, cut at every record and fed the rest, gives the same; see the module."""
        assert self._before == 0, "this run was itself taken up in the middle"
        for cut, stage in enumerate(self.stages):
            other = self.again(stage)
            assert other.position == self.positions[cut], f"taken up after {cut} happenings"
            for record in self.happened[cut:]:
                other.feed(record)
            assert other.position == self.position, f"taken up after {cut} happenings, and gone on"
            assert other.history == self.history
            if other.outcome is None:
                assert other.execution.evict()
        return self


def describe(operation: OpenOperation) -> str:
    """An operation in one line, with everything that a worker uses of it."""
    text = f"{operation.kind}:{operation.location}"
    if isinstance(operation, StepOperation):
        return f"{text} {operation.digest} attempts={operation.attempts} retry_at={operation.retry_at}"
    if isinstance(operation, TimerOperation):
        return f"{text} due={operation.due - START}"
    if isinstance(operation, ScopeOperation):
        return text
    if isinstance(operation, WatchOperation):
        return f"{text} target={operation.target} key={operation.key}"
    assert isinstance(operation, ChildOperation)
    return f"{text} id={operation.child_id} {operation.call.encode(codec)}"


def _failure(error: BaseException) -> str:
    return Failure.of(error, codec).to_json()


def _plain(outcome: RunOutcome) -> str:
    if outcome.error is None:
        return outcome.payload or ""
    # Tracebacks name lines of this file, which differ by how the run was driven.
    return repr(outcome.error)
