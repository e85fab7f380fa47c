"""Messages that have arrived in a run, and the receives that wait for one.

Arriving is what the history records; taking happens while the loop drains. So a message outlives a receive that timed out.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any

from perdure.core.codec import Codec
from perdure.core.errors import DecodeError
from perdure.replay.futures import Watched


class Mailbox:
    """Per name: messages without a receiver, or receivers without a message."""

    def __init__(self, codec: Codec, run_id: str) -> None:
        self._codec = codec
        self._run_id = run_id
        self._messages: dict[str, deque[str]] = defaultdict(deque)
        self._receivers: dict[str, deque[tuple[Watched[Any], Any]]] = defaultdict(deque)

    def arrive(self, name: str, payload: str) -> None:
        """Give a message to the first who waits for it, or keep it."""
        receivers = self._receivers[name]
        while receivers:
            future, type = receivers.popleft()
            if not future.done():
                self._hand_over(name, payload, future, type)
                return
        self._messages[name].append(payload)

    def receive(self, name: str, type: Any, future: Watched[Any]) -> None:
        """Resolve `future` with the next message of that name, now or when it arrives."""
        if self._messages[name]:
            self._hand_over(name, self._messages[name].popleft(), future, type)
        else:
            self._receivers[name].append((future, type))

    def awaited_names(self) -> list[str]:
        """The names that something waits for."""
        return [name for name, queue in self._receivers.items() if any(not future.done() for future, _ in queue)]

    def _hand_over(self, name: str, payload: str, future: Watched[Any], type: Any) -> None:
        try:
            future.set_result(self._codec.decode(payload, type, f"message {name!r} to run {self._run_id!r}"))
        except DecodeError as error:
            future.set_exception(error)


def bound(receiving: Watched[Any], expired: Watched[Any], name: str) -> None:
    """Let a receive fail when its timer goes off, and call the timer off when it has ended."""

    def on_expired(_: Any) -> None:
        if not receiving.done():
            receiving.set_exception(TimeoutError(f"no message {name!r} arrived in time"))

    expired.add_done_callback(on_expired)
    # Not as the workflow would: this is no one awaiting it.
    asyncio.Future.add_done_callback(receiving, lambda _: expired.cancel())
