"""A batch of queue messages, each with its own answer.

Every message of a batch is processed, side by side up to a limit, and answered as soon as it is known what became of it; whatever
one of them raises is its own. An answer is given after the fact is durable, so a crash in between means another delivery, which
finds the run where it is. Waiting for another worker, or for the database, is not held against a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.client.engine import Engine
from perdure.client.push import Pusher
from perdure.client.refusing import refuse_in_workflow
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.claim import ExecutionResult, ExecutionState
from perdure.core.model.run import DEFAULT_QUEUE, Run, Status
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Duration, seconds
from perdure.errors import (
    DecodeError,
    EngineClosed,
    Expired,
    RunNotFound,
    StoreError,
    Undeliverable,
    UnknownWorkflow,
    UsageError,
)
from perdure.push.announcer import Announcer
from perdure.push.message import Answer, Delivery, Fate, QueueMessage

logger = logging.getLogger("perdure.push")

Credentials = Callable[[QueueMessage], Awaitable[Mapping[str, Any]]]
Enqueue = Callable[[QueueMessage, float], Awaitable[object]]

_BACKOFF = replace(Retry.spread_out(), attempts=None)


class _QueueAway(Exception):
    """What comes next could not be enqueued."""


class QueueHandler:
    """Works on the runs that messages name. Use it as an async context manager, or `start` and `stop` it."""

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

        With it, whatever this process makes ready (children, parents, receivers of messages, who is next in line) is enqueued, and a run that waits for a time
        is enqueued for that time; without it, its message is answered with that delay. `credentials(message)` is asked for each
        execution; what it gives is found by `perdure.credentials()` and never stored. `timeout` is how long one execution may take
        before the run is given back. A message that failed `max_retries` times, or that is older than `stale_after` (None: none is)
        while its run has waited for it, fails its run. `contention` is when to try again what another worker has, `longest_delay` the
        longest that the broker can wait.
        """
        if concurrency < 1 or max_retries < 0:
            raise UsageError("concurrency must be 1 or more, max_retries 0 or more")
        self.engine = engine
        self._enqueue = enqueue
        self._hook = credentials
        self._concurrency = concurrency
        self._timeout = None if timeout is None else seconds(timeout)
        self._max_retries = max_retries
        self._stale_after = None if stale_after is None else seconds(stale_after)
        self._contention = seconds(contention)
        self._longest = seconds(longest_delay)
        self._pusher: Pusher = engine.pusher(lease=lease)
        self._announcer = None if enqueue is None else Announcer(engine, enqueue)
        self._system = engine._system

    async def __aenter__(self) -> QueueHandler:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Sign on a worker, and begin to enqueue what becomes ready."""
        refuse_in_workflow()
        if self._announcer is not None:
            self._announcer.start()
        await self._pusher.start()

    async def stop(self, grace: Duration | None = None) -> None:
        """Let what is under way finish for the grace period, give back the rest and sign off."""
        refuse_in_workflow()
        await self._pusher.stop(grace)
        if self._announcer is not None:
            await self._announcer.stop()

    def message(self, run_id: str, *, delay: float = 0.0, authorization: str | None = None) -> QueueMessage:
        """A message for a run, to be delivered now or in so many seconds."""
        due = self._system.now() // 1000 + int(delay * 1000)
        return QueueMessage(execution_id=run_id, enqueued_at=due, authorization=authorization)

    async def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> list[str]:
        """The ids of the runs that could be worked on now, enqueued if there is a queue: for a timer outside, once a minute or so.

        It finds what nobody enqueued: what was written by processes that know no queue, and what was lost between a commit and the
        queue. See `Engine.due`.
        """
        due = await self.engine.due(limit=limit, queues=queues)
        if self._enqueue is not None:
            for run_id in due:
                await self._enqueue(self.message(run_id), 0.0)
        return due

    # handling

    async def handle(self, batch: Iterable[Delivery | bytes | str]) -> list[Answer]:
        """Process every message of a batch, and tell each what became of it; the answers, in the order of the messages.

        A message is a `Delivery`, which is told by `ack` or `retry`, or just its body.
        """
        refuse_in_workflow()
        if self._announcer is not None:
            self._announcer.start()
        room = asyncio.Semaphore(self._concurrency)

        async def one(item: Delivery | bytes | str) -> Answer:
            async with room:
                answer = await self.answer(item if isinstance(item, bytes | str) else item.body)
                if not isinstance(item, bytes | str):
                    await self._tell(item, answer)
                return answer

        tasks = [self._system.spawn(one(item), "perdure message") for item in batch]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # Whoever asked has gone; what is not answered is delivered again.
            for task in tasks:
                task.cancel()
            raise

    async def answer(self, body: bytes | str) -> Answer:
        """Process one message; whatever goes wrong is in the answer."""
        refuse_in_workflow()
        try:
            message = QueueMessage.decode(body)
        except DecodeError as error:
            logger.error("message_malformed: a queue message is dropped: %s", error)
            return Answer(ack=True, fate=Fate.MALFORMED, detail=str(error))
        try:
            return await self._process(message)
        except (EngineClosed, StoreError, _QueueAway) as error:
            return self._again(message, Fate.UNAVAILABLE, self._backoff(1), detail=str(error))
        except RunNotFound as error:
            return await self._count(message, Fate.UNKNOWN, str(error))
        except Exception as error:
            log = logger.error if isinstance(error, UnknownWorkflow) else logger.exception
            log("message_failed: the message for run %s could not be processed: %s", message.execution_id, error)
            return await self._count(message, Fate.FAILED, f"{type(error).__name__}: {error}")

    async def _process(self, message: QueueMessage) -> Answer:
        run = await self.engine._run(message.execution_id)
        if run.status.finished:
            return Answer(ack=True, fate=Fate.FINISHED, run_id=run.id, status=run.status)
        if self._is_stale(message, run) and (expired := await self._expire(message, run)) is not None:
            return expired
        if message.retry_count > self._max_retries:
            return await self._count(message, Fate.FAILED, "whoever sent it had tried often enough")
        credentials = None if self._hook is None else await self._hook(message)
        done = await self._pusher.execute(run.id, timeout=self._timeout, credentials=credentials)
        if done.state is ExecutionState.FINISHED and done.parent_id is not None and self._enqueue is not None:
            await self._put(self._enqueue, self.message(done.parent_id), 0.0)
        return await self._follow(message, done)

    async def _follow(self, message: QueueMessage, done: ExecutionResult) -> Answer:
        """What comes of where a run stands."""
        match done.state:
            case ExecutionState.HELD:
                delay = self._contention * (0.5 + self._system.random())
                return self._again(message, Fate.HELD, delay, status=done.status)
            case ExecutionState.READY if not done.progressed:
                return await self._count(message, Fate.INTERRUPTED, "the time was up before anything was recorded")
            case ExecutionState.READY:
                return self._again(self._later(message, 0.0), Fate.INTERRUPTED, 0.0, status=done.status)
            case ExecutionState.WAITING if done.again_in is not None:
                return await self._wait(message, done, min(done.again_in, self._longest))
            case _:
                return Answer(ack=True, fate=Fate(done.state.value), run_id=done.run_id, status=done.status)

    async def _wait(self, message: QueueMessage, done: ExecutionResult, delay: float) -> Answer:
        """See to it that the run is thought of when it is due. One message in, one out."""
        later = self._later(message, delay)
        if self._enqueue is None:
            return self._again(later, Fate.WAITING, delay, status=done.status)
        await self._put(self._enqueue, later, delay)
        return Answer(ack=True, fate=Fate.WAITING, run_id=done.run_id, status=done.status)

    async def _put(self, enqueue: Enqueue, message: QueueMessage, delay: float) -> None:
        try:
            await enqueue(message, delay)
        except Exception as error:
            # The run is where it is; the message that led there is delivered again.
            raise _QueueAway(f"the queue did not take the message for run {message.execution_id!r}: {error}") from error

    def _later(self, message: QueueMessage, delay: float) -> QueueMessage:
        return self.message(message.execution_id, delay=delay, authorization=message.authorization)

    # what goes wrong

    def _is_stale(self, message: QueueMessage, run: Run) -> bool:
        """Whether the message is too old, and still says what is the case: the run is ready, and nobody has taken it up."""
        if self._stale_after is None:
            return False
        now, bound = self.engine._store.clock(), self._stale_after * 1e6
        waits = run.status in (Status.PENDING, Status.WAITING) and run.wake_at <= now
        # Of a run that has been worked on since, it is an old copy.
        ever_since = run.started_at == 0 or now - run.wake_at >= bound
        return waits and ever_since and now - message.enqueued_at * 1000 >= bound

    async def _expire(self, message: QueueMessage, run: Run) -> Answer | None:
        """Fail a run whose message is too old; None if it is not to be had."""
        hours = (self.engine._store.clock() / 1000 - message.enqueued_at) / 3_600_000
        text = f"run {run.id!r} waited in a queue for {hours:.1f} hours, longer than it may; start it again if it is still wanted"
        if await self._pusher.fail(run.id, Failure.of(Expired(text), Codec()), "queue") is not None:
            return None
        logger.warning("message_expired: %s", text)
        return Answer(ack=True, fate=Fate.EXPIRED, run_id=run.id, status=Status.FAILED, detail=text)

    async def _count(self, message: QueueMessage, fate: Fate, detail: str) -> Answer:
        """Try again and remember that it failed; or, if that was once too often, fail the run."""
        count = message.retry_count + 1
        if count <= self._max_retries:
            return self._again(replace(message, retry_count=count), fate, self._backoff(count), detail=detail)
        try:
            return await self._give_up(message, detail)
        except (EngineClosed, StoreError) as error:
            return self._again(message, Fate.UNAVAILABLE, self._backoff(1), detail=str(error))
        except (RunNotFound, UnknownWorkflow):
            # There is no run here that could fail for it.
            logger.error("message_given_up: the message for run %s is dropped: %s", message.execution_id, detail)
            return Answer(ack=True, fate=Fate.GIVEN_UP, run_id=message.execution_id, detail=detail)

    async def _give_up(self, message: QueueMessage, detail: str) -> Answer:
        """Fail the run, unless somebody works on it or it waits: then it is doing well without the message."""
        run_id = message.execution_id
        text = f"run {run_id!r} was given up after {message.retry_count} retries of its queue message; the last time: {detail}"
        left = await self._pusher.fail(run_id, Failure.of(Undeliverable(text), Codec()))
        if left is not None and left.status is Status.RUNNING:
            return self._again(message, Fate.HELD, self._contention, status=left.status)
        logger.error("message_given_up: %s", text)
        status = Status.FAILED if left is None else left.status
        return Answer(ack=True, fate=Fate.GIVEN_UP, run_id=run_id, status=status, detail=text)

    def _again(
        self, message: QueueMessage, fate: Fate, delay: float, *, status: Status | None = None, detail: str = ""
    ) -> Answer:
        return Answer(
            ack=False,
            fate=fate,
            run_id=message.execution_id,
            status=status,
            delay=min(delay, self._longest),
            body=message.encode(),
            detail=detail,
        )

    def _backoff(self, count: int) -> float:
        return _BACKOFF.next_delay(count, OSError(), self._system.random()) or 0.0

    async def _tell(self, delivery: Delivery, answer: Answer) -> None:
        try:
            await (delivery.ack(answer) if answer.ack else delivery.retry(answer))
        except Exception as error:
            # The broker delivers it again, and the run is found where it is.
            logger.warning("the answer for run %s did not reach the queue: %s", answer.run_id or "?", error)
