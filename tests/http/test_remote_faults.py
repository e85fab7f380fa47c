"""An engine on a server over a network that fails: nothing is done twice, and waits outlive the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Engine, Every
from perdure.admin import Role
from perdure.blocking import Engine as BlockingEngine
from perdure.core.model.run import Status
from perdure.errors import EngineClosed, StoreUnavailable
from tests.helpers import eventually
from tests.http.serving import WORKFLOWS, Order, Served, approval, checkout, counting, mail, sleeper
from tests.servers.private import free_port
from tests.stage import Stage, until


class CuttingProxy:
    """Forwards connections, and cuts those whose request is armed once its answer has begun to arrive."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.url = ""
        #: Beginning of the request whose next answers are lost, and how many of them.
        self.armed = b""
        self.cuts = 0
        self.lost: list[bytes] = []

    def cut(self, request: str, times: int = 1) -> None:
        self.armed, self.cuts = request.encode(), times

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._address)
        last = [b""]

        async def forth() -> None:
            while data := await reader.read(65536):
                last[0] = data.split(b"\r\n", 1)[0] if data.split(b" ", 1)[0].isalpha() else last[0]
                back.write(data)
                await back.drain()
            back.close()

        sending = asyncio.ensure_future(forth())
        try:
            while data := await there.read(65536):
                if self.cuts and last[0].startswith(self.armed):
                    self.cuts -= 1
                    self.lost.append(last[0])
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            back.close()
            writer.close()


@asynccontextmanager
async def cutting(site: Served) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(site.address)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    proxy.url = f"http://{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()


@pytest.fixture
async def proxy(site: Served) -> AsyncIterator[CuttingProxy]:
    async with cutting(site) as proxy:
        yield proxy


@pytest.fixture
async def engine(site: Served, proxy: CuttingProxy) -> AsyncIterator[Engine]:
    """An engine on a server behind a proxy, over each database."""
    async with Engine(proxy.url, WORKFLOWS, token=site.tokens[Role.ADMIN]) as engine:
        yield engine


async def test_a_lost_answer_never_doubles_a_start(engine: Engine, site: Served, proxy: CuttingProxy) -> None:
    proxy.cut("POST /api/v1/runs ", times=3)
    run = await engine.start(checkout(Order("one", 5)))
    assert len(proxy.lost) == 3
    assert await run.result(timeout=60) == "paid 5"
    assert [one.id for one in (await site.engine.runs.list()).runs] == [run.id]
    proxy.cut("POST /api/v1/runs/batch", times=2)
    many = await engine.start_many([sleeper(), sleeper()])
    assert (await site.engine.runs.count(type="http.sleeper.v1")).count == len(many) == 2


async def test_a_lost_answer_never_doubles_a_message(engine: Engine, site: Served, proxy: CuttingProxy) -> None:
    run = await engine.start(counting(0, hold=True), id="inbox")
    await until(run, Status.WAITING)
    proxy.cut("POST /api/v1/runs/inbox/messages", times=2)
    await run.send("other", 1)
    assert len(proxy.lost) == 2
    assert len([one for one in await (await site.engine.get("inbox")).events() if one.kind == "message"]) <= 1
    received = [one for one in await run.history() if one.location == "other"]
    assert len([*received, *await run.inbox()]) == 1


async def fork(engine: Engine) -> Any:
    return await (await engine.get("d")).fork()


