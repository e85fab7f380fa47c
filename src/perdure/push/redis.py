"""A queue on Redis Streams: a consumer group, and a sorted set for delayed messages.

Delivery is at least once: a message is acknowledged, and its successor added, in one step on the server. Messages of a
dead consumer are claimed by others when they have been idle for long enough. Delayed messages are kept by run; the
earliest wins. Consumers wait for a server that goes away. Messages that it had not written to disk are lost, so it
needs `appendonly yes` and `appendfsync always`.

With keys, an entry of the stream has the headers of its signature as further fields, and consumers refuse entries
without a valid one. Messages wait, so `max_age` bounds their age instead of the tolerance of the keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from perdure.client.session import session_of
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.option_checks import check_duration, check_text
from perdure.core.time.duration import Duration
from perdure.errors import InvalidSignature, StoreError, UsageError
from perdure.push.handler import QueueHandler
from perdure.push.message import MessageOutcome, MessageResult, QueueMessage
from perdure.push.signature import SigningKeys, signing_keys
from perdure.store.url import shown

logger = logging.getLogger("perdure.push")

_FIELD = "message"
#: Outcomes of messages that go to the stream of dead ones.
_PUT_ASIDE = frozenset({MessageOutcome.MALFORMED, MessageOutcome.UNSIGNED})
#: Delayed messages moved in one step.
_AT_ONCE = 100
#: Seconds to wait for a message.
_BLOCK = 2.0

#: Adds a message to the stream or, with a delay, to the set of delayed ones by its run: KEYS stream, later, bodies.
#: `fields` has `message` and the body, then the headers of its signature. A delayed message without one is its body.
_PUT = """
local function put(run, delay, fields)
  if delay <= 0 then return redis.call('XADD', KEYS[1], '*', unpack(fields)) end
  local time = redis.call('TIME')
  local due = time[1] * 1000 + math.floor(time[2] / 1000) + delay
  local there = redis.call('ZSCORE', KEYS[2], run)
  if there and tonumber(there) <= due then return false end
  redis.call('ZADD', KEYS[2], due, run)
  redis.call('HSET', KEYS[3], run, #fields > 2 and cmsgpack.pack(fields) or fields[2])
end
"""

#: ARGV: run, delay, fields.
_ENQUEUE = f"{_PUT} put(ARGV[1], tonumber(ARGV[2]), {{unpack(ARGV, 3)}})"

#: Acknowledges a message. ARGV: group, id, verdict, run or reason, delay, fields. KEYS has the stream of dead messages
#: as its fourth.
_SETTLE = f"""{_PUT}
if ARGV[3] == 'retry' then put(ARGV[4], tonumber(ARGV[5]), {{unpack(ARGV, 6)}}) end
if ARGV[3] == 'dead' then redis.call('XADD', KEYS[4], '*', 'reason', ARGV[4], unpack(ARGV, 6)) end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
"""

#: Moves due messages into the stream; returns the milliseconds until the next one is due, -1 for never.
_PROMOTE = f"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, {_AT_ONCE})) do
  local body = redis.call('HGET', KEYS[3], run)
  if body then
    local fields = string.sub(body, 1, 1) == '{{' and {{'message', body}} or cmsgpack.unpack(body)
    redis.call('XADD', KEYS[1], '*', unpack(fields))
  end
  redis.call('ZREM', KEYS[2], run)
  redis.call('HDEL', KEYS[3], run)
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[2] then return math.max(0, first[2] - now) end
return -1
"""

#: Scripts, because the client reshapes the answers of these commands.
_KEEP = "redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(ARGV, 3))"
_TAKE_OVER = "return redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])"


class RedisClient(Protocol):
    """The methods of `redis.asyncio.Redis` that a queue needs."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]:
        """Send a command and wait for the answer."""

    def aclose(self) -> Awaitable[object]:
        """Close every connection."""


class RedisQueue:
    """A queue of messages on a Redis server, for `QueueHandler(enqueue=queue.enqueue)` and `queue.run(handler)`."""

    def __init__(
        self,
        client: RedisClient,
        *,
        name: str = "perdure",
        group: str = "workers",
        idle: Duration = "1m",
        keys: SigningKeys | str | Iterable[str] | None = None,
        max_age: Duration = "48h",
    ) -> None:
        """Use a `redis.asyncio.Redis`. Several queues on a server differ by `name`.

        Messages of a consumer that has been silent for `idle` are claimed by others. With `keys`, messages are signed,
        and those without a valid signature, or with one that was due longer than `max_age` ago, are put aside.
        """
        self._client = client
        self._signing = signing_keys(keys)
        self._max_age = check_duration("max_age", max_age)
        #: Key of the stream, name of the consumer group, and seconds after which a silent consumer loses its messages.
        self.stream = f"{{{check_text('name', name)}}}"
        self.group = check_text("group", group)
        self.idle = check_duration("idle", idle)
        self._keys = (self.stream, f"{self.stream}:later", f"{self.stream}:bodies", f"{self.stream}:dead")

    @classmethod
    def at(
        cls,
        url: str,
        *,
        name: str = "perdure",
        group: str = "workers",
        idle: Duration = "1m",
        keys: SigningKeys | str | Iterable[str] | None = None,
        max_age: Duration = "48h",
    ) -> RedisQueue:
        """Make a queue on the server of a URL such as `redis://localhost:6379`. Raises `UsageError`."""
        try:
            from redis.asyncio import Redis
        except ModuleNotFoundError as missing:
            raise UsageError(
                "a queue on Redis needs the package redis, which is not installed: pip install 'perdure[redis]'"
            ) from missing
        given: object = url
        if not isinstance(given, str):
            raise UsageError(f"the URL of a Redis server is text, not {type(given).__name__}")
        try:
            client: Any = Redis.from_url(url)
        except ValueError:
            client = None
        if client is None:
            # Raised here: the original error may tell the password, and shall not be the context.
            raise UsageError(
                f"{shown(url)!r} is not the URL of a Redis server; write redis://user:password@host:6379/0, or "
                "rediss:// for an encrypted connection"
            )
        return cls(client, name=name, group=group, idle=idle, keys=keys, max_age=max_age)

    async def close(self) -> None:
        """Disconnect from the server."""
        await self._client.aclose()

    async def enqueue(self, message: QueueMessage, delay: float = 0.0) -> None:
        """Add a message, to be delivered now or after so many seconds."""
        body = message.encode()
        await self.evaluate(_ENQUEUE, 3, message.run_id, round(delay * 1000), *self._fields(body, delay))

    async def run(self, handler: QueueHandler, *, concurrency: int = 16) -> None:
        """Deliver messages to a handler until cancelled, so many at a time. Messages under way are finished first."""
        await _Consumer(self, self._refusal, handler, concurrency).run()

    async def settle(self, id: str, answer: MessageResult, body: bytes) -> None:
        """Acknowledge a message, and put its successor in its place."""
        if answer.outcome in _PUT_ASIDE:
            what: tuple[object, ...] = ("dead", answer.detail, 0, _FIELD, body)
        elif answer.ack:
            what = ("ack", "", 0)
        else:
            what = ("retry", answer.run_id, round(answer.delay * 1000), *self._fields(answer.body, answer.delay))
        await self.evaluate(_SETTLE, 4, self.group, id, *what)

    def _refusal(self, body: bytes, fields: Sequence[tuple[str, bytes]]) -> str:
        """Return the reason why an entry is refused; empty if its signature is valid or none is needed."""
        if self._signing is None:
            return ""
        try:
            self._signing.verify(body, fields, max_age=self._max_age)
        except InvalidSignature as error:
            return str(error)
        return ""

    def _fields(self, body: bytes, delay: float) -> list[object]:
        """The fields of an entry. A delayed message is signed for the time when it is due."""
        signature = {} if self._signing is None else self._signing.sign(body, delay=delay)
        return [_FIELD, body, *(text for pair in signature.items() for text in pair)]

    async def command(self, *arguments: object) -> Any:
        """Send a command to the server and return its answer."""
        return await self._client.execute_command(*arguments)

    async def evaluate(self, script: str, keys: int, *arguments: object) -> Any:
        """Run a script on the first of the queue's keys."""
        return await self.command("EVAL", script, keys, *self._keys[:keys], *arguments)


class _Delivered:
    """A message of the stream."""

    def __init__(self, queue: RedisQueue, id: str, body: bytes) -> None:
        self.body: bytes | str = body
        self.id = id
        self._queue = queue
        self._bytes = body

    async def ack(self, answer: MessageResult, /) -> None:
        await self._queue.settle(self.id, answer, self._bytes)

    async def retry(self, answer: MessageResult, /) -> None:
        await self._queue.settle(self.id, answer, self._bytes)


#: Returns the reason why an entry with this body and these fields is refused; empty if it is accepted.
Refusal = Callable[[bytes, Sequence[tuple[str, bytes]]], str]


class _Consumer:
    """One reader of the group."""

    def __init__(self, queue: RedisQueue, refusal: Refusal, handler: QueueHandler, concurrency: int) -> None:
        self._queue = queue
        self._refusal = refusal
        self._handler = handler
        self._concurrency = concurrency
        self._system = session_of(handler.engine).system
        self._guard = LoopGuard(
            "queue consumer", self._system, LoopHealth(), logger, outages=(StoreError, OSError, _redis_error())
        )
        # A new name each time: messages of an earlier life are found by their idleness.
        self._name = self._system.entropy(8).hex()
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        self._ready = False
        self._look_at = 0.0

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            # Checked besides being raised: the Redis client may take a cancellation for a broken connection.
            while not task.cancelling():
                try:
                    await self._round()
                    self._guard.succeeded()
                except Exception as error:
                    self._ready = False
                    await self._system.sleep(self._guard.failed(error))
        finally:
            if self._under_way:
                await asyncio.wait(self._under_way.values())

    async def _round(self) -> None:
        if not self._ready:
            await self._make_group()
        if len(self._under_way) >= self._concurrency:
            await asyncio.wait(self._under_way.values(), timeout=_BLOCK, return_when=asyncio.FIRST_COMPLETED)
        next_due = await self._queue.evaluate(_PROMOTE, 3)
        if self._system.monotonic() >= self._look_at:
            await self._keep_and_take_over()
            self._look_at = self._system.monotonic() + self._queue.idle / 3
        room = self._concurrency - len(self._under_way)
        if room > 0:
            wait = _BLOCK if next_due < 0 else min(_BLOCK, next_due / 1000)
            self._deliver(await self._read(room, max(1, round(wait * 1000))))

    async def _make_group(self) -> None:
        try:
            await self._queue.command("XGROUP", "CREATE", self._queue.stream, self._queue.group, "0", "MKSTREAM")
        except _redis_error() as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._ready = True

    async def _read(self, count: int, wait: int) -> Any:
        answer = await self._queue.command(
            "XREADGROUP", "GROUP", self._queue.group, self._name, "COUNT", count, "BLOCK", wait,
            "STREAMS", self._queue.stream, ">",
        )  # fmt: skip
        if not answer:
            return ()
        # One stream: a pair or, in the newer protocol, a mapping whose entries are in a list of their own.
        if isinstance(answer, dict):
            [[entries]] = answer.values()
            return entries
        return answer[0][1]

    async def _keep_and_take_over(self) -> None:
        """Keep the messages under way here from going idle, and claim messages of silent consumers."""
        who = self._queue.group, self._name
        if self._under_way:
            await self._queue.evaluate(_KEEP, 1, *who, *self._under_way, "JUSTID")
        idle, start = round(self._queue.idle * 1000), "0-0"
        while (room := self._concurrency - len(self._under_way)) > 0:
            answer = await self._queue.evaluate(_TAKE_OVER, 1, *who, idle, start, room)
            self._deliver(answer[1])
            start = _text(answer[0])
            if start == "0-0":
                return

    def _deliver(self, entries: Any) -> None:
        for id, fields in entries:
            known = _text(id)
            # A message that was deleted meanwhile has no fields.
            if fields and known not in self._under_way:
                pairs = fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True)
                task = self._system.spawn(
                    self._handle(known, [(_text(name), _bytes(value)) for name, value in pairs]), "perdure delivery"
                )
                self._under_way[known] = task
                task.add_done_callback(partial(self._over, known))

    async def _handle(self, id: str, fields: Sequence[tuple[str, bytes]]) -> None:
        bodies = [value for name, value in fields if name == _FIELD]
        body = bodies[0] if len(bodies) == 1 else b""
        refused = self._refusal(body, fields)
        if not refused:
            await self._handler.handle([_Delivered(self._queue, id, body)])
            return
        logger.error("message_unsigned: entry %s of a queue is put aside: %s", id, refused)
        answer = MessageResult(ack=True, outcome=MessageOutcome.UNSIGNED, detail=refused)
        await self._queue.settle(id, answer, body)

    def _over(self, id: str, task: asyncio.Task[Any]) -> None:
        del self._under_way[id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not acknowledged, it is delivered again once it has been idle for long enough.
            self._guard.failed(error)


def _redis_error() -> type[Exception]:
    from redis.exceptions import RedisError

    return RedisError


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
