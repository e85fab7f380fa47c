"""Calls of the public API with drawn arguments: every public method, found by its signature."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import re
import resource
import sys
import threading
import time
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import perdure
from perdure import (
    At,
    Breaker,
    Channel,
    Context,
    Cron,
    Debounce,
    Engine,
    Every,
    Fair,
    Limit,
    PerdureError,
    Question,
    Retention,
    Retry,
    Singleton,
    Watermark,
    activity,
    classify,
    discover,
    fire_time_of,
    step,
    workflow,
)
from perdure.admin import BulkAction, EngineWorker, LockContext, Role
from perdure.client.remote.engine import RemoteEngine
from perdure.errors import StoreError
from perdure.push import PushApp, QueueHandler, QueueMessage, RedisQueue, SigningKeys
from perdure.push.signature import ID, SIGNATURE, TIMESTAMP
from perdure.workflow.runtime import ContinueAsNewSignal
from tests.fuzz.hostile import Draw, Order, act, anything, failing, flow
from tests.replay.driver import Driver

#: Longest CPU time of one call, in seconds.
BOUND = 0.05
#: Longest wait for a call that may wait, such as for a lock.
PATIENCE = 0.5

#: Calls after which a new engine, with new runs, takes the place of the old one.
FRESH = 1000

#: Plausible values, by the name of a parameter. Half of all values are drawn from everything instead.
_PLAUSIBLE: dict[str, list[Any]] = {
    "id": ["r1", "r2", "nightly", "new", None],
    "run_id": ["r1", "r2", "r3"],
    "run_ids": ["r1", ["r1", "r2"], None],
    "ids": [None, ["a"], ["a", "a"], ["a", "b"]],
    "name": ["go", "lock", "limit", Channel("go", int)],
    "call": [anything(1), act(), flow(Order("a", [1]))],
    "calls": [[anything(1)], [act(), act()], []],
    "timing": [Cron("@daily"), Every("1h")],
    "connection": [None],
    "timeout": [0.001, "1ms"],
    "wait": [0, 0.001, "1ms"],
    "ttl": ["5m", 1],
    "older_than": ["1d", 0],
    "limit": [1, 10],
    "count": [1, 3],
    "workflow": [None, anything],
    "correlation": ["a"],
    "follow": [False],
    "store": [None],
    "system": [None],
    "client": [None],
    "handler": [None],
    "engine": [None],
    "keys": ["whsec_" + "a" * 32, None],
    "token": ["secret", None],
    "body": [b"{}", "{}"],
    "delay": [0.0, 1.5],
    "url": ["redis://localhost"],
    "where": [{"status": "failed"}, {"type": "fuzz.%", "queue": "default"}, {"attributes": {"a": (">=", 1)}}, {}],
    "attributes": [{"a": 1}, {"a": "x", "b": True}, {"a": (">=", 1)}],
    "action": [*BulkAction],
    "role": [*Role],
    "by": ["status", "type", "attribute:a"],
    "worker_id": ["w1"],
    "from_step": ["len", 0],
    "order": ["newest", "oldest"],
    # No name of a file that a call could write.
    "file": ["/nonexistent/h.jsonl", "/dev/full", "\0", "", b"h.jsonl", 7, None],
}

#: Methods of an engine and of the trail that open or end it, or never end. Those of breakers open and close breakers.
_SKIPPED = {"Engine.open", "Engine.close", "Engine.blocking", "AuditTrail.follow"}


class Found:
    """Calls whose error is not documented, and calls that took too long."""

    def __init__(self) -> None:
        self.calls = 0
        self.problems: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        #: Memory of the process after the last collection of garbage.
        self.resident = resident()

    def note(self, name: str, kind: str, told: str) -> None:
        """Note a problem, once for each kind of each call."""
        self.problems.setdefault(f"{name}: {kind}", told[:600])

    def judge(self, name: str, error: BaseException | None, given: object) -> None:
        """Note an error that is not documented."""
        self.outcomes["value" if error is None else type(error).__name__] += 1
        # The database is in order, so an error of it means that a wrong value got there.
        if error is None or (isinstance(error, PerdureError | TimeoutError) and not isinstance(error, StoreError)):
            return
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = (
            "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('perdure/')[2]}:{trace.tb_lineno}"
        )
        self.note(name, f"{type(error).__name__} at {where}", f"{_text(error)} given {_text(given)}")


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def arguments_for(function: Callable[..., Any], draw: Draw) -> dict[str, Any]:
    """Draw arguments for a function: required parameters always, others now and then."""
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "misplaced") or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            for option in _options(function, name):
                if draw.random.random() < 0.3:
                    given[option] = _value(option, draw)
        elif parameter.default is parameter.empty or draw.random.random() < 0.4:
            given[name] = _value(name, draw)
    return given


def _options(function: Callable[..., Any], name: str) -> list[str]:
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    (declared,) = typing.get_args(hints[name]) or (None,)
    return [] if declared is None else list(declared.__annotations__)


def plausible(name: str) -> list[Any]:
    """Plausible values of a parameter; none if it is not known."""
    return _PLAUSIBLE.get(name, [])


def _value(name: str, draw: Draw) -> Any:
    known = _PLAUSIBLE.get(name)
    if known is not None and (draw.random.random() < 0.5 or name in ("store", "system", "file")):
        return draw.random.choice(known)
    if name == "follow":
        return False
    if name == "watermark" and draw.random.random() < 0.5:
        with contextlib.suppress(PerdureError):
            return Watermark(queue="q", high=draw.number())
    if name == "call" and draw.random.random() < 0.5:
        return _drawn_call(draw)
    if name in ("timeout", "wait") and draw.random.random() < 0.5:
        return 0.001
    return draw.any()


def _drawn_call(draw: Draw) -> Any:
    """A call with drawn options, those of them that it takes."""
    call: Any = draw.random.choice([anything(draw.any()), act()])
    for name, value in arguments_for(type(call).options, draw).items():
        with contextlib.suppress(PerdureError):
            call = call.options(**{name: value})
    return call


def _named(function: Callable[..., Any], *positional: str) -> Callable[[Draw], Callable[[], Any]]:
    def prepare(draw: Draw) -> Callable[[], Any]:
        given = arguments_for(function, draw)
        first = [given.pop(name) for name in positional if name in given]
        return lambda: function(*first, **given)

    return prepare


def _upcoming(draw: Draw) -> Callable[[], Any]:
    timing: Any = draw.random.choice([Cron, Every, At])
    first, count, after = draw.any(), draw.any(), draw.any()
    return lambda: timing(first).upcoming(count, after=after)


def _options_of_call(draw: Draw) -> Callable[[], Any]:
    call = draw.random.choice([anything(1), act(), flow(Order("a", [])), perdure.Call.named("x")])
    given = arguments_for(type(call).options, draw)
    return lambda: call.options(**given)


def _decorated(decorator: Any, *functions: Any) -> Callable[[Draw], Callable[[], Any]]:
    def prepare(draw: Draw) -> Callable[[], Any]:
        given = arguments_for(decorator, draw)
        given.pop("function", None)
        positional = [draw.any()] if draw.random.random() < 0.6 else []
        given.pop("type", None)
        function = draw.random.choice([*functions, draw.any()])

        def call() -> Any:
            made = decorator(*positional, **given)
            bare = bool(positional) and callable(positional[0])
            return made if bare else made(function)

        return call

    return prepare


async def _async_function(ctx: Any, value: int = 3) -> int:
    return value


def _sync_function(value: int = 3) -> int:
    return value


def _engine(draw: Draw) -> Callable[[], Any]:
    given = arguments_for(Engine.__init__, draw)
    given["url"] = draw.url() if draw.random.random() < 0.7 else "sqlite://"
    return lambda: Engine(**given)


def _worker(draw: Draw) -> Callable[[], Any]:
    given = arguments_for(Engine.worker, draw)
    engine = Engine("sqlite://", [anything])
    return lambda: engine.worker(**given)


def _call(draw: Draw) -> Callable[[], Any]:
    definition: Any = draw.random.choice([anything, act, flow])
    args = [draw.any() for _ in range(draw.random.randrange(3))]
    return lambda: definition(*args)


def _named_call(draw: Draw) -> Callable[[], Any]:
    type_, args = draw.any(), [draw.any() for _ in range(draw.random.randrange(3))]
    options = {"a": draw.any()} if draw.random.random() < 0.2 else {}
    return lambda: perdure.Call.named(type_, *args, **options)


def _discover(draw: Draw) -> Callable[[], Any]:
    package = draw.any()
    return lambda: discover(package)


#: Keys that sign, and a handler of messages.
_KEYS = SigningKeys("whsec_" + "a" * 32)
_HANDLER = QueueHandler(Engine("sqlite://", [anything]))


def _signing_keys(draw: Draw) -> Callable[[], Any]:
    keys, given = [draw.any() for _ in range(draw.random.randrange(3))], arguments_for(SigningKeys.__init__, draw)
    return lambda: SigningKeys(*keys, **given)


def _verify(draw: Draw) -> Callable[[], Any]:
    body, headers = draw.any(), draw.any()
    if draw.random.random() < 0.7:
        made = {**_KEYS.sign(b"x"), draw.random.choice([ID, TIMESTAMP, SIGNATURE]): draw.any()}
        headers = made if draw.random.random() < 0.5 else list(made.items())
    options = {"max_age": draw.any()} if draw.random.random() < 0.3 else {}
    return lambda: _KEYS.verify(body, headers, **options)


def _push_app(draw: Draw) -> Callable[[], Any]:
    given = {**arguments_for(PushApp.__init__, draw), "handler": _HANDLER}
    return lambda: PushApp(**given)


def _queue_handler(draw: Draw) -> Callable[[], Any]:
    given = {**arguments_for(QueueHandler.__init__, draw), "engine": _HANDLER.engine}
    return lambda: QueueHandler(**given)


#: Calls that need no database, by name.
PURE: dict[str, Callable[[Draw], Callable[[], Any]]] = {
    "Engine": _engine,
    "Engine.worker": _worker,
    "Retry": _named(Retry),
    "Retry.fixed": _named(Retry.fixed),
    "Cron": _named(Cron),
    "Every": _named(Every),
    "At": _named(At),
    "upcoming": _upcoming,
    "Limit": _named(Limit),
    "Fair": _named(Fair),
    "Breaker": _named(Breaker),
    "Singleton": _named(Singleton),
    "Debounce": _named(Debounce),
    "Watermark": _named(Watermark),
    "Retention": _named(Retention),
    "Channel": _named(Channel),
    "Question": _named(Question),
    "fire_time_of": _named(fire_time_of, *list(inspect.signature(fire_time_of).parameters)),
    "classify": lambda draw: functools.partial(classify, draw.any()),
    "workflow": _decorated(workflow, _async_function, _sync_function),
    "activity": _decorated(activity, _async_function, _sync_function),
    "step": _decorated(step, _async_function, _sync_function),
    "call": _call,
    "Call.named": _named_call,
    "Call.options": _options_of_call,
    "discover": _discover,
    "SigningKeys": _signing_keys,
    "SigningKeys.sign": _named(_KEYS.sign),
    "SigningKeys.verify": _verify,
    "QueueMessage.decode": _named(QueueMessage.decode),
    "QueueHandler": _queue_handler,
    "PushApp": _push_app,
    "RedisQueue": _named(RedisQueue),
    "RedisQueue.at": _named(RedisQueue.at),
}


def fuzz_pure(seed: int, count: int) -> Found:
    """Make `count` calls that need no database."""
    found, draw = Found(), Draw(seed)
    names = list(PURE)
    with quiet():
        for number in range(count):
            name = names[number % len(names)]
            timed(found, name, PURE[name](draw))
            if number % 2000 == 0:
                gc.collect()
    return found


def timed(found: Found, name: str, call: Callable[[], Any]) -> None:
    found.calls += 1
    spent: list[float] = []
    error: BaseException | None = None
    for _ in range(3):
        began, error = time.process_time(), None
        try:
            call()
        except BaseException as raised:
            error = raised
        spent.append(time.process_time() - began)
        if spent[-1] <= BOUND:
            break
    else:
        found.note(name, "too slow", f"{min(spent):.3f} s; {_text(_given(call))}")
    found.judge(name, error, _given(call))


def _given(call: Callable[[], Any]) -> object:
    return call.args if isinstance(call, functools.partial) else inspect.getclosurevars(call).nonlocals


#: Memory that the calls of a test may take, in bytes; the growth after which garbage is collected, and the one that is
#: reported.
MEMORY = 3 << 30
GARBAGE = 256 << 20
REPORTED = 2 << 30


class MemoryWatch(threading.Thread):
    """Tells what every thread does, and which objects there are most, once the process has grown by `REPORTED`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._start = resident()
        self._over = threading.Event()
        self.report = ""

    def run(self) -> None:
        while not self.report and not self._over.wait(0.1):
            if resident() > self._start + REPORTED:
                stacks = [
                    "".join(traceback.format_stack(frame)[-30:])
                    for thread, frame in sys._current_frames().items()
                    if thread != self.ident
                ]
                kinds = Counter(type(one).__name__ for one in gc.get_objects()).most_common(12)
                self.report = "\n\n".join([f"The process grew by {REPORTED >> 20} MiB: {kinds}", *stacks])

    def stop(self) -> None:
        self._over.set()
        self.join()


