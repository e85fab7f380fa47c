"""What a workflow can take in from others, and show or send to them."""

from __future__ import annotations

from typing import Any, TypeVar, cast, overload

from perdure.core.ids import check_id, check_name
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.run import NewMessage
from perdure.core.option_checks import check_whole
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import BadArguments
from perdure.workflow.channels import Asked, Channel, Envelope, Question, expected, question_name, topic
from perdure.workflow.facet import Facet
from perdure.workflow.operation import Operation
from perdure.workflow.runtime import Expected, Listening, Received

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class Messaging(Facet):
    """See the module."""

    __slots__ = ()

    @overload
    def receive(
        self, channel: Channel[T], *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[T]: ...

    @overload
    def receive(
        self, channel: str, type: type[T], *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[T]: ...

    @overload
    def receive(
        self, channel: str, type: Any = ..., *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[Any]: ...

    def receive(
        self,
        channel: Channel[Any] | str,
        type: Any = Any,
        *,
        timeout: Duration | None = None,
        correlation: str | None = None,
    ) -> Operation[Any]:
        """Take the next message of that name from the run's mailbox, waiting for it if need be.

        Messages wait too: none is lost because nobody was receiving. Raises `TimeoutError` after `timeout`; a message that
        comes later stays for the next receive. With a `correlation` value, takes what `engine.broadcast` sends to all runs
        that listen for that name and value; a run listens from its first such receive on.
        """
        wanted = expected(channel, type)
        if correlation is not None:
            wanted = Expected(topic(wanted.name, correlation), wanted.type)
            self._runtime.listen(Listening(wanted.name, True))
        return cast("Operation[Any]", self._runtime.receive([wanted], self._due(timeout), named=False))

    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], /, *, timeout: Duration | None = None
    ) -> Operation[Received[T | Q]]: ...

    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], third: Channel[A], /, *, timeout: Duration | None = None
    ) -> Operation[Received[T | Q | A]]: ...

    @overload
    def receive_any(self, *channels: Channel[T], timeout: Duration | None = None) -> Operation[Received[T]]: ...

    @overload
    def receive_any(self, *channels: Channel[Any], timeout: Duration | None = None) -> Operation[Received[Any]]: ...

    def receive_any(self, *channels: Channel[Any], timeout: Duration | None = None) -> Operation[Received[Any]]:
        """Take the next message of any of these channels, in the order in which they arrived."""
        if not channels:
            raise BadArguments("receive_any() needs at least one channel to wait for")
        wanted = [expected(channel) for channel in channels]
        return cast("Operation[Received[Any]]", self._runtime.receive(wanted, self._due(timeout), named=True))

    async def receive_many(
        self, channel: Channel[T] | str, type: type[T] | Any = Any, *, limit: int, timeout: Duration | None = None
    ) -> list[T]:
        """Take up to `limit` messages.

        Without a timeout: waits for the first, then gives all that have arrived; a worker takes in at most 1,000 at once. With
        one: waits until there are as many as wanted or the time is over, and gives what there is, which may be nothing.
        """
        check_whole("limit", limit, 1, error=BadArguments)
        wanted = expected(channel, type)
        due = self._due(timeout)
        taken: list[T] = []
        while len(taken) < limit:
            if due is None and taken and not self._runtime.has_arrived(wanted.name):
                break
            try:
                taken.append(await self._runtime.receive([wanted], due, named=False))
            except TimeoutError:
                break
        return taken

    @overload
    async def receive_question(self, question: Question[Q, A], *, timeout: Duration | None = None) -> Asked[Q, A]: ...

    @overload
    async def receive_question(
        self, question: str, type: type[T], *, timeout: Duration | None = None
    ) -> Asked[T, Any]: ...

    @overload
    async def receive_question(
        self, question: str, type: Any = ..., *, timeout: Duration | None = None
    ) -> Asked[Any, Any]: ...

    async def receive_question(
        self, question: Question[Any, Any] | str, type: Any = Any, *, timeout: Duration | None = None
    ) -> Asked[Any, Any]:
        """Take the next question of that name, asked with `handle.ask(...)`; answer it with its `reply(...)`."""
        name, kind, declared = (
            (question.name, question.type, question.answer) if isinstance(question, Question) else (question, type, Any)
        )
        envelope: Any = Envelope
        wanted = Expected(question_name(check_name(name, "name of a question")), envelope[kind])
        letter: Envelope[Any] = await self._runtime.receive([wanted], self._due(timeout), named=False)

        def reply(answer: object) -> None:
            payload = self._runtime.encode(answer, f"answer to {name!r}", declared)
            output = NewOutput(kind=OutputKind.REPLY, name=letter.key, payload=payload, key=f"reply:{letter.key}")
            self._runtime.effect("reply", lambda _: output)

        return Asked(letter.value, reply)

    def send(self, run: str, channel: Channel[T] | str, value: T | Any = None, *, key: str | None = None) -> None:
        """Send a message to another run, durable with what led to it; one that has finished or does not exist gets nothing.

        Sent once, whatever crashes. With a `key`, also once for all who send with that key.
        """
        wanted = expected(channel)
        target = check_id(run, "run id")
        given = None if key is None else check_id(key, "message key")
        payload = self._runtime.encode(value, f"message {wanted.name!r} to run {target!r}", wanted.type)

        def message(own_key: str) -> NewMessage:
            return NewMessage(run_id=target, name=wanted.name, payload=payload, key=given or own_key)

        self._runtime.effect("send", message)

    def publish(self, key: str, value: object) -> None:
        """Let others see a value under a key, at any time: `handle.state(key)`. The latest one counts."""
        name = check_name(key, "key of a state")
        payload = self._runtime.encode(value, f"state {name!r}")
        output = NewOutput(kind=OutputKind.STATE, name=name, payload=payload, key=f"state:{name}")
        self._runtime.effect("publish", lambda _: output)

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream that others follow by position: `handle.stream(name)`."""
        name = check_name(stream, "name of a stream")
        payload = self._runtime.encode(value, f"item of stream {name!r}")
        self._runtime.effect("emit", lambda key: NewOutput(kind=OutputKind.STREAM, name=name, payload=payload, key=key))

    def _due(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self._runtime.time + microseconds(timeout)
