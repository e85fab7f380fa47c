from __future__ import annotations

from perdure.testing import conformance


class TestLevels(conformance.Levels):
    pass


class TestTrail(conformance.Trail):
    pass
