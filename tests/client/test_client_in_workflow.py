"""Client calls inside workflow code: each is refused at once, and the engine goes on."""

from __future__ import annotations

import datetime
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from operator import attrgetter
from typing import Any

import pytest

import perdure.client
import perdure.push
from perdure import Context, Engine, Every, RunFailed, Watermark, workflow
from perdure.blocking import Pusher as BlockingPusher
from perdure.client.facade import Facade
from perdure.client.remote.handle import RemoteHandle
from perdure.client.session import session_of
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.attempt_reports import make_token
from perdure.errors import NotInWorkflow
from perdure.push import Pusher
from perdure.push.handler import QueueHandler
from tests.stage import Stage

#: Arguments of verbs, by the name of the parameter.
ARGUMENTS: dict[str, Any] = {
    "file": "/nonexistent/histories.jsonl",
    "run_id": "r1",
    "token": make_token("r1", 1, 0, "seed"),
    "run_ids": "r1",
    "id": "nightly",
    "name": "greeting",
    "key": "greeting",
    "question": "greeting",
    "correlation": "c1",
    "older_than": "1h",
    "runs": (),
    "batch": (),
    "number": 1,
    "timing": Every("1h"),
    "start": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "end": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "watermark": Watermark(queue="default", high=10),
    "failure": Failure.of(ValueError("no"), Codec()),
    "body": b"{}",
    "on_lost": print,
    "action": "cancel",
    "by": "status",
    "job_id": "r1",
    "event_id": "e1",
    "event_ids": "e1",
    "priority": 7,
    "worker_id": "w1",
    "type": "refuse.other.v1",
}

#: Parameters with a default that have to be given, by verb.
NEEDED: dict[str, dict[str, Any]] = {
    "Runs.fail": {"error": "no"},
    "Queues.pause": {"queue": "default"},
    "Queues.resume": {"queue": "default"},
    "RemoteQueues.pause": {"queue": "default"},
    "RemoteQueues.resume": {"queue": "default"},
    "DeadLetters.retry": {"run_ids": "r1"},
    "bulk": {"run_ids": "r1"},
    "start_bulk": {"run_ids": "r1"},
    "preview_bulk": {"run_ids": "r1"},
    "discard": {"run_ids": "r1"},
    "set": {"concurrency": 1},
    "remove": {"queue": "default"},
    "depth": {"queue": "default"},
    "fork": {"from_step": "a#1"},
}

#: Methods that do nothing but make something whose own verbs are looked at: they touch no database.
MAKERS = {"worker", "bulk_worker", "lock", "blocking"}
#: Namespaces of an engine.
NAMESPACES = (
    "runs", "schedules", "limits", "breakers", "locks", "dead_letters", "audit", "workers", "queues",
    "queues.watermarks", "tokens", "outbox", "events",
)  # fmt: skip
#: Plain values.
VALUES = {"message"}
#: Classes of `perdure.client` and `perdure.push` that users are not given, or that reach the database through a verb
#: that is tested.
INTERNAL = {
    "WaitExplainer",
    "Results",
    "ResultWatch",
    "OutputWatch",
    "Backpressure",
    "ConnectionReader",
    "DeadlockSearch",
    "WatermarkReader",
    "Session",
    "StartBatches",
    "RenewedLock",
    "Announcer",
    "Delivery",
    "RedisQueue",
    "PushApp",
    "Subscription",
    "Webhook",
    "RemoteResults",
    "RemoteSession",
    "RemoteStore",
    "Transport",
}


@workflow("refuse.other.v1")
async def other(ctx: Context) -> int:
    return 1


