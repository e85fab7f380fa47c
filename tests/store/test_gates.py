from __future__ import annotations

from perdure.testing import conformance


class TestForgetting(conformance.Forgetting): ...


class TestLooking(conformance.Looking): ...


class TestPassing(conformance.Passing): ...


class TestSetting(conformance.Setting): ...


class TestSteered(conformance.Steered): ...


class TestTakingTurns(conformance.TakingTurns): ...
