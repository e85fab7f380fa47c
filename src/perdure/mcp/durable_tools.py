"""Durable tools: a workflow as a tool of the user's own MCP server."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field
from typing_extensions import TypedDict

from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.session import session_of
from perdure.core.codec.plain_json import plain_json
from perdure.core.limits.key_function import Key, KeyFunction, check_key_functions
from perdure.core.model.outputs import check_stream
from perdure.core.printed_text import brief, harmless
from perdure.core.time.duration import Duration, seconds
from perdure.errors import PerdureError, RunCancelled, RunFailed, UsageError
from perdure.workflow.definition import Workflow

T = TypeVar("T")

#: Name of the argument by which a repeated call finds the run of the first one.
REQUEST_KEY = "request_key"
_CONTEXT = "mcp_context"
#: Seconds for the last items of a run that has ended.
_LAST_PROGRESS = 5.0
#: Longest progress message, in characters.
_LONGEST_MESSAGE = 500

RequestKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        description="Unique text of this request, such as a UUID. A call with the key of an earlier one gives its run.",
    ),
]


class ToolRun(TypedDict):
    """Answer of a durable tool. While `status` is `running`, call again with the same arguments to wait further."""

    run_id: str
    status: Literal["completed", "running"]
    result: Any


def add_workflow(
    server: MCPServer[Any],
    engine: Engine,
    workflow: Workflow[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    key: Callable[..., Key] | None = None,
    wait: Duration = "30s",
    stream: str | None = None,
    annotations: ToolAnnotations | None = None,
) -> None:
    """Add a workflow to an MCP server as a tool.

    A call starts a run, or finds the run of an earlier call: by `key`, a function of the workflow's arguments that
    returns the run's id, or else by the argument `request_key` that the tool then has. It returns the result if the run
    ends within `wait`, and the run's id if not; the run goes on, also if the client leaves. Items of the run's stream
    `stream` are reported as progress. A failed run is an error of the tool.
    """
    for what, given, kind in (("server", server, MCPServer), ("workflow", workflow, Workflow)):
        if not isinstance(given, kind):
            raise UsageError(f"{what}={brief(given)}: give an MCPServer of the library mcp, and a workflow")
    if stream is not None:
        check_stream(stream, None)
    computed = None if key is None else KeyFunction(key, f"key of the tool {workflow.type}")
    check_key_functions([computed], workflow.signature.names, f"the workflow {workflow.type!r}")
    tool = _DurableTool(engine, workflow, computed, seconds(wait), stream)
    server.add_tool(
        tool.function(),
        name=name or workflow.function.__name__,
        description=description or inspect.getdoc(workflow.function) or f"Run the workflow {workflow.type}.",
        annotations=annotations,
        structured_output=True,
    )


class _DurableTool:
    """The function behind a durable tool."""

    def __init__(
        self,
        engine: Engine,
        workflow: Workflow[..., Any],
        key: KeyFunction | None,
        wait: float,
        stream: str | None,
    ) -> None:
        self._engine = engine
        self._workflow = workflow
        self._key = key
        self._wait = wait
        self._stream = stream

    def function(self) -> Callable[..., Any]:
        """A function whose signature has the workflow's arguments, for the schema of the tool."""
        _, *parameters = inspect.signature(self._workflow.function, eval_str=True).parameters.values()
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        taken = {REQUEST_KEY, _CONTEXT} & {one.name for one in parameters}
        if taken:
            raise UsageError(
                f"{self._workflow.type} has a parameter {taken.pop()!r}, a name that the tool needs itself"
            )
        own = [inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)]
        if self._key is None:
            own.insert(0, inspect.Parameter(REQUEST_KEY, inspect.Parameter.KEYWORD_ONLY, annotation=RequestKey))

        async def call(**arguments: Any) -> ToolRun:
            context: Context[Any, Any] = arguments.pop(_CONTEXT)
            return await self._call(context, arguments)

        signature = inspect.Signature([*parameters, *own], return_annotation=ToolRun)
        call.__signature__ = signature  # type: ignore[attr-defined] # what `inspect.signature` looks at
        call.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        call.__name__ = self._workflow.function.__name__
        return call

    async def _call(self, context: Context[Any, Any], arguments: dict[str, Any]) -> ToolRun:
        try:
            handle = await self._start(arguments)
            return await self._result(context, handle)
        except (RunFailed, RunCancelled) as error:
            raise ToolError(harmless(str(error))) from error
        except PerdureError as error:
            raise ToolError(f"{type(error).__name__}: {harmless(str(error))}") from error

    async def _start(self, arguments: dict[str, Any]) -> Handle[Any]:
        key = arguments.pop(REQUEST_KEY, None)
        call = self._workflow(**arguments)
        if self._key is None:
            # Each tool has keys of its own.
            kind = hashlib.sha256(self._workflow.type.encode()).hexdigest()[:16]
            return await self._engine.start(call, idempotency_key=f"mcp:{kind}:{key}")
        return await self._engine.start(call, id=self._key.compute(self._workflow.signature.complete(arguments)))

    async def _result(self, context: Context[Any, Any], handle: Handle[Any]) -> ToolRun:
        system, progress = session_of(self._engine).system, None
        if self._stream is not None:
            progress = system.spawn(self._report(context, handle, self._stream), f"perdure progress of {handle.id}")
        try:
            result = await handle.result(timeout=self._wait)
            if progress is not None:
                # The stream of a run that has ended ends, too; progress that cannot be reported is no failure.
                await asyncio.wait({progress}, timeout=_LAST_PROGRESS)
        except TimeoutError:
            return ToolRun(run_id=handle.id, status="running", result=None)
        finally:
            if progress is not None:
                progress.cancel()
                await asyncio.wait({progress})
        return ToolRun(run_id=handle.id, status="completed", result=result)

    async def _report(self, context: Context[Any, Any], handle: Handle[Any], stream: str) -> None:
        async with aclosing(handle.stream(stream)) as items:
            async for item in items:
                text = item.value if isinstance(item.value, str) else plain_json(item.value)
                await context.report_progress(item.position + 1, message=harmless(text)[:_LONGEST_MESSAGE])