ORDERS: dict[str, tuple[str, Callable[[Engine], Any]]] = {
    "cancel": ("POST /api/v1/runs/s/cancel", lambda engine: engine.cancel("s", "no")),
    "terminate": ("POST /api/v1/runs/s/terminate", lambda engine: engine.runs.terminate("s", "no")),
    "pause": ("POST /api/v1/runs/s/pause", lambda engine: engine.runs.pause("s")),
    "wake": ("POST /api/v1/runs/s/wake", lambda engine: engine.runs.wake("s")),
    "retry": ("POST /api/v1/runs/d/retry", lambda engine: engine.runs.retry("d")),
    "fork": ("POST /api/v1/runs/d/fork", fork),
    "trigger": ("POST /api/v1/schedules/x/trigger", lambda engine: engine.schedules.trigger("x")),
    "bulk": ("POST /api/v1/bulk", lambda engine: engine.runs.start_bulk("pause", ["s"])),
    "broadcast": ("POST /api/v1/broadcasts", lambda engine: engine.runs.broadcast("news", 1, correlation="c")),
    "schedule": ("PUT /api/v1/schedules/y", lambda engine: engine.schedules.create("y", sleeper(), Every("1h"))),
}


@pytest.mark.parametrize("name", ORDERS)
async def test_a_lost_answer_never_doubles_an_order(local: Served, name: str) -> None:
    request, order = ORDERS[name]
    async with cutting(local) as proxy, Engine(proxy.url, WORKFLOWS, token=local.tokens[Role.ADMIN]) as engine:
        run = await engine.start(sleeper(), id="s")
        await until(run, Status.WAITING)
        dead = await engine.start(mail("unknown"), id="d")
        await until(dead, Status.FAILED)
        await engine.schedules.create("x", sleeper(), Every("1h"))
        proxy.cut(request, times=2)
        answer = await order(engine)
        assert len(proxy.lost) == 2
        runs = {one.id for one in (await local.engine.runs.list(limit=1000)).runs}
        made = len(runs - {"s", "d"})
        assert made == (1 if name in ("fork", "trigger", "bulk") else 0)
        if name == "retry":
            assert answer == 2
        if name in ("cancel", "terminate", "pause"):
            assert answer is True
        count = len([one for one in (await local.engine.audit.list(limit=1000)).events if one.kind == "retried"])
        assert count <= 1


async def nothing(_: Engine) -> None:
    """Prepare nothing."""


async def hold_a_lock(engine: Engine) -> None:
    await engine.locks.acquire("l", ttl="1h")


async def drain(engine: Engine) -> bool:
    [worker] = await engine.workers.list()
    return await engine.workers.drain(worker.id)


async def named(made: Any) -> str:
    found = await made
    return str(getattr(found, "info", found).name)


