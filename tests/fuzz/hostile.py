"""Values that a public function may be given and does not expect."""

from __future__ import annotations

import asyncio
import datetime
import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec

from perdure import (
    At,
    Call,
    Channel,
    Context,
    Cron,
    Debounce,
    Every,
    Fair,
    Limit,
    Question,
    Retry,
    Singleton,
    Status,
    Watermark,
    activity,
    workflow,
)


class Rude:
    """An object that cannot be shown or hashed."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    __hash__ = None  # type: ignore[assignment] # hostile on purpose


class Text(str):
    """A subclass of `str`."""

    __slots__ = ()


class Number(int):
    """A subclass of `int`."""


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Order:
    id: str
    items: list[Any]


class Point(msgspec.Struct):
    x: float
    y: Any = None


@workflow("fuzz.flow")
async def flow(ctx: Context, order: Order) -> int:
    return await ctx.step(len, order.id) + await ctx.step(len, order.items)


@workflow("fuzz.failing")
async def failing(ctx: Context) -> int:
    raise ValueError("no")


@workflow("fuzz.any")
async def anything(ctx: Context, value: Any = None, *, more: Any = None) -> Any:
    return value


@activity("fuzz.act")
def act(count: int = 3) -> int:
    return count


def nested(depth: int) -> list[Any]:
    """A list in a list, and so on."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


TEXTS = [
    "",
    " ",
    "a",
    "a b",
    " a",
    "a ",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfff",
    "é",
    "e\u0301",
    "\u202e",
    "\u2028",
    "🙂",
    "\n",
    "\x1b[31m",
    "a" * 199,
    "a" * 200,
    "a" * 256,
    "é" * 200,
    "a" * 10_000,
    "a" * 1_000_000,
    "/",
    "a/b",
    "#",
    "~",
    "%",
    "%s",
    "{0}",
    "${x}",
    "'; DROP TABLE perdure_runs; --",
    "\\",
    '"',
    "null",
    "true",
    "NaN",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "0",
    "1",
    "1_0",
    "٣",
    "5m",
    "5 m",
    "5M",
    "1e3s",
    "-5m",
    "5m5m",
    "1h30m",
    "9" * 400 + "s",
    "0.1s",
    ".5s",
    "1.",
    "1d" * 400,
    "P1D",
    "99999999999d",
    "1w2d3h4m5s6ms7us",
    "5µs",
    "2026-01-01",
    "2026-01-01T00:00Z",
    "* * * * *",
    "0 0 31 2 *",
    "@daily",
    "@reboot",
    "*/0 * * * *",
    "0-59/7,3 * * * *",
    "* " * 200,
    "60 * * * *",
    "0 0 29 2 MON#5",
    "L * * * *",
    "0 0 LW * *",
    "Europe/Prague",
    "../../etc/passwd",
    "/etc/passwd",
    "UTC",
    "utc",
    "posix/UTC",
    "Europe",
    "10/s",
    "10/1m",
    "0/s",
    "1/0s",
    "1e9/s",
    "/s",
    "10/",
    "-1/s",
    "10/99999999d",
    "r1",
    "nightly",
    "fuzz.flow",
    "fuzz.any",
    "fuzz.%",
    "%%",
    "default",
    "completed",
    "failed",
    "COMPLETED",
    "skip",
    "all",
    "once",
    "queue",
    "reject",
    "full",
    "off",
    "lifecycle",
    "wait",
    "refuse",
    "r1@2026-01-01T00:00:00Z",
    "nightly@now-3",
    "eyJ9",
    "AAAA",
    "====",
    "charge#2",
    "charge#-1",
    "a/~1/b",
]

