"""When a worker looks at gates again."""

from __future__ import annotations

from perdure.core.admission import Admitted
from perdure.host import Host
from perdure.worker.attendance import Attendance


class Standing(Host):
    """A system whose clock stands still."""

    def monotonic(self) -> float:
        return 100.0


def test_looks_in_vain_at_gates_that_are_due_make_it_patient_up_to_a_bound() -> None:
    attendance = Attendance(Standing())
    assert not attendance.is_patient
    for _ in range(10):
        attendance.saw(Admitted(), arrived=False, due=True)
        assert attendance.is_patient
    assert attendance.expect(0, 0) == 2_000_000


def test_a_look_for_runs_that_arrived_is_not_in_vain() -> None:
    attendance = Attendance(Standing())
    attendance.saw(Admitted(), arrived=True, due=True)
    assert not attendance.is_patient