#: By name: what happens before, the request whose answers are lost, the call, and its answer.
ANSWERS: dict[str, tuple[Callable[[Engine], Any], str, Callable[[Engine], Any], Any]] = {
    "cancel": (nothing, "POST /api/v1/runs/s/cancel", lambda engine: engine.cancel("s"), True),
    "cancel before the start": (nothing, "POST /api/v1/runs/p/cancel", lambda engine: engine.cancel("p"), True),
    "terminate": (nothing, "POST /api/v1/runs/p/terminate", lambda engine: engine.runs.terminate("p"), True),
    "pause a run": (nothing, "POST /api/v1/runs/s/pause", lambda engine: engine.runs.pause("s"), True),
    "resume a run": (
        lambda engine: engine.runs.pause("s"),
        "POST /api/v1/runs/s/resume",
        lambda engine: engine.runs.resume("s"),
        True,
    ),
    "set a priority": (nothing, "PUT /api/v1/runs/s/priority", lambda engine: engine.runs.set_priority("s", 1), True),
    "delete a run": (nothing, "DELETE /api/v1/runs/d", lambda engine: engine.runs.delete("d"), True),
    "purge a run": (nothing, "POST /api/v1/runs/d/purge", lambda engine: engine.runs.delete("d", purge=True), True),
    "undelete a run": (
        lambda engine: engine.runs.delete("d"),
        "POST /api/v1/runs/d/undelete",
        lambda engine: engine.runs.undelete("d"),
        True,
    ),
    "retry": (nothing, "POST /api/v1/runs/d/retry", lambda engine: engine.dead_letters.retry("d"), ("d",)),
    "discard": (nothing, "POST /api/v1/dead-letters", lambda engine: engine.dead_letters.discard("d"), ("d",)),
    "discard all": (nothing, "POST /api/v1/dead-letters", lambda engine: engine.dead_letters.discard(where={}), ("d",)),
    "pause a schedule": (nothing, "POST /api/v1/schedules/x/pause", lambda engine: engine.schedules.pause("x"), True),
    "resume a schedule": (
        lambda engine: engine.schedules.pause("x"),
        "POST /api/v1/schedules/x/resume",
        lambda engine: engine.schedules.resume("x"),
        True,
    ),
    "delete a schedule": (nothing, "DELETE /api/v1/schedules/x", lambda engine: engine.schedules.delete("x"), None),
    "pause a queue": (nothing, "POST /api/v1/queues/q/pause", lambda engine: engine.queues.pause(queue="q"), True),
    "resume a queue": (
        lambda engine: engine.queues.pause(queue="q"),
        "POST /api/v1/queues/q/resume",
        lambda engine: engine.queues.resume(queue="q"),
        True,
    ),
    "create a token": (
        nothing,
        "POST /api/v1/tokens",
        lambda engine: named(engine.tokens.create("ci")),
        "ci",
    ),
    "revoke a token": (
        lambda engine: engine.tokens.create("ci"),
        "DELETE /api/v1/tokens/ci",
        lambda engine: named(engine.tokens.revoke("ci")),
        "ci",
    ),
    "release a lock": (hold_a_lock, "DELETE /api/v1/locks/l", lambda engine: engine.locks.force_release("l"), True),
    "drain a worker": (nothing, "POST /api/v1/workers/", drain, True),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_lost_answer_is_given_again(local: Served, name: str) -> None:
    prepare, request, order, expected = ANSWERS[name]
    await until(await local.engine.start(sleeper(), id="s"), Status.WAITING)
    await until(await local.engine.start(mail("unknown"), id="d"), Status.FAILED)
    await local.engine.start(sleeper(), id="p", queue="unserved")
    await local.engine.schedules.create("x", sleeper(), Every("1h"))
    await prepare(local.engine)
    async with cutting(local) as proxy, Engine(proxy.url, WORKFLOWS, token=local.tokens[Role.ADMIN]) as engine:
        proxy.cut(request, times=2)
        answer = await order(engine)
        assert len(proxy.lost) == 2
        assert getattr(answer, "done", answer) == expected
        if name.startswith(("pause", "resume", "delete a run", "undelete", "release")):
            # Another order, which finds nothing to do.
            assert await order(engine) is False


#: By name: orders before, and the order whose repetition finds nothing to do.
REPEATED: dict[str, tuple[tuple[str, ...], str]] = {
    "pause a queue": ((), "POST /queues/q/pause"),
    "resume a queue": (("POST /queues/q/pause",), "POST /queues/q/resume"),
    "pause a type": ((), "POST /types/http.mail.v1/pause"),
    "resume a type": (("POST /types/http.mail.v1/pause",), "POST /types/http.mail.v1/resume"),
    "pause a schedule": ((), "POST /schedules/x/pause"),
    "delete a run": ((), "DELETE /runs/d"),
    "undelete a run": (("DELETE /runs/d",), "POST /runs/d/undelete"),
    "purge a run": ((), "POST /runs/d/purge"),
    "delete a schedule": ((), "DELETE /schedules/x"),
    "revoke": ((), "DELETE /tokens/viewer"),
}


@pytest.mark.parametrize("name", REPEATED)
async def test_the_repetition_of_a_request_gets_the_answer_of_the_first(local: Served, name: str) -> None:
    await until(await local.engine.start(mail("unknown"), id="d"), Status.FAILED)
    await local.engine.schedules.create("x", sleeper(), Every("1h"))
    before, order = REPEATED[name]

    async def give(text: str, request_id: str) -> tuple[int, Any]:
        method, path = text.split(" ")
        body: Any = {} if method == "POST" and not path.endswith(("resume", "undelete")) else None
        answer = await local.admin.call(method, path, body, headers={"Request-Id": request_id})
        return answer.status_code, answer.json()

    for one in before:
        assert await give(one, f"before {one}") == (200, {"done": True})
    first = await give(order, "once")
    assert first[0] == 200
    assert await give(order, "once") == first
    if name != "revoke":
        assert first[1] == {"done": True}
        # Another request is told the truth.
        assert await give(order, "twice") != first


#: Requests that create runs whose ids they do not name, with the answer's member that names them.
CREATING: dict[str, tuple[str, dict[str, Any], str]] = {
    "start": ("/runs", {"type": "http.sleeper.v1"}, "id"),
    "start later": ("/runs", {"type": "http.sleeper.v1", "at": "1h"}, "id"),
    "start a singleton": ("/runs", {"type": "http.sleeper.v1", "singleton": {"key": "k", "policy": "queue"}}, "id"),
    "start with a debounce": ("/runs", {"type": "http.sleeper.v1", "debounce": {"delay": "1h", "key": "k"}}, "id"),
    "start many": ("/runs/batch", {"type": "http.sleeper.v1", "inputs": [{}, {}, {}]}, "ids"),
    "fork": ("/runs/d/fork", {}, "id"),
    "act on many": ("/bulk", {"action": "cancel", "ids": ["d"]}, "id"),
    "trigger": ("/schedules/x/trigger", {}, "id"),
    "publish": ("/outbox", {"type": "order.paid", "data": 1}, "id"),
}


@pytest.mark.parametrize("name", CREATING)
async def test_the_repetition_of_a_request_creates_no_second_run(site: Served, name: str) -> None:
    await until(await site.engine.start(mail("unknown"), id="d"), Status.FAILED)
    await site.engine.schedules.create("x", sleeper(), Every("1h"))
    path, body, member = CREATING[name]

    async def created(request_id: str) -> Any:
        answer = await site.operator.call("POST", path, body, headers={"Request-Id": request_id})
        assert answer.is_success, answer.text
        return answer.json()[member]

    first = await created("once")
    count = (await site.engine.runs.count()).count
    assert await created("once") == first
    assert (await site.engine.runs.count()).count == count
    if name != "start with a debounce":
        assert await created("twice") != first
        assert (await site.engine.runs.count()).count > count


async def test_an_order_to_drain_is_known_again_after_the_worker_has_stopped(local: Served) -> None:
    [worker] = await local.engine.workers.list()
    path, headers = f"/workers/{worker.id}/drain", {"Request-Id": "once"}
    assert (await local.operator.post(path, headers=headers)).json() == {"done": True}

    async def stopped() -> bool:
        return [one.status.value for one in await local.engine.workers.list()] == ["stopped"]

    await eventually(stopped)
    assert (await local.operator.post(path, headers=headers)).json() == {"done": True}
    assert (await local.operator.post(path, headers={"Request-Id": "twice"})).json() == {"done": False}


async def test_a_server_that_is_away_is_waited_for_and_then_named(idle: Served) -> None:
    with closed_port() as port:
        engine = Engine(f"http://127.0.0.1:{port}", token="t", database_timeout=0.5)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot be reached|did not answer"):
            await engine.runs.list()
        assert time.monotonic() - began >= 0.4
        await engine.close()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def serve(url: str, port: int) -> subprocess.Popen[bytes]:
    """A server in a process of its own, at a given port."""
    command = [sys.executable, "-m", "perdure.cli", "serve", url, "--bind", f"127.0.0.1:{port}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def alive(port: int) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://127.0.0.1:{port}/livez")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_result_and_a_stream_outlive_a_server_that_is_killed_and_started_again(on_disk: Stage) -> None:
    database = on_disk.engine(*WORKFLOWS)
    token = (await database.tokens.create("remote", Role.OPERATOR)).token
    port = free_port()
    server = serve(on_disk.url, port)
    try:
        await eventually(lambda: alive(port))
        async with Engine(f"http://127.0.0.1:{port}", WORKFLOWS, token=token) as engine, database.worker():
            run = await engine.start(counting(2, hold=True), id="long")
            waiting = asyncio.ensure_future(run.result(timeout=120))
            seen: list[int] = []

            async def read() -> None:
                async for item in run.stream("numbers", int):
                    seen.append(item.value)

            reading = asyncio.ensure_future(read())
            await eventually(lambda: seen == [0, 1])
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = serve(on_disk.url, port)
            await eventually(lambda: alive(port))
            await (await database.get("long")).send("go", True)
            assert await waiting == 2
            await reading
            assert seen == [0, 1, 2]
    finally:
        server.kill()
        server.wait()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str, str]]:
    """A server in a process of its own: the URL of its database, its own URL, and a token."""
    database = f"sqlite:///{folder / 'runs.db'}"
    with BlockingEngine(database, WORKFLOWS) as engine:
        token = engine.tokens.create("remote", Role.OPERATOR).token
    port = free_port()
    server = serve(database, port)
    try:
        asyncio.run(eventually(lambda: alive(port)))
        yield database, f"http://127.0.0.1:{port}", token
    finally:
        server.kill()
        server.wait()


