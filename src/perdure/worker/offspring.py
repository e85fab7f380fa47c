"""A run's children: how they are asked for, and how they are told that nobody waits any more."""

from __future__ import annotations

from perdure.core.codec import Codec
from perdure.core.model import Kind, NewMessage, NewRun, Run
from perdure.replay.operations import ChildOperation


def new_child(operation: ChildOperation, parent: Run, codec: Codec) -> NewRun:
    """The run to create. Its id follows from the parent's location, so asking twice creates one. Raises `EncodeError`."""
    options = operation.options
    return NewRun(
        id=operation.child_id,
        type=operation.call.type,
        input=operation.call.encode(codec),
        queue=options.queue or parent.queue,
        priority=parent.priority if options.priority is None else options.priority,
        deadline=min(options.deadline, parent.deadline),
        parent_id=parent.id,
        parent_location=operation.location,
        write_id=f"{parent.id}:{operation.location}:{parent.attempt}",
    )


def stop_child(operation: ChildOperation, parent: Run, codec: Codec) -> NewMessage:
    """The word to a child whose result is not wanted any more."""
    reason = codec.encode(f"its parent {parent.id!r} no longer waits for it", "reason")
    key = f"cancel:{parent.id}:{operation.location}"
    return NewMessage(run_id=operation.child_id, kind=Kind.CANCEL, payload=reason, key=key)
