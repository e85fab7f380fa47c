from __future__ import annotations

from perdure.testing import conformance


class TestFiring(conformance.Firing): ...


class TestScheduling(conformance.Scheduling): ...
