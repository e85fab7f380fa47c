"""A state machine that keeps state, draws numbers and tells the time by its own means."""

from dataclasses import dataclass

from perdure import Channel, activity
from perdure.machine import Action, Actions, StateMachine
from perdure.testing import Environment

votes = Channel("vote", str)


@dataclass
class Proposal:
    title: str
    voters: list[str]


@activity("samples.right.invite.v1", start_to_close="30s")
async def invite(voter: str) -> str:
    return f"invited {voter}"


class Approval(StateMachine[Proposal, str], type="samples.right.approval.v1"):
    messages = (votes,)

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.history: list[str] = []

    def on_start(self, input: Proposal) -> list[Action]:
        self.proposal = input
        self.opened = self.now()
        voters = list(input.voters)
        self.random.shuffle(voters)
        self.ballot = self.uuid()
        return [self.activity(voter, invite(voter)) for voter in voters] + [self.timer("end", "3d")]

    def on_message(self, name: str, value: str) -> Actions:
        self.seen.add(value)
        self.history.append(f"{value} at {self.now() - self.opened}")
        self.log.info("%s has voted", value)
        return self._close() if self.seen >= set(self.proposal.voters) else None

    def on_timer(self, id: str) -> Actions:
        return self._close()

    def _close(self) -> Action:
        return self.complete(f"{self.proposal.title}: {', '.join(sorted(self.seen))}")


WORKFLOWS = [Approval, invite]


async def drive(env: Environment) -> object:
    run = await env.start(Approval.call(Proposal("roof", ["ann", "bob"])))
    await env.send(run, "vote", "bob")
    await env.send(run, "vote", "ann")
    return await run.result()
