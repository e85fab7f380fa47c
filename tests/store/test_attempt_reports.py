"""Reports from outside about attempts at activities, on every database."""

from __future__ import annotations

from perdure.testing import conformance


class TestAttemptReports(conformance.AttemptReports): ...
