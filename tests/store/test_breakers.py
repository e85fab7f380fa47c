from __future__ import annotations

from perdure.testing import conformance


class TestBreaking(conformance.Breaking): ...


class TestStepsAtGates(conformance.StepsAtGates): ...
