"""The approval of an expense as a state machine: handlers say what is to be done next, and wait for nothing.

Run it: python examples/expenses.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import Channel, Engine, activity
from perdure.machine import Action, StateMachine

decision = Channel("decision", bool)


@dataclass
class Expense:
    who: str
    cents: int


@activity("expenses.tell.v1", start_to_close="10s")
def tell(who: str, what: str) -> None:
    print(f"dear {who}: {what}")


class Approval(StateMachine[Expense, str], type="expenses.machine.v1"):
    messages = (decision,)

    def on_start(self, input: Expense) -> list[Action]:
        """Wait for a decision, but not for ever."""
        self.expense = input
        return [self.timer("patience", "3d"), self.publish("state", "waiting")]

    def on_message(self, name: str, value: bool) -> list[Action]:
        """Tell who asked."""
        self.answer = "approved" if value else "refused"
        return [self.cancel("patience"), self.activity("answer", tell(self.expense.who, self.answer))]

    def on_timer(self, id: str) -> Action:
        """Time is up."""
        return self.complete("no one decided")

    def on_activity_completed(self, id: str, result: None) -> Action:
        """All is said."""
        return self.complete(self.answer)


async def main() -> None:
    async with Engine("sqlite://", [Approval, tell]) as engine, engine.worker():
        run = await engine.start(Approval.call(Expense("Ann", 900)), id="lunch")
        await run.send(decision, True)
        print(await run.result())
        print([record.location for record in await run.history()])


if __name__ == "__main__":
    asyncio.run(main())
