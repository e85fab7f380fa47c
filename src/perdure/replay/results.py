"""Handing a recorded completion to the workflow, as the value or the exception that it declares."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.model.run import Record
from perdure.core.model.step_attempts import Trial, remember
from perdure.replay.operations import ChildOperation, Operation, ScopeOperation, StepOperation


class Results(Struct):
    """Resolves the futures of one run."""

    _run_id: str
    _codec: Codec
    _errors: ErrorTypes

    def hand_over(self, operation: Operation, record: Record) -> None:
        """Resolve an operation's future. Raises `DecodeError`."""
        future = operation.future
        assert future is not None
        future.watcher = future.operation = None
        if future.done():
            return
        future.heed()
        if record.failed:
            failure = Failure.from_json(record.payload or "{}")
            error = self._errors.restore(failure)
            if record.attempts:
                remember(error, Trial(record.attempts, failure.given_up))
            future.set_exception(error)
            future._log_traceback = False  # an error that nobody awaits is `NeverAwaited`
        elif record.payload is None:
            future.set_result(None)
        else:
            future.set_result(self.decode(operation, record.payload))

    def describe(self, error: Exception) -> str:
        """See `Runtime`."""
        return Failure.of(error, self._codec).to_json()

    def restore(self, failure: str) -> Exception:
        """See `Runtime`."""
        return self._errors.restore(Failure.from_json(failure))

    def decode(self, operation: Operation, payload: str) -> Any:
        """A result as the workflow will see it. Raises `DecodeError` if it is not of the declared type."""
        if isinstance(operation, StepOperation):
            returns = operation.request.spec.returns
        elif isinstance(operation, ScopeOperation):
            what = f"what {operation.location!r} of run {self._run_id!r} goes on with"
            return self._codec.decode(operation.mark.value, operation.type, what)
        else:
            assert isinstance(operation, ChildOperation)
            returns = operation.call.returns
        return self._codec.decode(
            payload, returns, f"result of {operation.kind} {operation.location!r} of run {self._run_id!r}"
        )
