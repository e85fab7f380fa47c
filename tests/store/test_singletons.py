from __future__ import annotations

from perdure.testing import conformance


class TestSingletons(conformance.Singletons): ...


class TestDebouncing(conformance.Debouncing): ...
