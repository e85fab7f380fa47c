from __future__ import annotations

from perdure.testing import conformance


class TestRunLogs(conformance.RunLogs): ...
