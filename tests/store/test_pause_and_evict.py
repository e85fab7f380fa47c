from __future__ import annotations

from perdure.testing import conformance


class TestPriorities(conformance.Priorities): ...


class TestPauses(conformance.Pauses): ...


class TestSteering(conformance.Steering): ...


class TestTerminations(conformance.Terminations): ...
