from __future__ import annotations

from perdure.testing import conformance


class TestFencing(conformance.Fencing): ...


class TestTurns(conformance.Turns): ...
