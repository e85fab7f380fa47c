from __future__ import annotations

from perdure.testing import conformance


class TestGraphCheckpoints(conformance.GraphCheckpoints): ...
