"""Mailbox of a run: messages that have arrived, and receives that wait for one.

The history records arrivals; receives happen while the loop drains. So a message outlives a receive that timed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.model.waits import Wait, WaitKind
from perdure.errors import DecodeError
from perdure.replay.run_loop import OperationFuture
from perdure.workflow.runtime import ExpectedMessage, ReceivedMessage
from perdure.workflow.scopes import Scope

#: Number of the message's record, and payload.
ArrivedMessage = tuple[int, str]


class RefusedMessage(Struct, frozen=True):
    """A message that could not be decoded."""

    name: str
    seq: int
    payload: str
    error: DecodeError
    #: Path of the scope in which it was to be received.
    path: str


class Receiver:
    """A receive that waits."""

    __slots__ = ("future", "named", "scope", "since", "types", "until")

    def __init__(
        self,
        expected: Sequence[ExpectedMessage],
        future: OperationFuture[Any],
        scope: Scope,
        *,
        named: bool,
        since: int,
        until: int,
    ) -> None:
        self.types = {one.name: one.type for one in expected}
        self.future = future
        self.scope = scope
        #: Whether the result includes the message's name.
        self.named = named
        #: Workflow time at which the receive began, and at which it times out; 0: never.
        self.since = since
        self.until = until


class Mailbox(Struct):
    """By name: messages without a receiver, or receivers without a message."""

    _codec: Codec
    _run_id: str
    #: Called with the scope's path and the record's number when a message is received inside a scope. A method of the
    #: owner would make a reference cycle.
    _taken: Callable[[str, int], None]
    _messages: dict[str, deque[ArrivedMessage]] = {}
    _receivers: dict[str, deque[Receiver]] = {}
    #: Messages that could not be decoded, for the owner to set aside.
    refused: list[RefusedMessage] = []
    #: By the number of its record, messages that the history sets aside, and the number of the record that does.
    set_aside: dict[int, int] = {}
    #: Whether the history is being replayed, and the error of a message in it that the code could decode then.
    replays: bool = False
    unfit: DecodeError | None = None

    def arrive(self, name: str, seq: int, payload: str) -> None:
        """Give a message to the first receiver, or keep it."""
        receivers = self._receivers.get(name)
        while receivers:
            receiver = receivers.popleft()
            if not receiver.future.done():
                if not self._hand_over(name, (seq, payload), receiver):
                    receivers.appendleft(receiver)
                return
        self._messages.setdefault(name, deque()).append((seq, payload))

    def put(self, name: str, seq: int, payload: str) -> None:
        """Keep a message of a batch until it is offered. `has` finds it meanwhile."""
        self._messages.setdefault(name, deque()).append((seq, payload))

    def offer(self, name: str, seq: int) -> bool:
        """Give a message that was put to the first receiver; False if none gets it, or the message is gone."""
        letters = self._messages.get(name)
        if not letters or letters[0][0] > seq or not self._waiting(name):
            return False
        receiver = self._receivers[name].popleft()
        if self._hand_over(name, self._pop(name), receiver):
            return True
        self._receivers[name].appendleft(receiver)
        return False

    def receive(
        self,
        expected: Sequence[ExpectedMessage],
        future: OperationFuture[Any],
        scope: Scope,
        *,
        named: bool,
        since: int = 0,
        until: int = 0,
    ) -> None:
        """Resolve `future` with the first message of those names, now or when it arrives."""
        receiver = Receiver(expected, future, scope, named=named, since=since, until=until)
        # In the middle of a batch, receivers that have waited longer come first.
        while waiting := [name for name in receiver.types if name in self._messages and not self._waiting(name)]:
            name = min(waiting, key=lambda name: self._messages[name][0])
            if self._hand_over(name, self._pop(name), receiver):
                return
        for name in receiver.types:
            # Receivers that timed out are removed here; otherwise they would pile up where no message ever comes.
            self._waiting(name)
            self._receivers.setdefault(name, deque()).append(receiver)

    def awaited_names(self) -> list[str]:
        """Return the names that a receive waits for."""
        return [
            name for name, queue in self._receivers.items() if any(not receiver.future.done() for receiver in queue)
        ]

    def waits(self) -> list[Wait]:
        """Return the names that a receive waits for, each with its oldest receive."""
        found: list[Wait] = []
        for name, queue in self._receivers.items():
            for receiver in queue:
                if not receiver.future.done():
                    found.append(Wait(kind=WaitKind.MESSAGE, name=name, since=receiver.since, until=receiver.until))
                    break
        return found

    def waiting_inside(self, path: str) -> list[tuple[str, str]]:
        """Return the scopes inside a path in which a receive waits, with descriptions."""
        receivers = {id(receiver): receiver for queue in self._receivers.values() for receiver in queue}
        return [
            (receiver.scope.path, f"{receiver.future.label} in {receiver.scope.location!r}")
            for receiver in receivers.values()
            if not receiver.future.done() and receiver.scope.path.startswith(path)
        ]

    def has(self, name: str) -> bool:
        """True if a receive of that name would get a message at once."""
        letters = self._messages.get(name, ())
        return len(letters) > 0 and len(letters) > self._waiting(name)

    def unreceived(self) -> list[tuple[str, ArrivedMessage]]:
        """Return the messages that were not received, in order."""
        letters = [(name, letter) for name, queue in self._messages.items() for letter in queue]
        return sorted(letters, key=lambda entry: entry[1])

    def close(self) -> None:
        """Drop all receivers."""
        self._receivers.clear()

    def _waiting(self, name: str) -> int:
        """Count the receivers of a name that still wait, and remove finished ones from the front."""
        queue = self._receivers.get(name)
        if not queue:
            return 0
        while queue and queue[0].future.done():
            queue.popleft()
        return sum(not receiver.future.done() for receiver in queue)

    def _pop(self, name: str) -> ArrivedMessage:
        queue = self._messages[name]
        letter = queue.popleft()
        if not queue:
            del self._messages[name]
        return letter

    def _hand_over(self, name: str, letter: ArrivedMessage, receiver: Receiver) -> bool:
        """Resolve a receive with a message; False if the message is set aside, so that the receive goes on waiting."""
        seq, payload = letter
        path = receiver.scope.path
        if path:
            self._taken(path, seq)
        if seq in self.set_aside:
            if path:
                self._taken(path, self.set_aside[seq])
            return False
        try:
            value = self._codec.decode(payload, receiver.types[name], f"message {name!r} to run {self._run_id!r}")
        except DecodeError as error:
            if self.replays:
                # The code has received it then. Code of earlier versions of Perdure has received the error.
                self.unfit = error
                receiver.future.note_waiters()
                receiver.future.set_exception(error)
                return True
            self.refused.append(RefusedMessage(name, seq, payload, error, path))
            return False
        receiver.future.note_waiters()
        receiver.future.set_result(ReceivedMessage(name, value) if receiver.named else value)
        return True


def bound(receiving: OperationFuture[Any], expired: OperationFuture[Any], names: Sequence[str]) -> None:
    """Fail a receive when its timer fires, and cancel the timer when the receive has ended."""

    def on_expired(_: Any) -> None:
        if not receiving.done():
            listed = " or ".join(repr(name) for name in names)
            receiving.set_exception(TimeoutError(f"no message {listed} arrived in time"))

    expired.add_done_callback(on_expired)
    receiving.observe(lambda _: expired.cancel())