def resident() -> int:
    """Memory of this process, in bytes."""
    if sys.platform != "linux":
        return 0
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


class quiet:
    """No garbage collection during a call, whose fault it is not, and no warnings.

    A call that takes memory without end gets a `MemoryError`, which names its place. Without this bound, the kernel
    would kill the process or another one. A task in the background may get it in place of the call: the watch tells
    what it does.
    """

    def __enter__(self) -> None:
        self._watch = MemoryWatch()
        self._watch.start()
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        if sys.platform == "linux":
            used = int(re.findall(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[0]) << 10
            resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, self._before[1]))
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")
        gc.disable()

    @property
    def report(self) -> str:
        """Tells of memory that grew; empty while it did not."""
        return self._watch.report

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gc.enable()
        self._caught.__exit__(None, None, None)
        resource.setrlimit(resource.RLIMIT_DATA, self._before)
        self._watch.stop()
        if self.report:
            raise AssertionError(self.report) from error


def methods(target: object) -> list[tuple[str, Callable[..., Any]]]:
    """Public methods of an object, also those of its base classes."""
    kind = type(target).__name__
    skipped = {name.rpartition(".")[2] for name in _SKIPPED if name.partition(".")[0] == kind.removeprefix("Remote")}
    return [
        (f"{kind}.{name}", getattr(target, name))
        for name, method in inspect.getmembers(type(target), inspect.isfunction)
        if not name.startswith("_") and name not in skipped
    ]


