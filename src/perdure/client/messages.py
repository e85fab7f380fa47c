"""Telling runs something: the half of an engine that sends messages, to one run or to all that listen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.client.results import News
from perdure.client.start import send_on
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import ID_BYTES, check_id, check_name
from perdure.core.model.outputs import Output, OutputKind
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import Status
from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunFinished, RunNotFound, UsageError
from perdure.store.contract import Store
from perdure.workflow.channels import Channel, Question, expected_message, question_name, question_payload, topic

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.store.contract import Store


T = TypeVar("T")

#: How many runs a broadcast reaches in one transaction.
CHUNK = 100
_PREFIX = "broadcast:"


class Telling(ABC):
    """What an `Engine` can tell runs."""

    _system: System
    _codec: Codec
    _actor: str

    @abstractmethod
    async def _opened(self) -> Store:
        """The store, ready to be used."""

    @abstractmethod
    def _unless_closed(self) -> Store:
        """The store, open or not. Raises `EngineClosed`."""

    @overload
    async def send(
        self, run_id: str, name: Channel[T], value: T, *, key: str | None = None, connection: object = None
    ) -> None: ...

    @overload
    async def send(
        self, run_id: str, name: str, value: object = None, *, key: str | None = None, connection: object = None
    ) -> None: ...

    def send(
        self,
        run_id: str,
        name: Channel[Any] | str,
        value: object = None,
        *,
        key: str | None = None,
        connection: object = None,
    ) -> Coroutine[Any, Any, None]:
        """Send a message to a run; it is kept until the run receives it. Raises `RunNotFound` or `RunFinished`.

        With a `key`, sending it twice is sending it once. On a `connection` of yours, it is sent when you commit.
        """
        # As the value is now, whenever the coroutine is awaited.
        return self._send(run_id, name, snapshot(value), key, connection)

    async def _send(
        self, run_id: str, name: Channel[Any] | str, value: object, key: str | None, connection: object
    ) -> None:
        wanted = expected_message(name)
        name = wanted.name
        message = NewMessage(
            run_id=check_id(run_id),
            name=name,
            payload=self._codec.encode(value, f"message {name!r} to run {run_id!r}", wanted.type),
            key=self._system.entropy(16).hex() if key is None else check_id(key, "message key"),
        )
        if connection is None:
            [outcome] = await (await self._opened()).send([message], self._actor)
        else:
            outcome = await send_on(connection, self._unless_closed(), self._actor, message)
        if outcome is SendOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to send {name!r} to")
        if outcome is SendOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and takes no more messages; {name!r} was not sent")

    @overload
    async def broadcast(self, name: Channel[T], value: T, *, correlation: str, key: str | None = None) -> int: ...

    @overload
    async def broadcast(self, name: str, value: object = None, *, correlation: str, key: str | None = None) -> int: ...

    def broadcast(
        self, name: Channel[Any] | str, value: object = None, *, correlation: str, key: str | None = None
    ) -> Coroutine[Any, Any, int]:
        """Send a message to every run that listens for that name and correlation value; how many have it.

        A run listens from its first `ctx.receive(name, correlation=...)` on until it ends. Runs are reached a hundred at a
        time. With a `key`, whoever was interrupted may broadcast again: no run gets it twice.
        """
        return self._broadcast(name, snapshot(value), correlation, key)

    async def _broadcast(self, name: Channel[Any] | str, value: object, correlation: str, key: str | None) -> int:
        wanted = expected_message(name)
        name = wanted.name
        payload = self._codec.encode(value, f"broadcast {name!r}", wanted.type)
        key = self._system.entropy(16).hex() if key is None else check_id(key, "key of a broadcast")
        if len(f"{_PREFIX}{key}".encode()) > ID_BYTES:
            raise UsageError(
                f"the key {key!r} of a broadcast is too long; give one of {ID_BYTES - len(_PREFIX)} bytes at most"
            )
        store = await self._opened()
        sent, cursor = 0, None
        while True:
            chunk = await store.broadcast(topic(name, correlation), payload, key, cursor, CHUNK, self._actor)
            sent, cursor = sent + chunk.sent, chunk.cursor
            if cursor is None:
                return sent


async def ask(
    engine: Engine,
    run_id: str,
    question: Question[Any, Any] | str,
    value: object,
    *,
    returns: Any,
    key: str | None,
    timeout: Duration | None,
) -> Any:
    """Send a question and wait for its answer. Raises `RunNotFound`, `RunFinished`, or what ended the run meanwhile."""
    if timeout is not None:
        seconds(timeout)
    declared = question.type if isinstance(question, Question) else Any
    if isinstance(question, Question):
        name, kind = question.name, question.answer if returns is Any else returns
    else:
        name, kind = check_name(question, "name of a question"), returns
    key = engine._system.entropy(16).hex() if key is None else check_id(key, "key of a question")
    message = NewMessage(
        run_id=check_id(run_id),
        name=question_name(name),
        payload=question_payload(key, value, engine._codec, f"question {name!r} to run {run_id!r}", declared),
        key=key,
    )
    store = await engine._opened()
    # It listens before it sends: a database that is replaced right after may lack the question.
    with News(store, engine._system) as news:
        outcome = await _put(engine, store, message, name)
        if outcome is SendOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and answers no more questions; {name!r} was not asked")
        answer = await engine._overdue.wait(
            run_id,
            lambda: _answer(engine, store, message, name, news),
            f"perdure ask {run_id}",
            timeout,
            f"run {run_id!r} did not answer {name!r}",
        )
    if answer.failed:
        raise engine._errors.restore(Failure.from_json(answer.payload), run_id=run_id)
    return engine._codec.decode(answer.payload, kind, f"answer of run {run_id!r} to {name!r}")


async def _put(engine: Engine, store: Store, message: NewMessage, name: str) -> SendOutcome:
    [outcome] = await store.send([message], engine._actor)
    if outcome is SendOutcome.UNKNOWN:
        raise RunNotFound(f"there is no run {message.run_id!r} to ask {name!r}")
    return outcome


async def _answer(engine: Engine, store: Store, message: NewMessage, name: str, news: News) -> Output:
    run_id, key = message.run_id, message.key
    while True:
        if news.replaced():
            # The question may be lost; its key makes it the same one if it is not.
            await _put(engine, store, message, name)
        # Looked at first: an answer that comes with the end is there when it has ended.
        run = await engine._run(run_id)
        answers = await store.outputs(run_id, OutputKind.REPLY, key, -1, 1)
        if answers:
            return answers[0]
        if run.status is Status.COMPLETED:
            raise RunFinished(f"run {run_id!r} finished without an answer to {name!r}")
        if run.status.finished:
            engine._outcome(run, Any)
        await news.arrive()
