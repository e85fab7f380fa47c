"""Memory addresses serve as keys of a request; they are others after a restart."""

from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Task:
    title: str
    needs: list["Task"]


async def register(key: int, title: str) -> int:
    return key


async def link(key: int, needed: int) -> None:
    """Connect two tasks."""


@workflow("samples.project.v1")
async def import_project(ctx: Context, tasks: list[Task]) -> int:
    known: dict[int, int] = {}
    for task in tasks:
        key = id(task)  # mistake
        known[key] = await ctx.step(register, key, task.title)
        for needed in task.needs:
            await ctx.step(link, known[key], len(needed.title))
    return len(known)


WORKFLOWS = [import_project]


async def drive(env: Environment) -> object:
    plan = Task("plan", [])
    run = await env.start(import_project([plan, Task("build", [plan])]))
    return await run.result()
