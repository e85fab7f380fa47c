from __future__ import annotations

from perdure.testing import conformance


class TestListing(conformance.Listing): ...


class TestLastChanges(conformance.LastChanges): ...


class TestLoading(conformance.Loading): ...


class TestHistories(conformance.Histories): ...


class TestWatching(conformance.Watching): ...
