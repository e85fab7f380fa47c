"""The file under an SQLite database: where it may be, and who may copy its log back into it.

SQLite before 3.51.3 can corrupt a database when several processes checkpoint and write at the same instant. Below that
version one process at a time checkpoints: the one that has the lock on a side file.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from perdure.errors import EngineClosed, StoreReadOnly, StoreUnavailable

if sys.platform != "win32":
    import fcntl

#: STRICT tables.
_OLDEST = (3, 37, 0)
_SAFE_CHECKPOINTS = (3, 51, 3)

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "ncpfs",
        "fuse.sshfs",
        "fuse.glusterfs",
    }
)


def check_version() -> None:
    """Refuse an SQLite that cannot do what is needed."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; Perdure needs 3.37 or newer. Use a newer build of Python or SQLite."
        )


def check_access(path: str) -> None:
    """Refuse a file that may not be written, or beside which no log can be created; SQLite itself would be less clear."""
    file = Path(path).resolve()
    # Who opens the file is the effective user, who may be another than the one that began the process.
    effective = os.access in os.supports_effective_ids
    for needed in (file, file.parent):
        if os.access(needed, os.F_OK) and not os.access(needed, os.W_OK, effective_ids=effective):
            raise StoreReadOnly(
                f"{needed} cannot be written by this user. Check the permissions of the file and its directory."
            )


def check_file_system(path: str, mounts: str = "/proc/mounts") -> None:
    """Refuse a file on a network file system, whose locks SQLite cannot rely on. Known on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    real = os.path.realpath(path)
    kind = ""
    longest = -1
    try:
        entries = [line.split() for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return
    for fields in entries:
        point = fields[1].replace("\\040", " ").rstrip("/")
        if (real == point or real.startswith(point + "/")) and len(point) > longest:
            longest, kind = len(point), fields[2]
    if kind in _NETWORK:
        raise StoreUnavailable(
            f"{real} is on a network file system ({kind}), where SQLite may lose or damage data. "
            "Put the database on a local disk, or use a database server."
        )


#: Files, by device and number, to which connections of the parent were open when this process was forked.
_inherited: set[tuple[int, int]] = set()


def note_inherited(path: str, *, closed: bool) -> None:
    """In a child, right after the fork: remember a file to which connections of the parent are still open.

    SQLite keeps one record of its locks for each process and file. A child inherits the record and not the locks, so that a connection
    of its own would count on locks that no process holds. `closed` tells whether the parent closed its connections, where the system
    cannot.
    """
    try:
        file = Path(path).stat()
    except OSError:
        return
    try:
        descriptors = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    except OSError:
        if not closed:
            _inherited.add((file.st_dev, file.st_ino))
        return
    for descriptor in descriptors:
        try:
            one = os.fstat(descriptor)
        except OSError:
            continue
        if os.path.samestat(one, file):
            _inherited.add((file.st_dev, file.st_ino))


def check_inheritance(path: str) -> None:
    """Refuse a file to which connections of the parent were open when this process was forked."""
    if not _inherited:
        return
    try:
        file = Path(path).stat()
    except OSError:
        return
    if (file.st_dev, file.st_ino) in _inherited:
        raise EngineClosed(
            f"{path} cannot be opened in this process: it was forked while the parent process had a transaction, or a connection of "
            "its own, open there, and SQLite does not allow that. Fork while the engine is idle, or use it after the fork only"
        )


def checkpoints_need_care() -> bool:
    """Whether this SQLite must not checkpoint in two processes at once."""
    return sqlite3.sqlite_version_info < _SAFE_CHECKPOINTS


class CheckpointLock:
    """The right to checkpoint, which one of all processes that have the file open can hold. Ends with its holder."""

    def __init__(self, path: str) -> None:
        self._file = os.open(f"{path}-checkpoint", os.O_RDWR | os.O_CREAT, 0o644)
        self.held = False

    def take(self) -> bool:
        """Try to get it, without waiting."""
        if not self.held and sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        self.held = True
        return True

    def give_up(self) -> None:
        """Let another process have it."""
        if self.held and sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Give it up for good."""
        os.close(self._file)
        self.held = False
