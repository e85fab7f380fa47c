"""One pusher for each engine of a test."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from perdure import Engine
from perdure.push import Pusher

_known: WeakKeyDictionary[Engine, Pusher] = WeakKeyDictionary()


def pusher_of(engine: Engine) -> Pusher:
    """The pusher of an engine, made on first use."""
    pusher = _known.get(engine)
    if pusher is None:
        pusher = _known[engine] = Pusher(engine)
    return pusher
