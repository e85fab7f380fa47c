from __future__ import annotations

from perdure.testing import conformance


class TestDeadlines(conformance.Deadlines): ...


class TestLeaving(conformance.Leaving): ...


class TestSweeping(conformance.Sweeping): ...


class TestWorkers(conformance.Workers): ...