def test_a_blocking_engine_works_over_http(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (url, address, token),
        BlockingEngine(url, WORKFLOWS) as database,
        database.worker(),
        BlockingEngine(address, WORKFLOWS, token=token) as engine,
    ):
        run = engine.start(approval(), id="b")
        run.send("approval", "yes")
        assert run.result(timeout=60) == "yes"
        assert [one.id for one in engine.runs.list().runs] == ["b"]
        assert engine.get("b").info().status == "completed"


def test_the_command_line_works_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, address, token):
        environment = {**os.environ, "PERDURE_TOKEN": token, "PERDURE_URL": address}

        def perdure(*words: str, **other: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "perdure.cli", *words]
            surroundings = environment | other
            return subprocess.run(command, check=False, env=surroundings, capture_output=True, text=True, timeout=120)

        started = perdure("start", "http.sleeper.v1", "--id", "c")
        assert started.returncode == 0, started.stderr
        assert '"c"' in perdure("runs", "list", "--json").stdout
        assert perdure("cancel", "c").returncode == 0
        assert "cancelled" in perdure("show", "c").stdout
        waited = perdure("wait", "c")
        assert (waited.returncode, waited.stdout.split()[:2]) == (1, ["c", "cancelled"])
        assert perdure("start", "http.sleeper.v1", "--id", "d").returncode == 0
        assert perdure("wait", address, "d", "--timeout", "1s").returncode == 124
        wrong = perdure("runs", "list", PERDURE_TOKEN="perdure_secret")
        assert wrong.returncode == 1
        assert "perdure_secret" not in wrong.stderr
        (tmp_path / "token").write_text(token)
        assert perdure("show", "c", "--token-file", str(tmp_path / "token"), PERDURE_TOKEN="x").returncode == 0
        assert perdure("migrate").returncode == 1
        shown = json.loads(perdure("top", "--json").stdout)
        assert (shown["counts"]["pending"], shown["counts"]["cancelled"]) == (1, 1)
        assert shown["queues"] == [{"queue": "default", "type": None, "ready": 1, "oldest_seconds": None}]
        assert "no worker is alive" in perdure("top").stdout
        examined = perdure("doctor")
        assert examined.returncode == 1
        assert "warning  workers     no worker is alive" in examined.stdout
        assert "skipped  invariants  needs the URL of the database itself" in examined.stdout


async def test_a_closed_engine_makes_no_more_requests(idle: Served) -> None:
    engine = Engine(idle.url, WORKFLOWS, token=idle.tokens[Role.ADMIN])
    following = engine.audit.follow(after=0)
    await anext(following)
    await engine.close()
    with pytest.raises(EngineClosed):
        async for _ in following:
            pass
    with pytest.raises(EngineClosed):
        await engine.runs.list()
