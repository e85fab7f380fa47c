from __future__ import annotations

from perdure.testing import conformance


class TestCancelling(conformance.Cancelling): ...


class TestChildren(conformance.Children): ...


class TestInbox(conformance.Inbox): ...


class TestParking(conformance.Parking): ...
