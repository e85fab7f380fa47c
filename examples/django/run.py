"""Runs the shop on SQLite, in one command: tables, a worker, the dashboard at :8470, and Django at :8000."""

import sys
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, call

MANAGE = [sys.executable, str(Path(__file__).parent / "manage.py")]

if __name__ == "__main__":
    call([*MANAGE, "migrate"])
    beside = [["perdure", "worker"], ["perdure", "serve", "--anonymous", "admin"]]
    processes = [Popen([*MANAGE, *command]) for command in beside]
    with suppress(KeyboardInterrupt):
        call([*MANAGE, "runserver", "--noreload"])
    for process in processes:
        process.terminate()
        process.wait()
