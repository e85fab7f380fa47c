"""What a worker says of the types that it serves."""

from __future__ import annotations

from typing import Any

from perdure.core.routing import TypeInfo
from perdure.workflow.definition import Workflow

_DESCRIPTION_CHARACTERS = 200


def described(workflow: Workflow[Any, Any]) -> TypeInfo:
    """For the registry: the first line of what its code says about itself."""
    lines = (workflow.__doc__ or "").strip().splitlines()
    description = lines[0].strip()[:_DESCRIPTION_CHARACTERS] if lines else ""
    return TypeInfo(type=workflow.type, kind="workflow", description=description)
