from __future__ import annotations

from perdure.testing import conformance


class TestListing(conformance.Listing): ...


class TestLoading(conformance.Loading): ...


class TestWatching(conformance.Watching): ...