async def prepare(engine: Engine) -> None:
    """Runs that have ended: one that completed, with a history, and a dead letter."""
    async with engine.worker():
        with contextlib.suppress(PerdureError):
            await (await engine.start(flow(Order("a", [])), id="r2")).result(20)
        with contextlib.suppress(PerdureError):
            await (await engine.start(failing(), id="r3")).result(20)


def namespaces(engine: object) -> list[object]:
    """Namespaces of an engine: all of its properties, and theirs."""
    found = _properties(engine)
    return found + [one for part in found for one in _properties(part) if type(one).__module__.startswith(_CLIENT)]


#: Package of the namespaces; other properties are values.
_CLIENT = "perdure.client."


def _properties(target: object) -> list[object]:
    found: list[object] = []
    for name, _ in inspect.getmembers(type(target), lambda one: isinstance(one, property)):
        # Some are not possible over HTTP.
        with contextlib.suppress(PerdureError):
            found.append(getattr(target, name))
    return found


async def targets(engine: Engine) -> list[tuple[str, Callable[..., Any]]]:
    """Methods of the engine, its namespaces, a lock and handles of runs in several states."""
    await engine.start(anything(1), id="r1", at="1d")
    runs = [await engine.start(anything(1), id="fresh"), *[await engine.get(run_id) for run_id in ("r2", "r3")]]
    await engine.schedules.create("nightly", anything(2), Cron("@daily"))
    parts: list[object] = [engine, *namespaces(engine), *runs]
    if not isinstance(engine, RemoteEngine):
        parts.append(await engine.locks.acquire("lock"))
    known = [pair for part in parts for pair in methods(part)]
    return known + [pair for pair in known if pair[0] in ("Engine.start", "Engine.send")] * 5


