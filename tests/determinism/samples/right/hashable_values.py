"""A class with a hash of its own, in a set that is only asked for membership."""

import hashlib
from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


class Sku:
    def __init__(self, code: str) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sku) and other.code == self.code

    def __hash__(self) -> int:
        return hash(self.code)


@dataclass(frozen=True)
class Line:
    code: str
    count: int


async def pick(shelf: int, line: Line) -> str:
    return f"{line.count} x {line.code} from {shelf}"


def shelf_of(code: str) -> int:
    return int(hashlib.md5(code.encode()).hexdigest(), 16) % 10


@workflow("samples.right.picking.v1")
async def pick_all(ctx: Context, lines: list[Line]) -> list[str]:
    done: set[Sku] = set()
    picked: list[str] = []
    for line in lines:
        if Sku(line.code) in done:
            continue
        done.add(Sku(line.code))
        picked.append(await ctx.step(pick, shelf_of(line.code), line))
    return picked


WORKFLOWS = [pick_all]


async def drive(env: Environment) -> object:
    run = await env.start(pick_all([Line("a", 1), Line("b", 2), Line("a", 3)]))
    return await run.result()
