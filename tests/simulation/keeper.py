"""A client that also starts activities, and sees to what is over: it requeues dead letters, deletes runs, and prunes
them.

It deletes only what it has started itself, so that a client that repeats a start finds the run.
"""

from __future__ import annotations

from contextlib import suppress

from perdure.client.runs.start import StartOptions
from perdure.errors import RunNotFound, UsageError
from perdure.store.sql.invariants import INVARIANTS
from perdure.workflow.activity import Activity
from tests.simulation.client import Action, Client
from tests.simulation.interpreter import call_of, is_act
from tests.simulation.steps import ACT

#: A deletion that was acknowledged holds back a run that was not over.
_DELETED = next(rule for rule in INVARIANTS if rule.promise.startswith("a deleted run is"))


class Keeper(Client):
    """See the module."""

    actions = (8, 16)

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (
            *((self._if_there(kind), weight) for kind, weight in super()._kinds()),
            (self._if_there(self._report), 4),
            (self._perform, 4), (self._requeue, 6), (self._delete, 6), (self._prune, 5),
        )  # fmt: skip

    def _if_there(self, kind: Action) -> Action:
        async def act(name: str) -> None:
            # It was pruned; whether that was right, the audit knows.
            with suppress(RunNotFound):
                await kind(name)

        return act

    async def _perform(self, name: str) -> None:
        activity = self._engine.workflows[ACT]
        assert isinstance(activity, Activity)
        call = call_of(activity, self._author.act())
        options = StartOptions(id=name)
        self._ledger.asked.add(name)
        run = await self._persist(lambda: self._engine.start(call, **options))
        self._ledger.started.add(run.id)
        self._runs.append(run)

    async def _requeue(self, name: str) -> None:
        page = await self._persist(lambda: self._engine.dead_letters.list(limit=20))
        if not page.letters:
            return
        letter = self._rng.choice(page.letters)
        if letter.type == ACT and self._rng.random() < 0.3:
            activity = self._engine.workflows[ACT]
            assert isinstance(activity, Activity)
            other = activity([], 0.0, 0, 0, False)
            decided = await self._persist(
                lambda: self._engine.dead_letters.retry(
                    letter.run_id, input=other, deadline=60.0 if letter.requeued else None
                )
            )
        else:
            decided = await self._persist(lambda: self._engine.dead_letters.retry(letter.run_id, deadline=60.0))
        self._ledger.note(name, "requeues", letter.run_id, decided.done)
        kind = "an activity" if is_act(letter.type) else "a workflow"
        self._ledger.sometimes[f"{kind} was requeued"] += bool(decided.done)
        self._ledger.sometimes["a child was requeued"] += bool(decided.done) and letter.parent_id is not None

    async def _delete(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        undo = self._rng.random() < 0.3
        try:
            done = await self._persist(
                lambda: (self._engine.runs.undelete if undo else self._engine.runs.delete)(run.id)
            )
        except (RunNotFound, UsageError) as error:
            done = False
            self._ledger.note(name, "cannot delete", run.id, type(error).__name__)
        self._ledger.sometimes["a run was brought back" if undo else "a run was deleted"] += done
        if broken := await self._store.query(_DELETED.broken_by):
            self._ledger.violated(f"not true that {_DELETED.promise}: {broken}")

    async def _prune(self, name: str) -> None:
        gone = await self._persist(lambda: self._engine.runs.prune(self._rng.choice((0.1, 1.0)), deleted=True))
        self._ledger.note(name, "prunes", gone.runs, gone.spared)
        self._ledger.sometimes["a run was pruned"] += gone.runs > 0
        self._ledger.sometimes["a run was spared because of its family"] += gone.spared > 0
