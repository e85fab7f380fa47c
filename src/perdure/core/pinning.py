"""Runs that are pinned to the build that began them.

A pinned run is in a queue of its own kind: the queue that it was started in, `~`, and the build. Only workers of that
build serve this queue, so a claim finds pinned runs by the claim index and never reads those of other builds. A name
cannot contain `~`, so no such queue can be given by a user.
"""

from __future__ import annotations

from perdure.core.ids import NAME_BYTES
from perdure.errors import UsageError

_SIGN = "~"


def pinned_queue(queue: str, build: str) -> str:
    """Return the queue of runs from `queue` that are pinned to a build. Raises `UsageError` if its name is too long."""
    name = f"{base_queue(queue)}{_SIGN}{build}"
    if len(name.encode()) > NAME_BYTES:
        raise UsageError(
            f"runs in the queue {queue!r} cannot be pinned to the build {build!r}: the names are longer than "
            f"{NAME_BYTES - 1} bytes together; give the engine a shorter build: Engine(..., build='1.4.2')"
        )
    return name


def base_queue(queue: str) -> str:
    """Return the queue that a run was started in, pinned or not."""
    return queue.partition(_SIGN)[0]


def pinned_build(queue: str) -> str:
    """Return the build that the runs in a queue are pinned to; empty: none."""
    return queue.partition(_SIGN)[2]
