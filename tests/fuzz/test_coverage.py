"""Every public callable is among the drawn calls, or is named here with the reason why it is not."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator

import msgspec
import pytest

from perdure import Context, Engine, Handle, Lock, blocking
from perdure.admin import EngineWorker, LockContext
from tests.fuzz.calls import PURE, namespaces
from tests.fuzz.parts import PARTS

#: Modules that users import, as the guides show them. Agent libraries have their own types and errors.
MODULES = (
    "perdure", "perdure.admin", "perdure.blocking", "perdure.dashboard", "perdure.fastapi", "perdure.http",
    "perdure.lint", "perdure.logs", "perdure.machine", "perdure.mcp", "perdure.metrics", "perdure.middleware",
    "perdure.outbox", "perdure.push", "perdure.starlette", "perdure.testing", "perdure.testing.strategies",
    "perdure.tracing",
)  # fmt: skip

#: Reasons why a callable is not drawn.
LEFT_OUT = {
    "Activity": "made by @activity",
    "Child": "made by the context, in test_a_context_refuses_what_it_cannot_use",
    "CurrentEngine": "a dependency of FastAPI, which gives the request",
    "EngineFactory": "a type of functions",
    "EnvironmentFactory": "a type of functions",
    "Definition": "made by decorators",
    "Delivery": "made by a queue",
    "Lock": "made by engine.locks",
    "NamedBranch": "made by ctx.branch",
    "Next": "a type of functions",
    "Operation": "made by the context",
    "OtherRun": "made by ctx.run",
    "Middleware": "a base class without parameters",
    "Pusher": "made by engine.pusher",
    "ReceivedQuestion": "made by the context",
    "Replacement": "made by env.replace",
    "JsonFormatter": "a formatter of the standard library, with its parameters",
    "RunFields": "a filter of the standard library, with its parameters",
    "Saga": "made by ctx.saga",
    "StateMachine": "a base class; tests/workflow/machine has its mistakes",
    "ToolRun": "a type of answers",
    "WebhookSource": "a base class",
    "Workflow": "made by @workflow",
    "activity_info": "has no parameters",
    "crash_everywhere": "starts processes for each call",
    "credentials": "has no parameters",
    "get_engine": "takes a request of the framework",
    "lint": "reads files; `perdure lint` checks its arguments",
    "python_files": "reads files; `perdure lint` checks its arguments",
    "step_info": "has no parameters",
}


def public_callables() -> Iterator[str]:
    """Names of functions, and of classes that users make; not of enumerations, errors and values that they get."""
    for module in map(importlib.import_module, MODULES):
        own = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            given = inspect.isclass(value) and issubclass(value, enum.Enum | BaseException | msgspec.Struct)
            if callable(value) and not given and not name.startswith("_") and not _is_data(value):
                yield name


def _is_data(value: object) -> bool:
    return hasattr(value, "__dataclass_fields__") and value.__module__ != "perdure.http.access"


async def test_every_public_callable_is_drawn_or_left_out_for_a_reason() -> None:
    async with Engine("sqlite://") as engine:
        called = {type(one).__name__ for one in namespaces(engine)}
    called |= {one.__name__ for one in (Context, Engine, Handle, Lock, EngineWorker, LockContext, blocking.Engine)}
    drawn = {*PURE, *PARTS, *called}
    public = set(public_callables())
    assert public - drawn - LEFT_OUT.keys() == set()
    assert LEFT_OUT.keys() - public == set()
    assert LEFT_OUT.keys() & (PURE.keys() | PARTS.keys()) == set()


@pytest.mark.parametrize("name", sorted(PARTS))
def test_each_part_has_a_name_that_leads_to_it(name: str) -> None:
    assert name.partition(".")[0] in set(public_callables()) | {"ProxyLogin"}