URLS = [
    "sqlite://",
    "sqlite:///",
    "sqlite:///x.db",
    "sqlite:////tmp/x.db",
    "sqlite:/x",
    "sqlite:x",
    "sqlite://x",
    "sqlite",
    "sqlite:///:memory:",
    "sqlite:///x?prefix=a",
    "sqlite:///x?prefix=A;",
    "sqlite:///x?busy=nan",
    "sqlite:///x?busy=1e999",
    "sqlite:///x?busy=-1",
    "sqlite:///x?audit=loud",
    "sqlite:///x?synchronous=off",
    "sqlite:///x?y=1",
    "sqlite:///x#f",
    "sqlite:///%00",
    "sqlite:///%ff",
    "sqlite:///\ud800",
    "sqlite+aiosqlite:///x",
    "postgresql://",
    "postgresql://h/d",
    "postgresql://u:p@h:1/d",
    "postgresql://h:x/d",
    "postgresql://h:99999/d",
    "postgresql://[::1]/d",
    "postgresql://[::1/d",
    "postgresql://h/d?pool=0",
    "postgresql://h/d?pool=٣",
    "postgresql://h/d?pool=9999999999",
    "postgresql://h/d?schema=1;",
    "postgresql://h/d?sslmode=x",
    "postgresql://h/d?listen=a,,b",
    "postgresql://h/d?notify=2",
    "postgresql://h1,h2/d",
    "postgresql://h/d?host=%",
    "postgresql+asyncpg://h/d",
    "postgres://h/d",
    "mysql://",
    "mysql://h",
    "mysql://h/",
    "mysql://h/d",
    "mysql://h:x/d",
    "mysql://h:-1/d",
    "mysql://h:99999999/d",
    "mysql://h/d/e",
    "mysql://h/d?ssl=x",
    "mysql://a,b/d",
    "mysql://[::1]:3/d",
    "mysql://[v9.x]/d",
    "mysql://h/d?pool=1_0",
    "mariadb://h/d",
    "mysql+pymysql://h/d",
    "http://h/d",
    "http://localhost:8000",
    "https://h:99999",
    "https://h:x/",
    "https://u:p@h/",
    "https://[::1",
    "https://h..x",
    "https://h/api/v1/",
    "://",
    "a://b",
    "//h/d",
    "\tsqlite://",
    "sqlite\n://",
    "mysql://h\u2100/d",
    "SQLITE:///X",
    "\u017fqlite:///x",
]

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    5,
    100,
    1000,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    10**18,
    10**30,
    10**400,
    10**5000,
    0.0,
    -0.0,
    0.5,
    1.5,
    -1.5,
    1e-300,
    1e18,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    True,
    False,
    Number(3),
    Decimal(1),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("1e999"),
    Fraction(1, 3),
    1j,
]

TIMES: list[Any] = [
    datetime.timedelta(),
    datetime.timedelta(seconds=-1),
    datetime.timedelta(seconds=5),
    datetime.timedelta.max,
    datetime.timedelta.min,
    datetime.timedelta(microseconds=1),
    datetime.datetime.min,
    datetime.datetime.max,
    datetime.datetime(2026, 1, 1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime.min.replace(tzinfo=datetime.UTC),
    datetime.datetime.max.replace(tzinfo=datetime.UTC),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=23))),
    datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(hours=23))),
    datetime.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Prague")),
    datetime.date(2026, 1, 1),
    datetime.time(3),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=1))),
    datetime.time(3, tzinfo=ZoneInfo("Europe/Prague")),
    datetime.UTC,
    datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
]

