"""Settings that make a dedicated worker process faster.

A worker inside an application does not use them: the garbage collector and the event loop belong to the application.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
from collections.abc import Callable

#: Thresholds of the collector. A busy worker creates and drops millions of objects, hardly any of them in cycles. With
#: Python's threshold of 700 the collector scans the live runs so often that it takes a tenth of the time.
_THRESHOLDS = (20_000, 20, 50)


def tune_collector() -> None:
    """Make the garbage collector scan new objects less often, and imported modules never."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop factory of the extra `fast`; None if it is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    # Imported by name, so that type checkers see the same types without it.
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