def verbs(target: object, *, blocks: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each public verb of an object, and a call of it with arguments that fit."""
    for name in sorted(dir(type(target))):
        if name in MAKERS | VALUES or (name.startswith("_") and name not in ("__aenter__", "__aexit__")):
            continue
        method = inspect.getattr_static(type(target), name)
        if not inspect.isfunction(method):
            continue
        if not blocks and not _waits(method):
            continue
        kind = "blocking " if blocks else ""
        yield (
            f"{kind}{type(target).__name__}.{name}",
            _call(getattr(target, name), method, type(target).__name__.removeprefix("Remote"), name),
        )


def _waits(method: Any) -> bool:
    return (
        inspect.iscoroutinefunction(method)
        or inspect.isasyncgenfunction(method)
        or "AsyncGenerator" in str(method.__annotations__.get("return"))
    )


def _call(bound: Any, method: Any, cls: str, name: str) -> Callable[[], Any]:
    given = dict(NEEDED.get(f"{cls}.{name}", NEEDED.get(name, {})))
    positional: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name == "misplaced" or (parameter.name in given and parameter.kind is not parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional = [None, None, None]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            value = {"call": other(), "calls": [other()]}.get(parameter.name, ARGUMENTS.get(parameter.name))
            if value is None and name == "__aexit__":
                positional.append(None)
                continue
            assert value is not None, f"{name} takes {parameter.name!r}, of which this test has no example: add one"
            given[parameter.name] = value
    accepted = inspect.signature(method).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    given = {key: value for key, value in given.items() if takes_all or key in accepted}
    return lambda: bound(*positional, **given)


async def refusal(call: Callable[[], Any]) -> str:
    """Return what a call raises, after awaiting, iterating or entering it if necessary."""
    try:
        answer = call()
        if isinstance(answer, AbstractAsyncContextManager):
            await answer.__aenter__()
        elif inspect.isawaitable(answer):
            await answer
        elif hasattr(answer, "__anext__"):
            await anext(answer)
        elif inspect.isgenerator(answer):
            next(answer)
        elif isinstance(answer, AbstractContextManager):
            answer.__enter__()
    except NotInWorkflow as error:
        return str(error)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


async def objects(engine: Engine) -> list[tuple[object, bool]]:
    """One of each class that a user of an engine is handed, and whether its methods block."""
    run = await engine.start(other(), id="r1")
    held = await engine.locks.acquire("held")
    blocking = engine.blocking()
    waiting: list[object] = [
        engine,
        run,
        *(attrgetter(name)(engine) for name in NAMESPACES),
        held,
        engine.locks.hold("free"),
        engine.worker(),
        Pusher(engine),
        QueueHandler(engine),
    ]
    remote = Engine("http://127.0.0.1:9", [other], token="none")
    waiting += [remote, RemoteHandle(session_of(remote), "r1", Any)]
    waiting += [attrgetter(name)(remote) for name in NAMESPACES]
    also: list[object] = [blocking, *(attrgetter(name)(blocking) for name in NAMESPACES)]
    also += [blocking.get("r1"), blocking.locks.acquire("held too"), BlockingPusher(blocking), blocking.worker()]
    return [(one, False) for one in waiting] + [(one, True) for one in also]


def classes_with_verbs() -> set[str]:
    """Every class of the client and of push that is not private and has a method that waits, or blocks."""
    found: set[str] = set()
    for package in (perdure.client, perdure.push):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, one in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(one) and one.__module__ == module.name and not name.startswith("_"):
                    methods = [method for method in vars(one).values() if inspect.isfunction(method)]
                    if not issubclass(one, Facade) and any(map(_waits, methods)):
                        found.add(name)
    return found


@pytest.mark.filterwarnings("ignore:a blocking engine is called in async code")
async def test_every_verb_of_the_client_refuses_workflow_code(on_disk: Stage) -> None:
    said: dict[str, str] = {}
    found: list[tuple[object, bool]] = []

    @workflow("refuse.careless.v1")
    async def careless(ctx: Context) -> int:
        for target, blocks in found:
            for name, call in verbs(target, blocks=blocks):
                said[name] = await refusal(call)
        # Entered with `with`, not called.
        blocking: Any = next(one for one, blocks in found if blocks)
        said["blocking Engine.worker"] = await refusal(blocking.worker)
        said["blocking Locks.hold"] = await refusal(lambda: blocking.locks.hold("free"))
        said["Locks.hold"] = await refusal(lambda: engine.locks.hold("free"))
        said["Engine.worker"] = await refusal(engine.worker)
        return len(said)

    engine = on_disk.engine(careless, other)
    found += await objects(engine)
    async with engine.worker():
        assert await (await engine.start(careless())).result("60s") > 100
        assert {name: why for name, why in said.items() if "in a step" not in why} == {}
        assert await (await engine.start(other())).result("60s") == 1
        assert (await engine.locks.get("held")) is not None
    tested = {base.__name__ for one, _ in found for base in type(one).__mro__}
    assert classes_with_verbs() - tested == INTERNAL


async def test_a_client_call_in_a_workflow_fails_that_run_and_nothing_else(stage: Stage) -> None:
    @workflow("refuse.listing.v1")
    async def listing(ctx: Context) -> int:
        return len((await engine.runs.list()).runs)

    engine = stage.engine(listing, other)
    async with engine.worker():
        with pytest.raises(RunFailed, match="in a step") as caught:
            await (await engine.start(listing())).result("60s")
        assert isinstance(caught.value.__cause__, NotInWorkflow)
        assert await (await engine.start(other())).result("60s") == 1