async def fuzz_engine(open_engine: Callable[..., Engine], seed: int, count: int) -> Found:
    """Make `count` calls of engines, their namespaces and handles."""
    found, draw = Found(), Draw(seed)
    with quiet():
        while found.calls < count:
            async with open_engine(flow, anything, act, failing) as engine:
                await prepare(engine)
                known = await targets(engine)
                for _ in range(min(FRESH, count - found.calls)):
                    name, method = draw.random.choice(known)
                    await timed_async(found, name, method, arguments_for(method, draw))
            gc.collect()
    return found


async def timed_async(found: Found, name: str, method: Callable[..., Any], given: dict[str, Any]) -> None:
    found.calls += 1
    if found.calls % 10 == 0 and resident() > found.resident + GARBAGE:
        gc.collect()
        found.resident = resident()
    spent: list[float] = []
    error: BaseException | None = None
    for _ in range(3):
        began, error = time.process_time(), None
        try:
            async with asyncio.timeout(PATIENCE):
                await _finish(method(**given))
        except BaseException as raised:
            error = raised
        spent.append(time.process_time() - began)
        if spent[-1] <= BOUND:
            break
    else:
        found.note(name, "too slow", f"{min(spent):.3f} s; {_text(given)}")
    found.judge(name, error, given)


def fuzz_context(seed: int, count: int) -> Found:
    """Make `count` calls of the context of a workflow."""
    found, draw = Found(), Draw(seed)

    async def calls(ctx: Context) -> None:
        known = methods(ctx)
        for _ in range(min(100, count - found.calls)):
            name, method = draw.random.choice(known)
            given = arguments_for(method, draw)
            positional = [given.pop(name) for name in ("function", "first", "second") if name in given]
            timed(found, name, functools.partial(_call_and_drop, method, positional, given))

    with quiet():
        while found.calls < count:
            Driver(calls)
            gc.collect()
    return found


def _call_and_drop(method: Callable[..., Any], positional: list[Any], given: dict[str, Any]) -> None:
    try:
        answer = method(*positional, **given)
    except ContinueAsNewSignal:
        return
    if inspect.iscoroutine(answer):
        answer.close()
    elif isinstance(answer, asyncio.Task):
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _finish(answer: Any) -> None:
    if inspect.iscoroutine(answer):
        await answer
    elif isinstance(answer, AsyncGenerator):
        async for _ in answer:
            pass
    elif isinstance(answer, LockContext | EngineWorker):
        async with answer:
            pass
