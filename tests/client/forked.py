"""A process that uses an engine, forks, and goes on; so do its children. Called as `python -m tests.client.forked
SCENARIO URL`.

Prints `ok` if all went well. Each child ends the process by a traceback if it hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from perdure import Context, Engine, workflow
from perdure.errors import EngineClosed, LockLost

#: Longer than anything here takes, and shorter than the test waits.
HANGS = 60

warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads: that is what this is about


class Complaints(logging.Handler):
    """Shows what is logged as a warning or worse."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # Of SQLite before 3.51.3.
        if "more than one process" not in text:
            print(f"{record.name}: {text}", file=sys.stderr, flush=True)


@workflow("forked.double.v1")
async def double(ctx: Context, number: int) -> int:
    return 2 * number


@workflow("forked.write.v1")
async def write(ctx: Context) -> None:
    await ctx.transaction(linger)


began, go_on = threading.Event(), threading.Event()


def linger(connection: Any) -> None:
    began.set()
    go_on.wait(HANGS)


def in_child(act: Callable[[], object], *, finalized: bool = True) -> Callable[[], None]:
    """Fork; the child acts and ends, by way of all finalizers. Gives what waits for its end."""
    child = os.fork()
    if child:

        def wait() -> None:
            _, status = os.waitpid(child, 0)
            assert status == 0, f"the child ended with {status}"

        return wait
    signal.alarm(HANGS)
    try:
        act()
        gc.collect()
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.stdout.flush()
    if not finalized:
        os._exit(0)
    # As a server's worker process ends.
    sys.exit(0)


def connections_of(engine: Engine) -> list[Any]:
    store: Any = engine._session.store
    pools = getattr(store._store, "_pools", None)
    return [] if pools is None else [one for pool in pools._pools.values() for one in pool._opened]


def are_cut_off(connections: list[Any]) -> bool:
    """Whether this process has no way to the sockets of connections, and does not keep them open."""
    return all(stat.S_ISCHR(os.fstat(one.fileno()).st_mode) for one in connections)


def blocking(url: str) -> None:
    engine = Engine(url, [double])
    client = engine.blocking()
    with client.worker(warn_blocked=0):
        assert client.start(double(1)).result("30s") == 2
        before = connections_of(engine)
        for number in range(3):
            handle = client.start(double(number))

            def act(number: int = number, handle: Any = handle) -> None:
                assert are_cut_off(before)
                # The worker is the parent's.
                assert client.start(double(10 + number)).result("30s") == 20 + 2 * number
                assert handle.result("30s") == 2 * number
                client.close()

            wait = in_child(act)
            assert client.start(double(100 + number)).result("30s") == 200 + 2 * number
            wait()
        assert client.start(double(7)).result("30s") == 14
        assert not any(one.is_closed() for one in before), "the child closed connections of the parent"
    client.close()


def looped(url: str) -> None:
    engine = Engine(url, [double])

    async def use(number: int) -> None:
        assert await (await engine.start(double(number))).result("30s") == 2 * number

    async def parent() -> None:
        async with engine, engine.worker(warn_blocked=0):
            await use(1)
            before = connections_of(engine)

            def act() -> None:
                assert are_cut_off(before)
                asyncio.run(use(2))

            waits = [in_child(act, finalized=False) for _ in range(2)]
            await use(3)
            await asyncio.gather(*(asyncio.to_thread(wait) for wait in waits))
            await use(4)
            assert not any(one.is_closed() for one in before), "the child closed connections of the parent"

    asyncio.run(parent())


def between(url: str) -> None:
    """The engine was used by one event loop, which has ended, and is used by another in the child."""
    engine = Engine(url, [double])

    async def use() -> None:
        async with engine.worker(warn_blocked=0):
            assert await (await engine.start(double(4))).result("30s") == 8

    asyncio.run(use())
    wait = in_child(lambda: asyncio.run(use()))
    asyncio.run(use())
    wait()
    asyncio.run(use())


