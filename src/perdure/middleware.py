"""Middleware: code around every workflow, step and activity that a worker executes."""

from perdure.core.middleware import Invocation, Middleware, Next

__all__ = [
    "Invocation",
    "Middleware",
    "Next",
]
