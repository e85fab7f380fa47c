"""The whole engine in one process, on a seed: several workers, clients and faults over one database in memory.

`simulate(seed)` lives through one world and says what it found. The same seed gives the same trace, anywhere.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Unpack

from msgspec import Struct

from tests.simulation.loop import Violation
from tests.simulation.world import Kinds, World

__all__ = ["Report", "simulate"]


class Report(Struct, frozen=True, kw_only=True):
    """What became of one seed."""

    seed: int
    #: What went wrong; none is what is wanted.
    findings: tuple[str, ...]
    #: How often rare things happened.
    sometimes: Counter[str]
    #: Equal for equal traces.
    digest: str
    trace: tuple[str, ...]


def simulate(
    seed: int,
    *,
    keep_trace: bool = False,
    **kinds: Unpack[Kinds],
) -> Report:
    """Live through the world of a seed.

    What there is in it besides workflows and messages makes it another one.
    """
    with _undisturbed():
        world = World(seed, keep_trace=keep_trace, **kinds)
        try:
            findings = world.run()
        except Violation as violation:
            findings = [str(violation)]
        finally:
            world.close()
    ledger = world.ledger
    return Report(
        seed=seed,
        findings=tuple(findings),
        sometimes=ledger.sometimes,
        digest=ledger.digest,
        trace=tuple(ledger.trace),
    )


@contextmanager
def _undisturbed() -> Generator[None]:
    """Without the garbage collector, which runs code at any time, and without warnings about the faults."""
    logger = logging.getLogger("perdure")
    level = logger.level
    enabled = gc.isenabled()
    gc.disable()
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        if enabled:
            gc.enable()