def outlived(url: str) -> None:
    """The parent is gone when the child begins."""
    client = Engine(url, [double]).blocking()
    client.start(double(1), id="of the parent")
    parent, (reading, writing) = os.getpid(), os.pipe()

    def act() -> None:
        while os.getppid() == parent:
            time.sleep(0.01)
        with client.worker(warn_blocked=0):
            assert client.get("of the parent").result("30s") == 2
        os.write(writing, b"ok")

    if os.fork():
        os.close(writing)
        second = os.fork()
        if not second:
            # Reads what the other child says, after both have lost their parent.
            while os.getppid() == parent:
                time.sleep(0.01)
            said = os.read(reading, 2).decode()
            print(said, flush=True)
            os._exit(0)
        os._exit(0)
    signal.alarm(HANGS)
    act()
    os._exit(0)


def held(url: str) -> None:
    """A lock is of the process that acquired it."""
    engine = Engine(url, [double])
    client = engine.blocking()
    with client.worker(warn_blocked=0):
        lock = client.locks.acquire("held")

        def act() -> None:
            assert lock.lost
            assert not lock.release()
            try:
                lock.extend()
            except LockLost:
                return
            raise AssertionError("the lock is the parent's")

        in_child(act)()
        assert not lock.lost
        lock.extend()
        assert client.start(double(7)).result("30s") == 14


def left(url: str) -> None:
    """A child that leaves the blocks it was forked in takes nothing from its parent."""
    engine = Engine(url, [double])
    client = engine.blocking()
    child = -1
    try:
        with client.worker(warn_blocked=0), client.locks.hold("block") as block:
            child = os.fork()
            if not child:
                signal.alarm(HANGS)
                raise KeyboardInterrupt
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            block.extend()
            assert client.start(double(7)).result("30s") == 14
    except KeyboardInterrupt:
        assert child == 0
        os._exit(0)


def memory(url: str) -> None:
    client = Engine("sqlite://", [double]).blocking()
    client.start(double(1))

    def act() -> None:
        try:
            client.runs.list()
        except EngineClosed:
            client.close()
            return
        raise AssertionError("a database in memory is of one process")

    in_child(act)()
    assert len(client.runs.list().runs) == 1


def busy(url: str) -> None:
    """A file to which a connection is open in the parent, in the middle of a transaction, cannot be opened in the
    child."""
    client = Engine(url, [write, double]).blocking()
    with client.worker(warn_blocked=0):
        run = client.start(write())
        assert began.wait(HANGS)

        # The parent says so, too, and that its loop was blocked: the fork waits for the transaction for some seconds.
        for name in ("perdure.store", "perdure.worker"):
            logging.getLogger(name).setLevel(logging.ERROR)

        def act() -> None:
            try:
                client.runs.list()
            except EngineClosed as error:
                assert "forked while" in str(error), error
                return
            raise AssertionError("the file was opened beside locks that are not held")

        in_child(act)()
        go_on.set()
        run.result("30s")
        assert client.start(double(7)).result("30s") == 14


def crowd(url: str) -> None:
    """Parent and children write at once."""
    engine = Engine(url, [double])
    client = engine.blocking()
    client.start(double(0))

    def act(name: str) -> None:
        for number in range(40):
            client.start(double(number), id=f"{name}-{number}")

    waits = [in_child(lambda name=name: act(name)) for name in ("a", "b")]  # type: ignore[misc] # a lambda with a default
    act("c")
    for wait in waits:
        wait()
    assert len(client.runs.list(limit=1000).runs) == 121
    client.close()


if __name__ == "__main__":
    _, scenario, where = sys.argv
    logging.getLogger().addHandler(Complaints(logging.WARNING))
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(2 * HANGS)
    globals()[scenario](where)
    if scenario != "outlived":
        print("ok", flush=True)
