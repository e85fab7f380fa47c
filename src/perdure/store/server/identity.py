"""Identity of the server behind an address, and the worker registrations that were made on it.

A standby that replaces its primary may lack the last commits (asynchronous replication), and so may a restored backup.
A worker's leases and memory may then follow from lost commits, while its own row and its leases look as before. So
every new connection reads the server's identity and log position. If the server is another one, or has gone back, all
connections to the former server are dropped, listeners are notified, and nothing that was claimed before is written:
each worker registers anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from msgspec import Struct

from perdure.errors import StoreError

_log = logging.getLogger("perdure.store")


class ServerReplaced(StoreError):
    """The worker registered on a server that another one has replaced since."""


class ServerIdentity(Struct, frozen=True):
    """A server, as one of its sessions describes it."""

    #: Its name for itself; None: it does not say.
    name: str | None
    #: How far it has written, by stream of its log. Nothing that it has acknowledged lies behind.
    position: Mapping[str, int] = {}


class IdentitySnapshot(Struct, frozen=True):
    """Knowledge of the server before it was asked."""

    epoch: int
    position: Mapping[str, int]


class WorkerRegistration(Struct):
    """A worker's registration, as the store knows it."""

    epoch: int
    #: The server's name for itself; None: not known.
    server: str | None
    #: Time of the last acknowledged heartbeat, in microseconds; a server with an earlier one has lost it.
    beat: int = 0


class ServerTracker:
    """Tracks the server behind an address. Its methods may be called from any thread."""

    def __init__(self, where: Callable[[], str], replaced: Callable[[], object]) -> None:
        #: How often the server was replaced.
        self.epoch = 0
        #: The server's name for itself; None: not known.
        self.server: str | None = None
        self._where = where
        self._replaced = replaced
        self._position: Mapping[str, int] = {}
        self._registrations: dict[str, WorkerRegistration] = {}
        self._lock = threading.Lock()

    def snapshot(self) -> IdentitySnapshot:
        """Knowledge so far; take it before asking the server for its identity."""
        with self._lock:
            return IdentitySnapshot(self.epoch, self._position)

    def record(self, who: ServerIdentity, known: IdentitySnapshot) -> int:
        """Record the identity of a connection's server; returns its epoch. `known` is the snapshot from before."""
        with self._lock:
            if who.name is None:
                return self.epoch
            former, self.server = self.server, who.name
            if former in (None, who.name) and not self._went_back(who, known):
                self._position = {**self._position, **_later(who.position, self._position)}
                return self.epoch
            self._position = who.position
            self.epoch += 1
            epoch = self.epoch
        if former == who.name:
            self._tell("has lost commits that it had acknowledged")
        else:
            self._tell(f"is another server than before ({who.name}, was {former}) and may lack the last commits")
        return epoch

    def record_loss(self) -> None:
        """Record that the server lacks a write that it had acknowledged."""
        with self._lock:
            self.epoch += 1
        self._tell("has lost commits that it had acknowledged")

    def register(self, worker: str, epoch: int) -> None:
        """Record a worker's registration on the server of that epoch."""
        with self._lock:
            self._registrations[worker] = WorkerRegistration(epoch, self.server if epoch == self.epoch else None)

    def registration(self, worker: str) -> WorkerRegistration | None:
        """The registration of a worker, if it was made here."""
        return self._registrations.get(worker)

    def check(self, worker: str, epoch: int) -> None:
        """Raise `ServerReplaced` if the worker registered on another server than that of the epoch."""
        life = self._registrations.get(worker)
        if life is not None and life.epoch != epoch:
            raise ServerReplaced(
                f"worker {worker} began on a server that was replaced since; it has to begin a new life"
            )

    def _went_back(self, who: ServerIdentity, known: IdentitySnapshot) -> bool:
        if known.epoch != self.epoch:
            return False
        return any(who.position.get(stream, 0) < reached for stream, reached in known.position.items())

    def _tell(self, what: str) -> None:
        _log.warning("%s %s; workers drop what they hold and begin a new life", self._where(), what)
        self._replaced()


def _later(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {stream: max(reached, other.get(stream, 0)) for stream, reached in one.items()}
