"""Faults planted where runs are terminated, messages set aside and code is broken, each as a patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.model.outputs import Output, OutputKind
from perdure.core.model.record import NewMessage, Record, RecordKind
from perdure.core.model.set_aside_messages import SetAsideMessage, set_aside_of
from perdure.core.model.turn import Turn
from perdure.replay.execution import Execution
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs import set_aside_messages, terminate
from perdure.store.sql.runs.inbox import deliver
from tests.simulation.planted import Patch, fence, reword


def termination_keeps_the_token(patch: Patch) -> None:
    """A run that is terminated has the token that its worker has."""
    reword(patch, terminate, "_END", "token = token + 1", "token = token")


def terminated_run_may_write(patch: Patch) -> None:
    """The worker that held a run which was terminated may write on: only the nonce of its lease is looked at."""

    def stands(row: tuple[Any, ...], turn: Turn) -> bool:
        return bool(row[2] == turn.lease.nonce)

    fence(patch, "AND nonce = :nonce", "AND {token} IS NOT NULL AND nonce = {nonce}", stands)


def terminated_without_its_children(patch: Patch) -> None:
    """The children of a run that is terminated go on."""

    async def nothing(tx: Transaction, run_id: str, how: str = "") -> None:
        return

    patch.setattr(terminate, "stop_children", nothing)


def terminated_unknown_to_the_parent(patch: Patch) -> None:
    """The parent of a run that is terminated is not told."""

    async def only_orders(tx: Transaction, message: NewMessage | None) -> None:
        if message is not None and message.kind is RecordKind.CANCEL:
            await deliver(tx, message)

    patch.setattr(terminate, "deliver", only_orders)


def terminated_without_its_undos(patch: Patch) -> None:
    """A run that is to undo its steps ends at once."""
    patch.setattr(Execution, "_undo_without_code", lambda self, outcome, undos: self._end(outcome))


def undos_under_other_places(patch: Patch) -> None:
    """An undo is asked for a second time, at another place."""
    undo_without_code = Execution._undo_without_code

    def twice(self: Execution, outcome: Any, undos: Any) -> None:
        undo_without_code(self, outcome, undos)
        for step in list(undos.done):
            undos.append(f"{step.location}~again", step.request)

    patch.setattr(Execution, "_undo_without_code", twice)


def decided_again(patch: Patch) -> None:
    """A decision about a message does not know of an earlier one."""

    def undecided(output: Output) -> SetAsideMessage:
        return replace(set_aside_of(output), decision="")

    patch.setattr(set_aside_messages, "set_aside_of", undecided)


def set_aside_and_gone(patch: Patch) -> None:
    """A message that cannot be decoded is skipped, and kept nowhere."""
    set_refused_aside = Execution._set_refused_aside

    def unseen(self: Execution) -> None:
        set_refused_aside(self)
        kept = [one for one in self.effects if getattr(one, "kind", None) is not OutputKind.SET_ASIDE]
        self.effects[:] = kept

    patch.setattr(Execution, "_set_refused_aside", unseen)


def broken_run_begins_again(patch: Patch) -> None:
    """A run whose code was broken begins anew with the corrected code."""
    init = Execution.__init__

    def forgetful(
        self: Execution, start: Any, returns: Any, origin: Any, history: Sequence[Record], **more: Any
    ) -> None:
        was_broken = bool(history) and history[-1].kind is RecordKind.BROKEN
        init(self, start, returns, origin, () if was_broken else history, **more)
        if was_broken:
            self.next_seq = history[-1].seq + 1

    patch.setattr(Execution, "__init__", forgetful)


def bugs_fail_runs(patch: Patch) -> None:
    """A run whose code is broken has failed, and is undone."""
    patch.setattr(Execution, "is_broken", lambda self, error: False)


PLANTED_AT_ENDS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (
        termination_keeps_the_token,
        terminated_run_may_write,
        terminated_without_its_children,
        terminated_unknown_to_the_parent,
        terminated_without_its_undos,
        undos_under_other_places,
        decided_again,
        set_aside_and_gone,
        broken_run_begins_again,
        bugs_fail_runs,
    )
}
