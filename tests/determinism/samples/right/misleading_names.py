"""Names that sound like clocks, files and randomness, and are plain data and methods."""

from dataclasses import dataclass, field

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Account:
    owner: str
    events: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.events.append("open")

    def time(self, hours: int) -> str:
        return f"{hours}:00"

    def random(self) -> str:
        return self.owner[::-1]


def now(ctx: Context) -> str:
    return ctx.now().isoformat()


def get(requests: list[str], socket: int) -> str:
    return requests[socket]


async def save(account: Account, at: str) -> str:
    return f"{account.owner} {account.events} {at[:4]}"


@workflow("samples.right.account-names.v1")
async def open_account(ctx: Context, owner: str) -> str:
    account = Account(owner)
    account.open()
    time = account.time(8)
    random = account.random
    requests = [time.upper(), random()]
    secrets = {"id": get(requests, 0), "hash": get(requests, 1)}
    id, hash = secrets["id"], secrets["hash"]
    return f"{await ctx.step(save, account, now(ctx))} {id} {hash} {time.title()}"


WORKFLOWS = [open_account]


async def drive(env: Environment) -> object:
    run = await env.start(open_account("ann"))
    return await run.result()
