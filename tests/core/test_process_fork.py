"""A forked child detaches the descriptors of its parent."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from pathlib import Path

import pytest

from perdure.core import process_fork
from perdure.core.process_fork import _call_all, detach_loop, watch_forks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def test_every_descriptor_that_a_loop_watches_is_cut_off() -> None:
    loop = asyncio.SelectorEventLoop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_reader(ours, lambda: None)
        detach_loop(loop)
        assert os.path.samestat(os.fstat(ours.fileno()), Path(os.devnull).stat())
        assert theirs.recv(1) == b""
        loop.remove_reader(ours)
    loop.close()


def test_a_child_drops_the_tasks_of_its_parent_in_silence() -> None:
    loop = asyncio.SelectorEventLoop()
    said: list[object] = []
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))

    async def wait() -> None:
        loop.stop()
        await loop.create_future()

    task = loop.create_task(wait())
    loop.run_forever()
    detach_loop(loop)
    del task
    gc.collect()
    assert said == []
    loop.close()


def test_every_watcher_is_told_of_the_moments_that_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stores of other tests are told of real forks only.
    monkeypatch.setattr(process_fork, "_watched", {})

    class Watcher:
        def __init__(self, *, fails: bool) -> None:
            self.told: list[str] = []
            self._fails = fails
            watch_forks(self.in_child, in_parent=self.in_parent)

        def in_child(self) -> None:
            self.told.append("child")

        def in_parent(self) -> None:
            self.told.append("parent")
            if self._fails:
                raise ValueError("no")

    watchers = [Watcher(fails=True), Watcher(fails=False)]
    _call_all(lambda watch: watch.before)
    _call_all(lambda watch: watch.in_parent)
    assert [one.told for one in watchers] == [["parent"], ["parent"]]
