from __future__ import annotations

from perdure.testing import conformance


class TestClosing(conformance.Closing): ...


class TestLostVerdicts(conformance.LostVerdicts): ...


class TestPoints(conformance.Points): ...


class TestRepeating(conformance.Repeating): ...
