from __future__ import annotations

from perdure.testing import conformance


class TestBlocked(conformance.Blocked): ...


class TestPlainSql(conformance.PlainSql): ...


class TestRuns(conformance.Runs): ...
