"""Operations of an agent as steps: their names, options and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal, cast

from pydantic.errors import PydanticUserError
from pydantic_ai import exceptions
from pydantic_ai.durable_exec import (
    CallableOperationBackend,
    CapabilityOperationId,
    DurableOperationId,
    EventStreamHandlerId,
    JournalOperationNamer,
    ModelRequestId,
    OperationConfigRole,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.toolsets import ToolsetTool

from perdure.core.codec.failure import Failure
from perdure.core.printed_text import brief
from perdure.errors import StepFailed, UsageError
from perdure.library_steps import LibraryErrors, execute_step, giving_up_on, safe_name
from perdure.workflow.context import running_context
from perdure.workflow.step import StepOptions

#: Key of a tool's metadata that has the options of its steps.
METADATA_KEY = "perdure"

#: Errors that another attempt would only repeat.
FINAL_ERRORS: tuple[type[Exception], ...] = (
    exceptions.UserError,
    PydanticUserError,
    exceptions.UnexpectedModelBehavior,
    exceptions.UsageLimitExceeded,
    exceptions.FallbackExceptionGroup,
)


def with_final_errors(options: StepOptions | None) -> StepOptions:
    """Check options of a step, whose retry policy gives up on errors that another attempt would only repeat."""
    return giving_up_on(options, FINAL_ERRORS)


class StepNamer(JournalOperationNamer):
    """Names of an agent's steps. They are in histories, so they never change.

    `support.model`, `support.tools.search`, `support.mcp.files.read`, `support.events`.
    """

    def __init__(self, agent_name: str, default_model: str | None) -> None:
        super().__init__(agent_name)
        self._agent = agent_name
        self._default_model = default_model

    def operation_name(self, operation_id: DurableOperationId) -> str:
        """Name of an operation, without the tool that it calls."""
        return safe_name(f"{self._agent}.{self._part(operation_id)}")

    def _part(self, operation_id: DurableOperationId) -> str:
        match operation_id:
            case ModelRequestId(model_id=model):
                # The same for streamed requests: their results are alike.
                return "model" if model in (None, self._default_model) else f"model.{model}"
            case EventStreamHandlerId():
                return "events"
            case CapabilityOperationId(capability_id=capability, operation=operation):
                return f"capability.{capability}.{operation}"
            case ToolsetGetToolsId(toolset_kind=kind, toolset_id=toolset):
                return f"{_place(kind, toolset)}.list-tools"
            case ToolsetGetInstructionsId(toolset_id=toolset):
                return f"{_place('mcp', toolset)}.instructions"
            case ToolsetValidateToolArgumentsId(toolset_kind=kind, toolset_id=toolset):
                return f"{_place(kind, toolset)}.validate"
            case ToolsetCallToolId(toolset_kind=kind, toolset_id=toolset):
                return _place(kind, toolset)
            case other:
                # The union of ids grows with minor versions.
                return super().operation_name(other).partition("__")[2]

    def invocation_name(self, operation_id: DurableOperationId, *, label: str | None) -> Any:
        """Name of a call, with the tool that it calls."""
        name = super().invocation_name(operation_id, label=label or "")
        tool = "" if label is None else safe_name(f".{label}")
        return replace(name, operation_name=self.operation_name(operation_id) + tool)


def _place(kind: str, toolset: str) -> str:
    # Tools of the agent itself are in a toolset called `<agent>`.
    own = "tools" if kind == "function" else kind
    return own if toolset == "<agent>" else f"{own}.{toolset}"


class AgentStepOptions:
    """Options of the steps of one agent, by the kind of operation."""

    def __init__(
        self,
        *,
        model: StepOptions | None,
        tools: StepOptions | None,
        mcp: StepOptions | None,
        events: StepOptions | None,
    ) -> None:
        self._by_role: dict[OperationConfigRole, StepOptions] = {
            "model": with_final_errors(model),
            "event": with_final_errors(events),
            "capability": with_final_errors(None),
            "tool": with_final_errors(tools),
        }
        self._mcp = with_final_errors(mcp)

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> StepOptions:
        """Options of an operation."""
        is_mcp = (
            isinstance(operation_id, ToolsetGetInstructionsId) or getattr(operation_id, "toolset_kind", "") == "mcp"
        )
        return self._mcp if is_mcp else self._by_role[role]

    def for_tool(
        self, role: OperationConfigRole, *, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        """Options of a tool's call, with those of the tool's metadata; False if it runs as workflow code."""
        base = self.base(role, operation_id=operation_id)
        metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
        own = (metadata or {}).get(METADATA_KEY)
        if own is None:
            return base
        if own is False:
            return False
        if not isinstance(own, dict):
            raise UsageError(
                f"metadata {METADATA_KEY!r} of tool {tool_name!r} is {brief(own)}; give a dict of options of a step, "
                "or False to run the tool as workflow code"
            )
        merged = cast("StepOptions", {**base, **own})
        return with_final_errors(merged) if "retry" in own else merged


class StepBackend(CallableOperationBackend[StepOptions]):
    """Executes operations as steps of the workflow whose code runs the agent."""

    def __init__(self, agent_name: str, default_model: str | None, options: AgentStepOptions) -> None:
        super().__init__(namer=StepNamer(agent_name, default_model), config=options)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Execute `body` as a step."""
        ctx = running_context()
        if ctx is None:
            return await body()
        try:
            return await execute_step(ctx, name, body, config)
        except StepFailed as error:
            raise _restored(error) from error.__cause__


def _restored(error: StepFailed) -> Exception:
    failure = getattr(error, "failure", None)
    with_status = isinstance(failure, Failure) and "status_code" in (failure.state or "")
    return _library_errors(with_status).restore(error)


@cache
def _library_errors(with_status: bool) -> LibraryErrors:
    """Errors of pydantic-ai. An error with an HTTP status has the name of its category, which is a class, too."""
    found: list[type[Exception]] = []
    pending: list[type[Exception]] = [
        one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)
    ]
    while pending:
        one = pending.pop()
        if one.__module__.startswith("pydantic_ai.") and one not in found:
            found.append(one)
            pending += one.__subclasses__()
    # The last class of a name counts.
    return LibraryErrors(sorted(found, key=lambda one: issubclass(one, exceptions.ModelHTTPError) == with_status))
