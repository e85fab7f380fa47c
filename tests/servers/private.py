"""A private database server: a folder of its own, a free port, no other data, gone when it is over.

Programs are taken from the PATH or from where Debian, Ubuntu and Homebrew put them; as root on Debian they are
installed. Servers refuse to run as root, so they are started as another user then.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

#: Id of the account that owns nothing, on every Linux.
_WITHOUT_RIGHTS = 65534


class Missing(Exception):
    """There is no such server on this machine."""


def skip_without(needed: str, missing: Missing) -> NoReturn:
    """Skip a test, or fail it in CI, where every server has to be there."""
    if os.environ.get("CI") == "true":
        raise missing
    pytest.skip(f"{needed}: {missing}")


class PrivateServer(ABC):
    """One server. Subclasses say how its files are made, how it is started and how it shows that it is ready."""

    name: str
    #: Accounts that it may run as, if we are root, before the one without rights; what ends it as a crash would.
    users: Sequence[str] = ()
    deadly: signal.Signals = signal.SIGKILL

    def __init__(self) -> None:
        self._as = _other_user(self.name, self.users)
        self._folder = Path(tempfile.mkdtemp(prefix=f"perdure-{self.name.lower()}-", dir=reachable(self._as)))
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make its files and start it."""
        if self._as:
            shutil.chown(self._folder, self._as["user"], self._as["group"])
        self._call(self._making())
        self.start()

    def _call(self, command: list[str]) -> None:
        """Run a program of the server's to its end. If it fails, what it printed is part of the error."""
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=self._environment,
            **self._as,
        )
        if done.returncode:
            printed = done.stdout.decode(errors="replace")[-5000:].rstrip()
            raise RuntimeError(f"{command[0]} of {self.name} failed with exit code {done.returncode}:\n{printed}")

    @property
    def _environment(self) -> dict[str, str]:
        # Its user may not be allowed to write into ours.
        return {**os.environ, "TMPDIR": str(self._folder)}

    def start(self) -> None:
        """Start it and wait until it answers. What a killed one has left running may have to end first."""
        for left in range(50, -1, -1):
            try:
                self._start()
                break
            except RuntimeError:
                if not left:
                    raise
                time.sleep(0.1)

    def _start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                self._starting(),
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
                **self._as,
            )
        self._process = process
        for _ in range(600):
            if process.poll() is not None:
                break
            if self._ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} did not start:\n{(self._folder / 'log').read_text()[-3000:]}")

    def kill(self, how: signal.Signals | None = None) -> None:
        """End it as a crash would: at once, with everything that it was doing."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how or self.deadly)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """End it and leave nothing behind."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @abstractmethod
    def _making(self) -> list[str]:
        """The command that makes its files."""

    @abstractmethod
    def _starting(self) -> list[str]:
        """The command that is the server."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it answers."""


def programs(names: Sequence[str], places: Sequence[str], *packages: str) -> dict[str, str]:
    """Where these programs are, installing them if need be; empty if they cannot be had."""
    known = found(names, places)
    if not known and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        # Another installer may be at work, which holds the lock.
        install = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
        printed = "".join(_printed(command, environment) for command in (["apt-get", "update"], install))
        known = found(names, places)
        if not known:
            print(f"{printed}*** {' and '.join(packages)} could not be installed; see above. ***", file=sys.stderr)
    return known


def _printed(command: list[str], environment: dict[str, str]) -> str:
    """Run an installer; what it printed, if it failed."""
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    return f"$ {' '.join(command)}\n{done.stdout[-5000:]}" if done.returncode else ""


def found(names: Sequence[str], places: Sequence[str]) -> dict[str, str]:
    """Where these programs are; empty if one of them is not there."""
    folders = [path for pattern in places for path in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    known = {name: path for name in names if (path := shutil.which(name, path=search)) is not None}
    return known if len(known) == len(names) else {}


def _other_user(server: str, users: Sequence[str]) -> Mapping[str, Any]:
    if os.geteuid() != 0:
        return {}
    for entry in pwd.getpwall():
        if entry.pw_name in users:
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    try:
        entry = pwd.getpwuid(_WITHOUT_RIGHTS)
    except KeyError:
        raise Missing(f"{server} does not run as root, and there is no other account for it") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def reachable(user: Mapping[str, Any]) -> Path:
    """A folder to make others in, which this user can reach: the one for temporary files, if it can be."""
    places = [Path(tempfile.gettempdir()), *(Path(place) for place in ("/var/tmp", "/var/lib", "/srv", "/"))]
    if not user:
        return places[0]
    for place in places:
        if place.is_dir() and all(_may_enter(folder, user) for folder in (place, *place.parents)):
            return place
    raise Missing(f"its user reaches none of {', '.join(map(str, places))}")


def _may_enter(folder: Path, user: Mapping[str, Any]) -> bool:
    state = folder.stat()
    if state.st_uid == user["user"]:
        return bool(state.st_mode & stat.S_IXUSR)
    return bool(state.st_mode & (stat.S_IXGRP if state.st_gid == user["group"] else stat.S_IXOTH))


def free_port() -> int:
    """A port that nothing listens on, and that the kernel lends to no outgoing connection while the server is
    restarted."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
