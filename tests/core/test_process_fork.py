"""A forked child detaches the descriptors of its parent."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from perdure.core.process_fork import detach_loop

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
