from __future__ import annotations

from perdure.testing import conformance


class TestWaiting(conformance.Waiting): ...


class TestObserving(conformance.Observing): ...
