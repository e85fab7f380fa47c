"""When a worker looks at gates again."""

from __future__ import annotations

from perdure.core.limits.admission_requests import AdmissionResult
from perdure.host import Host
from perdure.worker.limits.gatekeeper import PollPace


class Standing(Host):
    """A system whose clock stands still."""

    def monotonic(self) -> float:
        return 100.0


def test_looks_in_vain_at_gates_that_are_due_make_it_patient_up_to_a_bound() -> None:
    pace = PollPace(Standing())
    assert not pace.backs_off
    for _ in range(10):
        pace.adjust(AdmissionResult(), arrived=False, due=True)
        assert pace.backs_off
    assert pace.next_poll(0, 0) == 2_000_000


def test_a_look_for_runs_that_arrived_is_not_in_vain() -> None:
    pace = PollPace(Standing())
    pace.adjust(AdmissionResult(), arrived=True, due=True)
    assert not pace.backs_off
