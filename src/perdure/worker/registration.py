"""What a worker says of the types that it serves."""

from __future__ import annotations

from typing import Any

from perdure.core.routing import TypeInfo
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Definition

_DESCRIPTION_CHARACTERS = 200


def described(definition: Definition[Any, Any]) -> TypeInfo:
    """For the registry: the first line of what its code says about itself."""
    lines = (definition.__doc__ or "").strip().splitlines()
    description = lines[0].strip()[:_DESCRIPTION_CHARACTERS] if lines else ""
    kind = "activity" if isinstance(definition, Activity) else "workflow"
    return TypeInfo(type=definition.type, kind=kind, description=description)
