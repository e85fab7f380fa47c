"""One attempt at an activity: an attempt at a step that gives signs of life and can be asked to stop."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from msgspec import UNSET

from perdure.core.codec.codec import Codec
from perdure.core.model.run import Run
from perdure.core.system import System
from perdure.errors import ActivityTimeout
from perdure.replay.operations import StepOperation
from perdure.worker.callbacks import ResultRecipient, StepResults
from perdure.worker.steps.attempt import Attempt
from perdure.workflow.activity import Activity
from perdure.workflow.run_settings import RunSettings
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import StepSettings
from perdure.workflow.step_info import ActivityInfo, StepInfo


class HeartbeatRecipient(ResultRecipient, Protocol):
    """Whoever waits for the result of an activity."""

    def beaten(self, attempt: Any, /) -> None:
        """It has given details. From a plain callback of the loop."""


class ActivityAttempt(Attempt):
    """An activity's function being called."""

    __slots__ = (
        "_asked",
        "_cancelled",
        "_codec",
        "_info_fields",
        "_loop",
        "_run_row",
        "_waiters",
        "details",
        "last_beat",
    )

    recipient: HeartbeatRecipient

    def __init__(
        self,
        run: Run,
        activity: Activity[Any, Any],
        arguments: dict[str, Any],
        settings: RunSettings,
        max_attempts: int | None,
        last_heartbeat: Any,
        interrupted: int,
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
        # Nobody waits for a future of it: its end is the end of the run.
        operation = StepOperation(activity.type, cast("Any", None), request, "")
        operation.attempts = run.attempt - 1
        super().__init__(operation, run.id, now, system, results, recipient)
        self.interrupted = interrupted
        self.number += interrupted
        self._run_row = run
        self._codec = codec
        # The number of an attempt counts those that were interrupted, and the policy does not: the last one is that of both numbers.
        self._info_fields = (None if max_attempts is None else max_attempts + interrupted, last_heartbeat)
        self._loop = asyncio.get_running_loop()
        #: Whether the activity looks by itself whether it is to stop.
        self._asked = False
        self._cancelled = False
        #: Of the last heartbeat, as JSON. Set from any thread.
        self.details: str | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.last_beat = system.monotonic()

    def _info(self, due: int) -> StepInfo:
        run = self._run_row
        max_attempts, last_heartbeat = self._info_fields
        return ActivityInfo(
            run.id, run.type, self.number, due, self, run.type, max_attempts, run.parent_id,
            f"{run.id}:{run.generation}.{run.attempt}.{run.token}", run.wake_at, last_heartbeat, self,
        )  # fmt: skip

    def _time_out(self, timeout: float) -> None:
        message = f"activity {self.operation.location!r} of run {self.run_id!r} took longer than {timeout:g} s from its start to its end"
        self.expire(ActivityTimeout(message, kind="start_to_close"))

    def went_silent(self, limit: float) -> None:
        """It has given no sign of life for too long."""
        message = (
            f"activity {self.operation.location!r} of run {self.run_id!r} gave no sign of life for {limit:g} s; call "
            "activity_info().heartbeat() more often, or allow more time"
        )
        self.expire(ActivityTimeout(message, kind="heartbeat"))

    # what the function asks

    def beat(self, details: object) -> None:
        """See `Performing`. From any thread."""
        payload = None
        if details is not None:
            payload = self._codec.encode(
                details, f"heartbeat of activity {self.operation.location!r} of run {self.run_id!r}"
            )
        self.last_beat = self._system.monotonic()
        if payload is not None and not self._over and not self._loop.is_closed():
            self.details = payload
            self._loop.call_soon_threadsafe(self.recipient.beaten, self)

    def is_cancelled(self) -> bool:
        """See `Performing`. From any thread."""
        self._asked = True
        return self._cancelled or self._over

    async def cancelled(self) -> None:
        """See `Performing`."""
        if self.is_cancelled():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    # what the worker does

    def ask_to_stop(self) -> bool:
        """Say that the result is no longer wanted; whether it is left to end by itself."""
        self._cancelled = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._task is not None and not self._asked:
            self._task.cancel()
            # One that has not begun will never say that it ended.
            return self._begun
        return self._task is not None or (self._job is not None and self.operation.request.options.process is not True)

    def close(self) -> bool:
        """See `EndingAttempt`."""
        self._cancelled = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        return super().close()
