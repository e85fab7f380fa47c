"""A directory in which the worker processes of one host share what they count.

Each process has its cells in a file there, and a lock on that file for as long as it lives. One process gathers: it
adds up the files of all. The numbers of dead processes are kept in one file, because a counter that shrinks looks like
one that was reset. The first process removes the files of earlier ones. Windows has no such locks: this module cannot
be imported there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.errors import UsageError
from perdure.metrics.cells import CELLS, SERIES, Cells, Labels, Readings, add, cells_in_file, read_file

_RETIRED = "retired.json"
_JOIN, _GATHER = "join.lock", "gather.lock"


class _Retired(Struct, frozen=True):
    """Numbers that dead processes have counted, and the names of the files that they came from."""

    merged: tuple[str, ...] = ()
    readings: tuple[tuple[str, Labels, list[float]], ...] = ()


_retired_decoder = decoder_for(_Retired)


def directory_of(port: int) -> Path:
    """Return the directory that processes of this user and host share for a port."""
    return Path(tempfile.gettempdir(), f"perdure-metrics-{os.getuid()}-{port}")


class SharedDirectory:
    """This process's part of a shared directory."""

    def __init__(self, path: Path, name: str) -> None:
        """Join; `name` is unique to this process. Raises `UsageError`."""
        self._path = path
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        # Anyone may write to the folder for temporary files: a link there may lead anywhere.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise UsageError(f"{path} is no directory of this user; remove it, or use another port")
        self._name = name
        self._gathering: int | None = None
        with self._locked(_JOIN):
            if not self._others(living=True):
                self._clear()
            # Others see a file only when it is locked.
            hidden = path / f".{name}{CELLS}"
            self._descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            #: Numbers of this process.
            self.cells: Cells
            self.cells, self._mapped, self._named = cells_in_file(self._descriptor, path / f"{name}{SERIES}")
            hidden.rename(path / f"{name}{CELLS}")

    def may_gather(self) -> bool:
        """Become the process that gathers, if no other one is; True if this one is."""
        if self._gathering is None:
            descriptor = os.open(self._path / _GATHER, os.O_RDWR | os.O_CREAT, 0o600)
            if not _try_lock(descriptor):
                os.close(descriptor)
                return False
            self._gathering = descriptor
        return True

    def read_others(self) -> Readings:
        """Return what the other processes have counted, dead ones included, and the gauges of those that live."""
        total: Readings = {}
        with self._locked(_JOIN):
            self._retire()
            for name, labels, values in self._retired().readings:
                total[name, labels] = values
            for name in self._others(living=True):
                add(total, self._read(name))
        return total

    def close(self) -> None:
        """Leave. The numbers stay for as long as another process does."""
        with self._locked(_JOIN):
            if not self._others(living=True):
                self._clear()
            # The mapping into memory keeps the file open, and would keep its lock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            for descriptor in (self._descriptor, self._named, self._gathering):
                if descriptor is not None:
                    os.close(descriptor)
            self._gathering = None

    def _others(self, *, living: bool) -> list[str]:
        names = [one.name.removesuffix(CELLS) for one in self._path.glob(f"[!.]*{CELLS}")]
        return [one for one in sorted(names) if one != self._name and self._lives(one) is living]

    def _lives(self, name: str) -> bool:
        descriptor = os.open(self._path / f"{name}{CELLS}", os.O_RDWR)
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> Readings:
        try:
            return read_file(self._path / f"{name}{CELLS}", self._path / f"{name}{SERIES}")
        except FileNotFoundError:
            return {}

    def _retired(self) -> _Retired:
        try:
            return _retired_decoder.decode((self._path / _RETIRED).read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return _Retired()

    def _retire(self) -> None:
        """Add the files of dead processes to that of all of them. A crash in between counts nothing twice."""
        dead = self._others(living=False)
        if not dead:
            return
        retired = self._retired()
        total: Readings = {(name, labels): values for name, labels, values in retired.readings}
        for name in dead:
            if name not in retired.merged:
                add(total, self._read(name), gauges=False)
        whole = _Retired(tuple(dead), tuple((name, labels, values) for (name, labels), values in total.items()))
        written = self._path / f".{_RETIRED}"
        written.write_bytes(msgspec.json.encode(whole))
        written.rename(self._path / _RETIRED)
        for name in dead:
            for ending in (CELLS, SERIES):
                (self._path / f"{name}{ending}").unlink(missing_ok=True)

    def _clear(self) -> None:
        for pattern in (f"*{CELLS}", f"*{SERIES}", f"*{_RETIRED}"):
            for one in self._path.glob(pattern):
                one.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Generator[None]:
        descriptor = os.open(self._path / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
