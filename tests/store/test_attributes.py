from __future__ import annotations

from perdure.testing import conformance


class TestAttributes(conformance.Attributes): ...


class TestFilters(conformance.Filters): ...


class TestCounting(conformance.Counting): ...
