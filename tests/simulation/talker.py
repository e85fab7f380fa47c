"""A client that asks questions which may be refused, and that emits sticky events."""

from __future__ import annotations

from perdure.errors import QuestionRefused, RunCancelled, RunFailed, RunFinished
from tests.simulation.client import Action, Client
from tests.simulation.programs import DEMAND, EVENTS, Answers, answer_of


class Talker(Client):
    """See the module."""

    actions = (8, 16)

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (*super()._kinds(), (self._demand, 12), (self._emit_event, 3))

    async def _demand(self, name: str) -> None:
        run, expected = self._rng.choice(self._runs), answer_of(name)
        found: Answers | None
        try:
            answer = await self._persist(lambda: run.ask(DEMAND, name, returns=str, key=name, timeout=5))
        except QuestionRefused:
            self._ledger.refused.add((run.id, name))
            self._ledger.sometimes["a question was refused"] += 1
            found = Answers.REFUSED
        except (TimeoutError, RunFinished, RunFailed, RunCancelled) as error:
            self._ledger.note(name, "demands in vain", run.id, type(error).__name__)
            return
        except ValueError as error:
            self._ledger.sometimes["a question was answered with an error"] += 1
            found = Answers.ERROR if name in str(error) else None
        else:
            self._ledger.sometimes["a demand was met"] += 1
            found = expected if answer == f"answer to {name}" and expected.value > 1 else None
        if found is not expected:
            self._ledger.violated(f"run {run.id} was asked {name}: {expected} became {found}")

    async def _emit_event(self, name: str) -> None:
        event, value, replace = self._rng.choice(EVENTS), f"event {name}", self._rng.random() < 0.2
        ledger = self._ledger
        ledger.emitted_events.add(value)
        if replace:
            ledger.replaced_events.add(event)
        done = await self._persist(lambda: self._engine.events.emit(event, value, replace=replace))
        ledger.note(name, "emits", event, done)
        if done and not replace:
            first = ledger.first_events.setdefault(event, value)
            if first != value and event not in ledger.replaced_events:
                ledger.violated(f"event {event} was emitted as {first!r}, and then as {value!r}")
        elif not done:
            ledger.sometimes["a sticky event had another value"] += 1
            found = await self._persist(lambda: self._engine.events.get(event, str))
            if found is None or found.value == value:
                ledger.violated(f"event {event} was to have another value than {value!r}, and has {found}")
