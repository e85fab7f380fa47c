"""Requests of one worker for runs and steps that its limits admit."""

from __future__ import annotations

from typing import Any, cast

from perdure import Limit, activity
from perdure.core.codec.codec import Codec
from perdure.core.limits.admission_requests import AdmissionPreview, AdmissionRequest, AdmissionResult
from perdure.core.time.duration import NEVER
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker.limits.gatekeeper import Gatekeeper

NOW = 1_000_000


class Still(Host):
    """A system whose clock is set by hand."""

    seconds = 100.0

    def __init__(self) -> None:
        super().__init__()
        self.monotonic: Any = lambda: self.seconds
        self.random: Any = lambda: 0.5


class Locked:
    """A store in which another worker has locked the limits."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def clock(self) -> int:
        return NOW

    async def preview_admission(self, pairs: Any, page: int) -> AdmissionPreview:
        self.asked.append("look")
        return AdmissionPreview((), NOW, NOW)

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        self.asked.append("admit")
        return AdmissionResult(next_due=NEVER, now=NOW, busy=True)


@activity("gatekeeper.limited.v1", limit=Limit("one", concurrency=1))
async def limited() -> None: ...


async def test_limits_that_another_worker_has_locked_are_left_alone_for_a_moment() -> None:
    store, system = Locked(), Still()
    keeper = Gatekeeper(cast("Store", store), system, Codec(), {limited.type: limited}, ("default",), lambda: None)
    await keeper.admit("w1", 1, alone=True, poison_after=5)
    assert store.asked == ["look", "admit"]
    again = await keeper.admit("w1", 1, alone=True, poison_after=5)
    assert store.asked == ["look", "admit"]
    assert (again.now, again.runs) == (NOW, ())
    assert NOW < again.next_due < NOW + 1_000_000
    system.seconds += (again.next_due - NOW) / 1e6 + 0.001
    await keeper.admit("w1", 1, alone=True, poison_after=5)
    assert store.asked[2:] != []
