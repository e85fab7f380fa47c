"""A process that has imported everything and forks once per case, so that a case costs milliseconds instead of an import.

It reads one request a line from its standard input and writes one event a line to its standard output: a child was started, has
stopped, or has ended. It has no threads and no database, so what it forks starts clean. When its input ends, so do its children.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.faults.roles import ROLES


def main() -> None:
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
