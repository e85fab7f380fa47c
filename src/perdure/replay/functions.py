"""Which function each name of a workflow stands for."""

from __future__ import annotations

from perdure.errors import DuplicateName
from perdure.replay.run_origin import Origin
from perdure.workflow.scopes import Scope


def check_function(scope: Scope, name: str, function: object, origin: Origin) -> None:
    """Raise `DuplicateName` if another function was a step of that name.

    In that scope: places elsewhere are others, and what an iteration did that is over is not known on replay.
    """
    known = scope.functions.setdefault(name, function)
    if known is not function and known != function:
        raise DuplicateName(
            f"two different functions are steps named {name!r} in run {origin.run_id!r} of {origin.type}; "
            'give one of them a name of its own: `ctx.options(name="...").step(...)`'
        )
