"""What the audit trail says of each thing that happens: the kind and the data of its lines."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.model.outputs import OutputKind
from perdure.core.model.run import Again, Block, Finish, NewRun, Park, Run, Status, Turn
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import to_json

#: How much of an error's message, or of a heartbeat's details, goes into the trail, in letters.
_SHORT = 500

Said = tuple[str, str]

_COMPLETED = Status.COMPLETED


def of_created(new: NewRun) -> Said:
    """Of a run that comes to be."""
    if new.parent_id is None:
        return "created", to_json({"type": new.type})
    return "created", to_json({"type": new.type, "parent": new.parent_id})


def of_claim(run: Run, *, starts: bool) -> Said:
    """Of a claim, by which an attempt starts, or only goes on."""
    kind = "started" if starts else "claimed"
    return kind, f'{{"token":{run.token},"attempt":{run.attempt}}}'


def of_finish(outcome: Finish) -> Said:
    """Of an outcome."""
    if outcome.status is _COMPLETED:
        return "completed", "{}"
    return outcome.status.value, to_json(error_of(outcome.payload))


def of_park(park: Park) -> Said:
    """Of a run that waits."""
    return "parked", f'{{"for":"{park.reason.value}","until":{park.wake_at}}}'


def of_again(retry: Again, attempt: int, wake_at: int) -> Said:
    """Of a run that is to be tried again; the error is that of the attempt before."""
    return "retried", to_json({"attempt": attempt, "at": wake_at, **error_of(retry.error)})


def of_block(block: Block) -> Said:
    """Of a run that is set aside."""
    return "blocked", to_json({"reason": block.reason.value, **error_of(block.error)})


def of_heartbeat(details: str) -> Said:
    """Of an activity that says how far it has got."""
    return "heartbeat", f'{{"details":{details}}}' if len(details) <= _SHORT else "{}"


def error_of(failure: str | None) -> dict[str, str]:
    """What the trail keeps of a failure: a run has one error, and its earlier ones are gone."""
    try:
        known = msgspec.json.decode(failure or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as broken:
        # The trail is for people; what is wrong with an error must not keep its run from ending.
        known = {"message": f"its error cannot be read: {broken}"}
    text = str(known.get("message", ""))
    return {"error": str(known.get("type", "")), "message": text if len(text) <= _SHORT else f"{text[:_SHORT]}…"}


def note_timeout(tx: Transaction, run_id: str, limit: str) -> None:
    """Say which limit was passed, if one was."""
    if limit:
        tx.note(run_id, "timed_out", to_json({"timeout": limit}))


def note_finish(tx: Transaction, run_id: str, outcome: Finish) -> None:
    """Say how a run ended."""
    if outcome.timeout:
        note_timeout(tx, run_id, outcome.timeout)
    tx.note(run_id, *of_finish(outcome))


def note_again(tx: Transaction, run_id: str, retry: Again, attempt: int, wake_at: int) -> None:
    """Say that a run is to be tried again, and why."""
    note_timeout(tx, run_id, retry.timeout)
    tx.note(run_id, *of_again(retry, attempt, wake_at))


def note_heartbeats(tx: Transaction, turn: Turn) -> None:
    """Say how far an activity has got."""
    for output in turn.outputs:
        if output.kind is OutputKind.HEARTBEAT:
            tx.note(turn.lease.run_id, *of_heartbeat(output.payload or "null"))
