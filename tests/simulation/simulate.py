"""The whole engine in one process, on a seed: several workers, clients and faults over one database in memory.

`simulate(seed)` lives through one world and says what it found. The same seed gives the same trace, anywhere.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct

from tests.simulation.loop import Violation
from tests.simulation.world import World

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
    activities: bool = False,
    limits: bool = False,
    streams: bool = False,
    clocks: bool = False,
    ends: bool = False,
    once: bool = False,
    others: bool = False,
) -> Report:
    """Live through the world of a seed.

    With activities, and with clients who see to what is over, it is another one; and another with all that and limits
    and breakers, or with steps that emit and end in one turn of the loop. Another one has code that is broken in some
    processes, and clients who terminate runs and send what cannot be decoded. Another one has steps that must not run
    twice, and code that swallows its cancellation or takes it back. Another one has runs that wait for runs that are
    not their children. Each of them is another one where the
    clocks of processes differ from the database's.
    """
    with _undisturbed():
        world = World(
            seed, keep_trace=keep_trace, activities=activities, limits=limits, streams=streams, clocks=clocks,
            ends=ends, once=once, others=others,
        )  # fmt: skip
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
