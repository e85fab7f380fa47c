from __future__ import annotations

from perdure.testing import conformance


class TestFamilies(conformance.Families): ...


class TestForking(conformance.Forking): ...


class TestRecovering(conformance.Recovering): ...


class TestReopening(conformance.Reopening): ...
