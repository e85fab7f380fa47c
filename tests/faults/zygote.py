"""Processes that have imported everything and fork, so that a test, and a case of it, cost milliseconds instead of an
import.

The first listens at a socket, which it is given by its number, and forks a zygote for each connection. A zygote forks
once per case:
it reads one request a line from its connection and writes one event a line: a child was started, has stopped, or has
ended. None of
them has threads or a database, so what they fork starts clean. A zygote ends with its connection, and its children with
it; the first
with its standard input.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.faults.roles import ROLES


def main() -> None:
    # The exit codes of zygotes are not needed.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as door:
        while True:
            ready, _, _ = select.select([0, door.fileno()], [], [])
            if 0 in ready:
                break
            connection, _ = door.accept()
            if os.fork() == 0:
                door.close()
                for end in (0, 1):
                    os.dup2(connection.fileno(), end)
                connection.close()
                _serve()
                os._exit(0)
            connection.close()


def _serve() -> None:
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    children: set[int] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _report(children)
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *requests, pending = (pending + chunk).split(b"\n")
            for request in requests:
                children.add(_fork(json.loads(request)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be(request)
    _tell({"event": "started", "case": request["case"], "pid": pid})
    return pid


def _be(request: dict[str, Any]) -> None:
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        noise = os.open(Path(request["directory"]) / "noise.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target, source in ((0, nothing), (1, noise), (2, noise)):
            os.dup2(source, target)
        faulthandler.enable()
        faulthandler.dump_traceback_later(request["life"], exit=True)
        ROLES[request["role"]](Path(request["directory"]), **request["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _report(children: set[int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not found:
            continue
        if os.WIFSTOPPED(status):
            _tell({"event": "stopped", "pid": pid})
        else:
            children.discard(pid)
            _tell({"event": "ended", "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(event: dict[str, Any]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