OTHERS: list[Any] = [
    None,
    b"",
    b"x",
    b"\xff",
    bytearray(b"x"),
    memoryview(b"x"),
    [],
    (),
    {},
    set(),
    [1],
    (1,),
    {1},
    {"a": 1},
    {1: 2},
    {None: 1},
    {(1,): 2},
    {"a": {"b": [1, {"c": set()}]}},
    {"\ud800": 1},
    {"a\0": 1},
    {1: 1, "1": 2},
    {10**5000: 1, None: 2},
    {"status": object(), 1: 2},
    [math.nan],
    {math.nan},
    [None] * 1000,
    ["r1"],
    ["r1", "r2"],
    ["r1"] * 300,
    [""],
    ["\0"],
    range(3),
    iter([1]),
    [Rude()],
    object(),
    object,
    int,
    str,
    print,
    len,
    max,
    Rude(),
    Rude,
    Text("a"),
    Text("r1"),
    Colour.RED,
    Colour,
    Status.FAILED,
    [Status.FAILED],
    uuid.UUID(int=3),
    Point(1.0),
    Point(math.nan),
    Point(1.0, object()),
    Order("a", []),
    Order(cast("str", 3), cast("list[Any]", None)),
    Exception("x"),
    ValueError,
    KeyboardInterrupt(),
    NotImplemented,
    ...,
    flow,
    anything,
    act,
    Order,
    nested(3),
    nested(199),
    nested(250),
    nested(5000),
    _cyclic(),
    _cyclic_dict(),
    lambda: 1,
    lambda *a, **k: "k",
    lambda *a, **k: None,
    lambda *a: 1 / 0,
    asyncio.sleep,
    Any,
    list[int],
    dict[str, Any],
    int | None,
    Cron("* * * * *"),
    Every("1h"),
    At(datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)),
    Retry(),
    Retry.never(),
    Retry(delay=lambda n, e: 1),
    Limit("l", concurrency=1),
    Limit(rate="1/s"),
    Limit("k", key=lambda **k: "x", concurrency=1),
    Fair(lambda **k: "x"),
    Singleton(),
    Singleton(policy="queue"),
    Singleton(by=lambda **k: 3),
    Singleton(by=lambda **k: None),  # type: ignore[arg-type] # hostile on purpose
    Debounce("1s"),
    Watermark(high=5, queue="q"),
    Channel("c", int),
    Question("q", int, str),
    [Limit("l", concurrency=1)],
    Call.named("fuzz.flow"),
    Call.named("fuzz.any", 1),
    Call.named("unknown", 1, 2),
    flow(Order("a", [])),
    anything(3),
    act(),
    [anything(1), act(2)],
    {"queue": "x"},
    {"a": "b" * 100_000},
    ["a"] * 10_000,
    list(range(5000)),
    "a" * 70_000,
]


class Draw:
    """Draws values, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def any(self, depth: int = 0) -> Any:
        """Any value at all."""
        pool: Callable[[], Any] = self.random.choice(
            [self.text, self.text, self.number, self.time, self.other, self.other, self.mixture]
        )
        return self.mixture(depth + 1) if pool == self.mixture else pool()

    def text(self) -> str:
        """Text, sometimes two pieces joined, cut or swapped."""
        one = self.random.choice(TEXTS)
        match self.random.randrange(6):
            case 0:
                return one + self.random.choice(TEXTS)
            case 1:
                return one[: self.random.randrange(len(one) + 1)]
            case 2:
                at = self.random.randrange(len(one) + 1)
                return one[:at] + chr(self.random.randrange(0x11000)) + one[at:]
            case _:
                return one

    def url(self) -> Any:
        """A database URL, or nearly one."""
        one = self.random.choice(URLS)
        match self.random.randrange(5):
            case 0:
                return self.any()
            case 1:
                return one + self.random.choice(TEXTS)
            case 2:
                at = self.random.randrange(len(one) + 1)
                return one[:at] + self.random.choice("\0 /?#@:&=%[],\ud800é") + one[at:]
            case _:
                return one

    def number(self) -> Any:
        """A number."""
        return self.random.choice(NUMBERS)

    def time(self) -> Any:
        """A duration or point in time."""
        return self.random.choice(TIMES)

    def other(self) -> Any:
        """Something else."""
        return self.random.choice(OTHERS)

    def mixture(self, depth: int = 0) -> Any:
        """A list or dict of other values."""
        if depth > 3:
            return self.number()
        if self.random.random() < 0.5:
            return [self.any(depth) for _ in range(self.random.randrange(4))]
        return {self.text(): self.any(depth) for _ in range(self.random.randrange(3))}
