from __future__ import annotations

from perdure.testing import conformance


class TestBroadcasting(conformance.Broadcasting): ...


class TestOutputs(conformance.Outputs): ...


class TestSetAside(conformance.SetAside): ...


class TestRenewal(conformance.Renewal): ...


class TestTrimming(conformance.Trimming): ...
