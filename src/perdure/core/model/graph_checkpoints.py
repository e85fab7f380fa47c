"""Checkpoints of graphs: states of threads that an agent library stores, and writes that belong to them.

They are data and no runs: nothing claims, wakes, retries or finishes them. (A *checkpoint* elsewhere in Perdure is the
record of a scope's progress.)
"""

from __future__ import annotations

from msgspec import Struct

#: Longest parts of a key, in characters.
LONGEST_RUN = 255
LONGEST_SPACE = 200
LONGEST_CHECKPOINT = 64
LONGEST_ENTRY = 100


class GraphEntry(Struct, frozen=True, kw_only=True):
    """A checkpoint, whose `entry` is empty, or a write that belongs to one."""

    thread: str
    #: Part of the thread that belongs to a subgraph; empty for the graph itself.
    space: str = ""
    #: Id of the checkpoint. Later checkpoints of a thread have larger ids.
    checkpoint: str
    #: Name of the write; empty for the checkpoint itself.
    entry: str = ""
    #: Id of the checkpoint before it; empty for the first one.
    parent: str = ""
    #: Name of the invocation that made the checkpoint, by which it can be deleted.
    run: str = ""
    metadata: str = ""
    body: str = ""
    #: Takes the place of an entry with the same key; without it, the first one stays.
    replaces: bool = True


class GraphQuery(Struct, frozen=True, kw_only=True):
    """Choice of checkpoints, the largest id first. None: any."""

    thread: str | None = None
    space: str | None = None
    checkpoint: str | None = None
    #: Checkpoints with smaller ids only.
    before: str | None = None
    #: Position after which a page begins: id, thread and space of the last checkpoint of the page before it.
    after: tuple[str, str, str] | None = None
    limit: int = 1
    #: Leave out bodies and writes.
    brief: bool = False


class GraphDeletion(Struct, frozen=True, kw_only=True):
    """Choice of checkpoints to delete, with their writes: those of a thread, or those of invocations."""

    thread: str | None = None
    runs: tuple[str, ...] = ()
    #: Of the thread, only one space, and only what is older than a checkpoint, except for some.
    space: str | None = None
    before: str | None = None
    keep: tuple[str, ...] = ()
