"""One attempt at an activity: an attempt at a step that sends heartbeats and can be asked to stop."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from msgspec import UNSET

from perdure.core.codec.codec import Codec
from perdure.core.model.attempt_reports import make_token
from perdure.core.model.run import Run
from perdure.core.system import System
from perdure.errors import ActivityTimeout
from perdure.replay.operations import StepOperation
from perdure.worker.batched_calls import ResultRecipient, StepResults
from perdure.worker.steps.attempt import NO_VARIABLES, Attempt
from perdure.worker.steps.step_task import is_executed_by
from perdure.workflow.activity import Activity
from perdure.workflow.run_settings import RunSettings
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import ActivityInfo, StepInfo, StepSettings


class HeartbeatRecipient(ResultRecipient, Protocol):
    """A run that waits for the result of an activity."""

    def heartbeat_received(self, attempt: Any, /) -> None:
        """Handle the details of a heartbeat. Called from a plain callback of the loop."""


class ActivityAttempt(Attempt):
    """A call of an activity's function."""

    __slots__ = (
        "_asked",
        "_cancelled",
        "_codec",
        "_info_fields",
        "_loop",
        "_run_row",
        "_token_number",
        "_waiters",
        "details",
        "last_beat",
        "stop_asked",
    )

    recipient: HeartbeatRecipient
    begins_in_task = True
    has_begin = False

    def __init__(
        self,
        run: Run,
        activity: Activity[Any, Any],
        arguments: dict[str, Any],
        settings: RunSettings,
        max_attempts: int | None,
        last_heartbeat: Any,
        interrupted: int,
        token_number: int,
        now: int,
        system: System,
        codec: Codec,
        results: StepResults,
        recipient: HeartbeatRecipient,
    ) -> None:
        args, kwargs = activity.signature.spread(arguments)
        timeout = UNSET if settings.start_to_close is None else settings.start_to_close
        options = StepSettings(timeout=timeout, process=activity.process or UNSET)
        request = StepRequest(activity.type, activity.spec, args, kwargs, options)
        # No future: the end of the attempt is the end of the run.
        operation = StepOperation(activity.type, cast("Any", None), request, "")
        operation.attempts = run.attempt - 1
        operation.context = NO_VARIABLES
        super().__init__(operation, run.id, now, system, results, recipient)
        self.interrupted = interrupted
        self.number += interrupted
        self._run_row = run
        self._codec = codec
        #: Number of the record that a failure of this attempt gets.
        self._token_number = token_number
        # Interrupted attempts count in the number and not for the policy, so they are added to the maximum.
        self._info_fields = (None if max_attempts is None else max_attempts + interrupted, last_heartbeat)
        self._loop = asyncio.get_running_loop()
        #: Whether the activity checks by itself if it was cancelled.
        self._checks_cancellation = False
        self._cancelled = False
        #: Whether the activity was asked to stop and has not taken that back. Cleared from any thread.
        self.stop_asked = False
        #: Details of the last heartbeat, as JSON. Set from any thread.
        self.details: str | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.last_beat = system.monotonic()
        self._has_beaten = False

    def _info(self, due: int) -> StepInfo:
        run = self._run_row
        max_attempts, last_heartbeat = self._info_fields
        return ActivityInfo(
            run.id, run.type, self.number, due, self, run.type, max_attempts, run.parent_id,
            f"{run.id}:{run.generation}.{run.attempt}.{run.token}", run.wake_at, last_heartbeat, self,
        )  # fmt: skip

    def _time_out(self, timeout: float) -> None:
        message = (
            f"activity {self.operation.location!r} of run {self.run_id!r} took longer than {timeout:g} s from its "
            "start to its end"
        )
        self.expire(ActivityTimeout(message, kind="start_to_close"))

    def time_out_heartbeat(self, limit: float) -> None:
        """Time the attempt out because its last heartbeat is too old."""
        message = (
            f"activity {self.operation.location!r} of run {self.run_id!r} sent no heartbeat for {limit:g} s; call "
            "activity_info().heartbeat() more often, or allow more time"
        )
        self.expire(ActivityTimeout(message, kind="heartbeat"))

    def heartbeat_at(self, now: int, monotonic: float) -> int:
        """Return the time of the last heartbeat, given the time on both clocks; 0: there was none."""
        return now - int((monotonic - self.last_beat) * 1e6) if self._has_beaten else 0

    # called by the function

    def token(self) -> str:
        """Make the token of the attempt. Called from any thread."""
        run = self._run_row
        return make_token(run.id, run.generation, self._token_number, run.seed)

    def beat(self, details: object) -> None:
        """Note a heartbeat. Called from any thread."""
        payload = None
        if details is not None:
            payload = self._codec.encode(
                details, f"heartbeat of activity {self.operation.location!r} of run {self.run_id!r}"
            )
        self.last_beat = self._system.monotonic()
        self._has_beaten = True
        if payload is not None and not self.over and not self._loop.is_closed():
            self.details = payload
            self._loop.call_soon_threadsafe(self.recipient.heartbeat_received, self, context=self._results.context)

    def is_cancelled(self) -> bool:
        """True if the activity should stop. Called from any thread."""
        self._checks_cancellation = True
        return self._cancelled or self.over

    async def cancelled(self) -> None:
        """Wait until the activity should stop."""
        if self.is_cancelled():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def uncancel(self) -> bool:
        """Take the cancellation back; True if there was one. Called from any thread."""
        found, self.stop_asked = self.stop_asked, False
        if found and not self.over:
            self._cancelled = False
            task = self.task
            while task is not None and is_executed_by(task) and task.cancelling():
                task.uncancel()
        return found

    # called by the worker

    def ask_to_stop(self) -> bool:
        """Ask the function to stop; True if it may end by itself."""
        self._cancelled = self.stop_asked = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self.task is not None and not self._checks_cancellation and not self.waits_for_thread:
            self.task.cancel()
            # A task that has not begun never reports its end.
            return self.begun
        return self.task is not None or (self._job is not None and self.operation.request.options.process is not True)

    def close(self) -> bool:
        """Close the attempt; True if it was open."""
        self._cancelled = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        return super().close()
