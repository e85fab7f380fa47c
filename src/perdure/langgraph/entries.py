"""LangGraph's checkpoints and writes as rows of the database, and back."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_id
from perdure.core.model.graph_checkpoints import (
    LONGEST_CHECKPOINT,
    LONGEST_ENTRY,
    LONGEST_RUN,
    LONGEST_SPACE,
    GraphEntry,
)
from perdure.core.printed_text import brief
from perdure.errors import DecodeError, UsageError

#: Characters of a long text that its key keeps in front of the digest.
_DIGEST = 64


class _Blob(Struct, frozen=True):
    """A value that LangGraph's serializer has encoded."""

    type: str
    #: Base64.
    data: str


class _CheckpointBody(Struct, frozen=True):
    """Contents of a checkpoint's row. The namespace is here because its key may be cut."""

    namespace: str
    parent: str
    checkpoint: _Blob


class _WriteBody(Struct, frozen=True):
    """Contents of a write's row."""

    task: str
    path: str
    index: int
    channel: str
    value: _Blob


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: decoder_for(kind) for kind in (_Blob, _CheckpointBody, _WriteBody)
}


class Key(Struct, frozen=True):
    """Thread, namespace and checkpoint of a configuration."""

    thread: str
    namespace: str | None
    checkpoint: str | None

    @classmethod
    def of(cls, config: RunnableConfig) -> Key:
        """Read a configuration. Raises `UsageError`."""
        given: Any = config.get("configurable", {})
        if "thread_id" not in given:
            raise UsageError('the configuration names no thread; give {"configurable": {"thread_id": "..."}}')
        namespace, checkpoint = given.get("checkpoint_ns"), given.get("checkpoint_id")
        return cls(
            thread_key(given["thread_id"]),
            None if namespace is None else str(namespace),
            None if not checkpoint else _checkpoint_id(checkpoint),
        )

    @property
    def space(self) -> str:
        """Key of the namespace; that of the graph itself if none is named."""
        return space_key(self.namespace or "")


def thread_key(thread: object) -> str:
    """Key of a thread: its id, of at most 255 characters. Raises `InvalidId`."""
    return check_id(str(thread), "thread_id")


def _checkpoint_id(given: object) -> str:
    text = check_id(str(given), "checkpoint_id")
    if len(text) > LONGEST_CHECKPOINT:
        raise UsageError(f"checkpoint_id {brief(text)} has more than {LONGEST_CHECKPOINT} characters; use a UUID")
    return text


def space_key(namespace: str) -> str:
    """Key of a namespace: each nested subgraph makes the namespace longer."""
    return _bounded(namespace, LONGEST_SPACE)


def run_key(run: object) -> str:
    """Key of an invocation."""
    return _bounded(str(run), LONGEST_RUN)


def _bounded(text: str, longest: int) -> str:
    """The text, or a beginning and a digest of it: no two texts have the same key."""
    if len(text) <= longest and "\0" not in text and "#" not in text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[: min(_DIGEST, longest - 2)]
    beginning = text.replace("\0", "").encode("utf-8", "replace").decode()
    return f"{beginning[: longest - 1 - len(digest)]}#{digest}"


def checkpoint_entry(
    serde: SerializerProtocol, key: Key, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> GraphEntry:
    """Make the row of a checkpoint. `key` names its parent."""
    namespace = key.namespace or ""
    body = _CheckpointBody(namespace, key.checkpoint or "", _dumped(serde, checkpoint))
    return GraphEntry(
        thread=key.thread,
        space=key.space,
        checkpoint=_checkpoint_id(checkpoint["id"]),
        parent=key.checkpoint or "",
        run=run_key(run) if (run := metadata.get("run_id")) else "",
        metadata=_encoded(_dumped(serde, metadata)),
        body=_encoded(body),
    )


def write_entries(
    serde: SerializerProtocol, key: Key, writes: Sequence[tuple[str, Any]], task: str, path: str
) -> list[GraphEntry]:
    """Make the rows of the writes of a task."""
    if key.checkpoint is None:
        raise UsageError(f"writes of the task {task} belong to a checkpoint, and the configuration names none")
    # A task that runs again reports the same results; an error or an interrupt may be another one.
    replaces = all(channel in WRITES_IDX_MAP for channel, _ in writes)
    made: list[GraphEntry] = []
    for place, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, place)
        body = _WriteBody(task, path, index, channel, _dumped(serde, value))
        made.append(
            GraphEntry(
                thread=key.thread,
                space=key.space,
                checkpoint=key.checkpoint,
                entry=_bounded(f"{task}/{index}", LONGEST_ENTRY),
                body=_encoded(body),
                replaces=replaces,
            )
        )
    # Of two writes to the same special channel, the last one counts.
    return list({one.entry: one for one in made}.values())


def metadata_of(serde: SerializerProtocol, row: GraphEntry) -> CheckpointMetadata:
    """Decode the metadata of a checkpoint."""
    metadata: CheckpointMetadata = _loaded(serde, _decoded(row.metadata, _Blob, row))
    return metadata


def checkpoint_of(serde: SerializerProtocol, row: GraphEntry) -> Checkpoint:
    """Decode a checkpoint."""
    checkpoint: Checkpoint = _loaded(serde, _decoded(row.body, _CheckpointBody, row).checkpoint)
    return checkpoint


def tuple_of(serde: SerializerProtocol, row: GraphEntry, writes: Sequence[GraphEntry]) -> CheckpointTuple:
    """Make what LangGraph calls a checkpoint tuple."""
    body = _decoded(row.body, _CheckpointBody, row)
    place = {"thread_id": row.thread, "checkpoint_ns": body.namespace}
    return CheckpointTuple(
        config={"configurable": {**place, "checkpoint_id": row.checkpoint}},
        checkpoint=_loaded(serde, body.checkpoint),
        metadata=metadata_of(serde, row),
        parent_config={"configurable": {**place, "checkpoint_id": body.parent}} if body.parent else None,
        pending_writes=_pending(serde, writes),
    )


def _pending(serde: SerializerProtocol, rows: Sequence[GraphEntry]) -> list[PendingWrite]:
    """Writes in the order in which a step of the graph applies them: by path of the task, then task, then index."""
    writes = [_decoded(row.body, _WriteBody, row) for row in rows]
    writes.sort(key=lambda one: (one.path, one.task, one.index))
    return [(one.task, one.channel, _loaded(serde, one.value)) for one in writes]


def _dumped(serde: SerializerProtocol, value: object) -> _Blob:
    type, data = serde.dumps_typed(value)
    return _Blob(type, base64.b64encode(data).decode())


def _loaded(serde: SerializerProtocol, blob: _Blob) -> Any:
    return serde.loads_typed((blob.type, base64.b64decode(blob.data)))


def _encoded(value: Struct) -> str:
    return msgspec.json.encode(value).decode()


def _decoded(text: str, kind: Any, row: GraphEntry) -> Any:
    try:
        return _DECODERS[kind].decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError(
            f"the checkpoint {brief(row.checkpoint)} of the thread {brief(row.thread)} cannot be read: {error}"
        ) from error
