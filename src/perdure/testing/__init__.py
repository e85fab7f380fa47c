"""For testing workflows, and for testing the engine itself."""

from perdure.testing.environment import Environment, StillWaiting

__all__ = ["Environment", "StillWaiting"]
