"""A client that terminates runs, sends what cannot be decoded, and decides about what was set aside."""

from __future__ import annotations

from perdure.errors import RunFinished, UsageError
from tests.simulation.client import Action, Client
from tests.simulation.programs import MESSAGES

_FAMILIES = "SELECT id, parent_id FROM perdure_runs WHERE parent_id IS NOT NULL AND finished_at = 0 ORDER BY id"
_SET_ASIDE = "SELECT run_id, position FROM perdure_outputs WHERE kind = 'aside' ORDER BY failed DESC, run_id, position"


class Supervisor(Client):
    """See the module."""

    actions = (8, 16)

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (*super()._kinds(), (self._terminate, 4), (self._garble, 8), (self._decide, 6))

    async def _terminate(self, name: str) -> None:
        families = await self._store.query(_FAMILIES)
        run_id, of_child = self._rng.choice(self._runs).id, False
        if families and self._rng.random() < 0.6:
            of_child = self._rng.random() < 0.5
            run_id = self._rng.choice(families)[0 if of_child else 1]
        undo = self._rng.random() < 0.5
        try:
            done = await self._persist(lambda: self._engine.runs.terminate(run_id, f"{name} ends it", undo=undo))
        except UsageError:
            self._ledger.sometimes["a blocked run was not terminated with its undos"] += 1
            return
        self._ledger.note(name, "terminates", run_id, "with undos" if undo else "", done)
        if done:
            self._ledger.terminated.setdefault(run_id, undo)
            self._ledger.sometimes["a child was terminated"] += of_child
        else:
            self._ledger.sometimes["a termination came after the end"] += 1

    async def _garble(self, name: str) -> None:
        """Send a number where text is received."""
        run = self._rng.choice(self._runs)
        self._ledger.garbled += 1
        number = self._ledger.garbled
        message = self._rng.choice(MESSAGES)
        self._ledger.sent.add((run.id, name))
        try:
            await self._persist(lambda: run.send(message, number, key=name))
        except RunFinished:
            return
        self._ledger.received.add((run.id, name))

    async def _decide(self, name: str) -> None:
        """Deliver a message again, corrected or as it is, or drop it; perhaps one about which that was decided."""
        found = await self._store.query(_SET_ASIDE)
        if not found:
            return
        run_id, number = found[0] if self._rng.random() < 0.7 else self._rng.choice(found)
        run = await self._persist(lambda: self._engine.get(run_id))
        what = self._rng.choice(("correct", "correct", "again", "drop"))
        try:
            if what == "correct":
                await self._persist(lambda: run.deliver_again(number, f"message {name}"))
            elif what == "again":
                await self._persist(lambda: run.deliver_again(number))
            else:
                await self._persist(lambda: run.drop_message(number))
        except (RunFinished, UsageError) as error:
            self._ledger.note(name, "decides in vain", run_id, number, type(error).__name__)
            self._ledger.sometimes["a message was decided about before"] += isinstance(error, UsageError)
            return
        self._ledger.note(name, "decides", run_id, number, what)
        self._ledger.decided(run_id, number, "dropped" if what == "drop" else "delivered")
