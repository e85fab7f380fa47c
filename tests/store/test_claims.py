from __future__ import annotations

from perdure.testing import conformance


class TestAffinity(conformance.Affinity): ...


class TestBuilds(conformance.Builds): ...


class TestClaims(conformance.Claims): ...


class TestLostClaims(conformance.LostClaims): ...


class TestOrder(conformance.Order): ...


class TestSuspects(conformance.Suspects): ...


class TestTimers(conformance.Timers): ...
