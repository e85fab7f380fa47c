"""Reading the interruptions of a run."""

from __future__ import annotations

from perdure.core.effects import Output, OutputKind
from perdure.core.interruption import Interruption, to_interruption
from perdure.store.protocol import Store

_PAGE = 500


async def interruptions(store: Store, run_id: str) -> tuple[Interruption, ...]:
    """All interruptions of a run that can be read, in order."""
    found = await _all(store, run_id, OutputKind.INTERRUPTION)
    return tuple(one for output in found if (one := to_interruption(output)) is not None)


async def interruptions_since_requeue(store: Store, run_id: str) -> tuple[Interruption, ...]:
    """The interruptions of a run since it was last requeued or opened again. Without interruptions that is one read."""
    found = await interruptions(store, run_id)
    requeues = await _all(store, run_id, OutputKind.REQUEUE) if found else []
    return tuple(one for one in found if one.at > requeues[-1].at) if requeues else found


async def _all(store: Store, run_id: str, kind: OutputKind) -> list[Output]:
    found: list[Output] = []
    while True:
        page = await store.outputs(run_id, kind, "", found[-1].position if found else -1, _PAGE)
        found += page
        if len(page) < _PAGE:
            return found
