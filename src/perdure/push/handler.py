"""Handling of batches of queue messages, each with a result of its own.

Messages of a batch are processed concurrently up to a limit, and answered one by one; an error concerns its own message
only. A message is acknowledged after its effect is durable, so a crash in between leads to another delivery, which
finds the run where it is. Waits for another worker, or for the database, do not count as failed deliveries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.client.engine import Engine
from perdure.client.pusher import Pusher
from perdure.client.session import refuse_in_workflow, session_of
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.claim import ExecutionResult, ExecutionState
from perdure.core.model.run import DEFAULT_QUEUE, Run, Status
from perdure.core.option_checks import check_duration, check_whole
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Duration
from perdure.errors import (
    DecodeError,
    EngineClosed,
    Expired,
    RunNotFound,
    StoreError,
    Undeliverable,
    UnknownWorkflow,
)
from perdure.push.announcer import Announcer
from perdure.push.message import Delivery, MessageOutcome, MessageResult, QueueMessage

logger = logging.getLogger("perdure.push")

Credentials = Callable[[QueueMessage], Awaitable[Mapping[str, Any]]]
Enqueue = Callable[[QueueMessage, float], Awaitable[object]]

_BACKOFF = replace(Retry.spread_out(), attempts=None)


class _QueueUnavailable(Exception):
    """A message could not be put into the queue."""


class QueueHandler:
    """Executes the runs that messages name. Use it as an async context manager, or `start` and `stop` it."""

    def __init__(
        self,
        engine: Engine,
        *,
        enqueue: Enqueue | None = None,
        credentials: Credentials | None = None,
        concurrency: int = 16,
        timeout: Duration | None = None,
        max_retries: int = 10,
        stale_after: Duration | None = "24h",
        contention: Duration = 2.0,
        longest_delay: Duration = "12h",
        lease: Duration = 15.0,
    ) -> None:
        """`enqueue(message, delay)` puts a message into the queue.

        With it, runs that this process makes ready (children, parents, receivers of messages, the next in line) are
        enqueued, and a run that waits for a time is enqueued for that time. Without it, its message is returned with
        that delay. `credentials(message)` is called for each execution; steps read its result with
        `perdure.credentials()`, and it is never stored. `timeout` is how long one execution may take before the run is
        given back. A message whose delivery fails after `max_retries` retries fails its run, and so does a message that
        is older than `stale_after` (None: no bound) if the database, too, says that the run has been ready since then.
        `contention` is the delay after which a run held by another worker is tried again, `longest_delay` the longest
        that the broker supports.
        """
        self.engine = engine
        self._enqueue = enqueue
        self._hook = credentials
        self._concurrency = check_whole("concurrency", concurrency, 1)
        self._timeout = None if timeout is None else check_duration("timeout", timeout)
        self._max_retries = check_whole("max_retries", max_retries, 0)
        self._stale_after = None if stale_after is None else check_duration("stale_after", stale_after)
        self._contention = check_duration("contention", contention)
        self._longest = check_duration("longest_delay", longest_delay)
        self._pusher = Pusher(engine, lease=lease)
        self._announcer = None if enqueue is None else Announcer(engine, enqueue)
        self._session = session_of(engine)
        self._system = self._session.system

    async def __aenter__(self) -> QueueHandler:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Sign on a worker, and begin to enqueue runs that become ready."""
        refuse_in_workflow()
        if self._announcer is not None:
            self._announcer.start()
        await self._pusher.start()

    async def stop(self, grace: Duration | None = None) -> None:
        """Let executions under way finish for the grace period, give back the rest and sign off."""
        refuse_in_workflow()
        await self._pusher.stop(grace)
        if self._announcer is not None:
            await self._announcer.stop()

    def message(self, run_id: str, *, delay: float = 0.0, authorization: str | None = None) -> QueueMessage:
        """Make a message for a run, to be delivered now or in so many seconds."""
        due = self._system.now() // 1000 + int(delay * 1000)
        return QueueMessage(run_id=run_id, enqueued_at=due, authorization=authorization)

    async def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> list[str]:
        """Enqueue the runs that could be worked on now, if there is a queue, and return their ids.

        Call it once a minute or so.

        It finds runs that were never enqueued: written by processes that know no queue, or lost between a commit and
        the queue. Like `Pusher.due`, it also does the chores of a fleet.
        """
        due = await self._pusher.due(limit=limit, queues=queues)
        if self._enqueue is not None:
            for run_id in due:
                await self._enqueue(self.message(run_id), 0.0)
        return due

    # handling

    async def handle(self, batch: Iterable[Delivery | bytes | str]) -> list[MessageResult]:
        """Process every message of a batch; the results, in the order of the messages.

        A message is a `Delivery`, whose `ack` or `retry` is called with its result, or just its body.
        """
        refuse_in_workflow()
        if self._announcer is not None:
            self._announcer.start()
        room = asyncio.Semaphore(self._concurrency)

        async def one(item: Delivery | bytes | str) -> MessageResult:
            async with room:
                answer = await self.answer(item if isinstance(item, bytes | str) else item.body)
                if not isinstance(item, bytes | str):
                    await self._tell(item, answer)
                return answer

        tasks = [self._system.spawn(one(item), "perdure message") for item in batch]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # The caller has gone; the broker delivers unanswered messages again.
            for task in tasks:
                task.cancel()
            raise

    async def answer(self, body: bytes | str) -> MessageResult:
        """Process one message; errors are in the result."""
        refuse_in_workflow()
        try:
            message = QueueMessage.decode(body)
        except DecodeError as error:
            logger.error("message_malformed: a queue message is dropped: %s", error)
            return MessageResult(ack=True, outcome=MessageOutcome.MALFORMED, detail=str(error))
        try:
            run = await self._session.find(message.run_id)
            message = _counted_for(message, run)
            return await self._process(message, run)
        except (EngineClosed, StoreError, _QueueUnavailable) as error:
            return self._again(message, MessageOutcome.UNAVAILABLE, self._backoff(1), detail=str(error))
        except RunNotFound as error:
            return await self._count(message, MessageOutcome.UNKNOWN, str(error))
        except Exception as error:
            log = logger.error if isinstance(error, UnknownWorkflow) else logger.exception
            log("message_failed: the message for run %s could not be processed: %s", message.run_id, error)
            return await self._count(message, MessageOutcome.FAILED, f"{type(error).__name__}: {error}")

    async def _process(self, message: QueueMessage, run: Run) -> MessageResult:
        if run.status.finished:
            return MessageResult(ack=True, outcome=MessageOutcome.FINISHED, run_id=run.id, status=run.status)
        if self._is_stale(message, run) and (expired := await self._expire(message, run)) is not None:
            return expired
        credentials = None if self._hook is None else await self._hook(message)
        done = await self._pusher.execute(run.id, timeout=self._timeout, credentials=credentials)
        if done.state is ExecutionState.FINISHED and done.parent_id is not None and self._enqueue is not None:
            await self._put(self._enqueue, self.message(done.parent_id), 0.0)
        return await self._follow(message, done)

    async def _follow(self, message: QueueMessage, done: ExecutionResult) -> MessageResult:
        """Answer a message by the state in which its run was left."""
        match done.state:
            case ExecutionState.HELD:
                delay = self._contention * (0.5 + self._system.random())
                return self._again(message, MessageOutcome.HELD, delay, status=done.status)
            case ExecutionState.READY if not done.progressed:
                return await self._count(
                    message, MessageOutcome.INTERRUPTED, "the time was up before anything was recorded"
                )
            case ExecutionState.READY:
                return self._again(self._later(message, 0.0), MessageOutcome.INTERRUPTED, 0.0, status=done.status)
            case ExecutionState.WAITING if done.again_in is not None:
                return await self._wait(message, done, min(done.again_in, self._longest))
            case _:
                return MessageResult(
                    ack=True, outcome=MessageOutcome(done.state.value), run_id=done.run_id, status=done.status
                )

    async def _wait(self, message: QueueMessage, done: ExecutionResult, delay: float) -> MessageResult:
        """Enqueue the run for the time when it is due. One message in, one out."""
        later = self._later(message, delay)
        if self._enqueue is None:
            return self._again(later, MessageOutcome.WAITING, delay, status=done.status)
        await self._put(self._enqueue, later, delay)
        return MessageResult(ack=True, outcome=MessageOutcome.WAITING, run_id=done.run_id, status=done.status)

    async def _put(self, enqueue: Enqueue, message: QueueMessage, delay: float) -> None:
        try:
            await enqueue(message, delay)
        except Exception as error:
            # The run keeps its state; the broker delivers this message again.
            raise _QueueUnavailable(
                f"the queue did not take the message for run {message.run_id!r}: {error}"
            ) from error

    def _later(self, message: QueueMessage, delay: float) -> QueueMessage:
        return self.message(message.run_id, delay=delay, authorization=message.authorization)

    # what goes wrong

    def _is_stale(self, message: QueueMessage, run: Run) -> bool:
        """Return whether the message is too old and its run has been ready for as long, by the database."""
        if self._stale_after is None:
            return False
        now, bound = self._session.store.clock(), self._stale_after * 1e6
        ready = run.status in (Status.PENDING, Status.WAITING) and now - run.wake_at >= bound
        return ready and now - message.enqueued_at * 1000 >= bound

    async def _expire(self, message: QueueMessage, run: Run) -> MessageResult | None:
        """Fail a run whose message is too old; None if the run is not ready any more."""
        hours = (self._session.store.clock() - max(run.wake_at, message.enqueued_at * 1000)) / 3.6e9
        text = (
            f"run {run.id!r} waited in a queue for {hours:.1f} hours, longer than it may; "
            "start it again if it is still wanted"
        )
        if await self._pusher.fail(run.id, Failure.of(Expired(text), Codec()), "queue") is not None:
            return None
        logger.warning("message_expired: %s", text)
        return MessageResult(ack=True, outcome=MessageOutcome.EXPIRED, run_id=run.id, status=Status.FAILED, detail=text)

    async def _count(self, message: QueueMessage, outcome: MessageOutcome, detail: str) -> MessageResult:
        """Count a failed delivery and try again; after too many, fail the run."""
        count = message.retry_count + 1
        if count <= self._max_retries:
            return self._again(replace(message, retry_count=count), outcome, self._backoff(count), detail=detail)
        try:
            return await self._give_up(message, detail)
        except (EngineClosed, StoreError) as error:
            return self._again(message, MessageOutcome.UNAVAILABLE, self._backoff(1), detail=str(error))
        except (RunNotFound, UnknownWorkflow):
            # No run here can fail for the message.
            logger.error("message_given_up: the message for run %s is dropped: %s", message.run_id, detail)
            return MessageResult(ack=True, outcome=MessageOutcome.GIVEN_UP, run_id=message.run_id, detail=detail)

    async def _give_up(self, message: QueueMessage, detail: str) -> MessageResult:
        """Fail the run, unless a worker holds it or it waits: then it does not need the message."""
        run_id = message.run_id
        text = (
            f"run {run_id!r} was given up after {message.retry_count} retries of its queue message; "
            f"the last time: {detail}"
        )
        left = await self._pusher.fail(run_id, Failure.of(Undeliverable(text), Codec()))
        if left is not None and left.status is Status.RUNNING:
            return self._again(message, MessageOutcome.HELD, self._contention, status=left.status)
        logger.error("message_given_up: %s", text)
        status = Status.FAILED if left is None else left.status
        return MessageResult(ack=True, outcome=MessageOutcome.GIVEN_UP, run_id=run_id, status=status, detail=text)

    def _again(
        self,
        message: QueueMessage,
        outcome: MessageOutcome,
        delay: float,
        *,
        status: Status | None = None,
        detail: str = "",
    ) -> MessageResult:
        return MessageResult(
            ack=False,
            outcome=outcome,
            run_id=message.run_id,
            status=status,
            delay=min(delay, self._longest),
            body=message.encode(),
            detail=detail,
        )

    def _backoff(self, count: int) -> float:
        return _BACKOFF.next_delay(count, OSError(), self._system.random()) or 0.0

    async def _tell(self, delivery: Delivery, answer: MessageResult) -> None:
        try:
            await (delivery.ack(answer) if answer.ack else delivery.retry(answer))
        except Exception as error:
            # The broker delivers it again, and the run keeps its state.
            logger.warning("the answer for run %s did not reach the queue: %s", answer.run_id or "?", error)


def _counted_for(message: QueueMessage, run: Run) -> QueueMessage:
    """Leave out retries that were counted for another generation of the run."""
    known = message.generation is None or message.generation == run.generation
    return replace(message, generation=run.generation, retry_count=message.retry_count if known else 0)
