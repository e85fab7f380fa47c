"""The file of an SQLite database: where it may be, and which versions of SQLite may use it."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

from perdure.errors import EngineClosed, StoreReadOnly, StoreUnavailable

#: The first version with STRICT tables.
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

#: File systems that only the kernel of this machine writes to.
_LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"})


def check_version() -> None:
    """Refuse a version of SQLite that lacks what Perdure needs."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; Perdure needs 3.37 or newer: use a newer build of Python or "
            "SQLite"
        )


def check_access(path: str) -> None:
    """Refuse a file that this user may not write, or beside which no log can be created.

    SQLite's own message would be less clear.
    """
    file = Path(os.path.realpath(path))
    # SQLite opens the file as the effective user, which may differ from the user that started the process.
    effective = os.access in os.supports_effective_ids
    for needed in (file, file.parent):
        if os.access(needed, os.F_OK) and not os.access(needed, os.W_OK, effective_ids=effective):
            raise StoreReadOnly(
                f"{needed} cannot be written by this user; check the permissions of the file and its directory"
            )


def create_privately(path: str) -> None:
    """Create the file, unless it exists, so that only this user can read it.

    SQLite gives the files beside it the same permissions. An error is left to SQLite, which opens the file next.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check_file_system(path: str, mounts: str = "/proc/mounts") -> None:
    """Refuse a file on a network file system, whose locks are unreliable. Only Linux tells what a file is on."""
    if not sys.platform.startswith("linux"):
        return
    real = os.path.realpath(path)
    kind = _file_system(real, mounts)
    if kind in _NETWORK:
        raise StoreUnavailable(
            f"{real} is on a network file system ({kind}), where SQLite may lose or damage data; "
            "put the database on a local disk, or use a database server"
        )


def is_watchable(path: str, mounts: str = "/proc/mounts") -> bool:
    """Tell whether the kernel sees every write to a file, because no other machine can write to its file system."""
    return sys.platform.startswith("linux") and _file_system(os.path.realpath(path), mounts) in _LOCAL


def _file_system(real: str, mounts: str) -> str:
    """Kind of the file system that a file is on; empty if it is not known."""
    kind = ""
    longest = -1
    try:
        entries = [line.split() for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    for fields in entries:
        point = fields[1].replace("\\040", " ").rstrip("/")
        # Of several file systems on one point, the last one is seen.
        if (real == point or real.startswith(point + "/")) and len(point) >= longest:
            longest, kind = len(point), fields[2]
    return kind


#: Files, by device and inode number, that connections of the parent had open when this process was forked.
_inherited: set[tuple[int, int]] = set()


def note_inherited(path: str, *, closed: bool) -> None:
    """Remember, in a child right after the fork, a file that connections of the parent still have open.

    SQLite keeps one record of its locks for each process and file. A child inherits the record but not the locks, so
    that a connection of its own would rely on locks that no process holds. Where the system does not list open files,
    `closed` tells whether the parent had closed its connections.
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
    """Refuse a file that connections of the parent had open when this process was forked."""
    if not _inherited:
        return
    try:
        file = Path(path).stat()
    except OSError:
        return
    if (file.st_dev, file.st_ino) in _inherited:
        raise EngineClosed(
            f"{path} cannot be opened in this process: it was forked while the parent process had a transaction or a "
            "connection open there, and SQLite does not allow that; fork while the engine is idle, or use it after the "
            "fork only"
        )


def checkpoints_need_care() -> bool:
    """Tell whether this version of SQLite must not checkpoint in two processes at once."""
    return sqlite3.sqlite_version_info < _SAFE_CHECKPOINTS


def open_beside(path: str, name: str) -> int:
    """Open a file for writing; create it with the permissions of the file at `path`, as SQLite does with its own."""
    try:
        return os.open(name, os.O_RDWR)
    except FileNotFoundError:
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):
        # The mask of the process does not apply.
        Path(name).chmod(Path(path).stat().st_mode & 0o666)
    return file
