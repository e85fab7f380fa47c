"""What a process that does nothing but work can do for its speed.

Not for a worker inside of somebody's application: the garbage collector and the event loop are that application's own.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
from collections.abc import Callable

#: A busy worker makes and drops objects by the million, and hardly any of them in cycles: Python's own threshold of 700 has the collector
#: go through the live runs so often that it takes a tenth of the time.
_GENERATIONS = (20_000, 20, 50)


def tune_collector() -> None:
    """Let the garbage collector look at new objects less often, and at what was imported never."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GENERATIONS)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of the extra `fast`, where it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    # By name, so that the types are the same whether it is installed or not.
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
