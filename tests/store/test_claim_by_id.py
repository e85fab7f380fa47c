from __future__ import annotations

from perdure.testing import conformance


class TestTaking(conformance.Taking): ...


class TestDueRuns(conformance.DueRuns): ...
