"""Reading the interruptions of a run."""

from __future__ import annotations

from perdure.core.model.interruption import Interruption, to_interruption
from perdure.core.model.outputs import OutputKind
from perdure.store.contract import Store

_PAGE = 500


async def interruptions(store: Store, run_id: str) -> tuple[Interruption, ...]:
    """All interruptions of a run that can be read, in order."""
    found: list[Interruption] = []
    last = -1
    while True:
        page = await store.outputs(run_id, OutputKind.INTERRUPTION, "", last, _PAGE)
        found += [one for output in page if (one := to_interruption(output)) is not None]
        if len(page) < _PAGE:
            return tuple(found)
        last = page[-1].position
