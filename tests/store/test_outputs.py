from __future__ import annotations

from perdure.testing import conformance


class TestOutputs(conformance.Outputs): ...


class TestRenewal(conformance.Renewal): ...


class TestTrimming(conformance.Trimming): ...
