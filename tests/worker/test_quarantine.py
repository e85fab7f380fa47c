"""Suspects and other runs take turns, whatever each of them does."""

from __future__ import annotations

from perdure.core.model.claim import ClaimedRun
from perdure.core.model.run import Run, Status
from perdure.core.time.duration import NEVER
from perdure.testing.conformance.harness import ManualSystem
from perdure.worker.claiming.claimer import LONGEST_RESERVE, SHORTEST_RESERVE, Quarantine

LEASE = 15.0


def claimed(id: str, claims: int) -> ClaimedRun:
    run = Run(
        id=id, type="t", queue="default", priority=100, status=Status.RUNNING, reason=None, input="{}", output=None,
        error=None,
        attempt=1, generation=1, token=1, nonce="n", worker="w", wake_at=0, deadline=NEVER, created_at=0, started_at=0,
        finished_at=0,
        seed="", inbox_seq=0, inbox_read=0, claims=claims, parent_id=None, parent_location=None, idempotency_key=None,
    )  # fmt: skip
    return ClaimedRun(run, last=-1)


def test_what_is_no_suspect_begins_no_quarantine() -> None:
    quarantine = Quarantine(ManualSystem(), LEASE)
    quarantine.note_claim([claimed("a", 1), claimed("b", 2)])
    assert not quarantine.is_active(lambda _: True)


def test_a_quarantine_lasts_until_the_last_suspect_is_let_go() -> None:
    quarantine = Quarantine(ManualSystem(), LEASE)
    quarantine.note_claim([claimed("a", 3), claimed("b", 3)])
    assert quarantine.is_active(lambda _: True)
    assert quarantine.is_active(lambda id: id == "b")
    assert not quarantine.is_active(lambda id: id == "a")


def test_a_quarantine_is_over_after_a_lease() -> None:
    system = ManualSystem()
    quarantine = Quarantine(system, LEASE)
    quarantine.note_claim([claimed("a", 3)])
    assert quarantine.ends_in == LEASE
    system.advance(LEASE)
    assert not quarantine.is_active(lambda _: True)


def test_other_runs_have_their_turn_for_as_long_as_the_suspects_had() -> None:
    system = ManualSystem()
    quarantine = Quarantine(system, LEASE)
    quarantine.note_claim([claimed("a", 3)])
    system.advance(4)
    assert not quarantine.is_active(lambda _: False)
    said: list[tuple[bool, bool]] = []
    for _ in range(2):
        quarantine.reserve_slots()
        said.append((quarantine.is_due, quarantine.reserves_slots))
        system.advance(4)
    assert said == [(False, False), (True, True)]


def test_a_worker_reserves_slots_for_longer_each_time_it_was_in_vain_and_never_for_more_than_a_third_of_its_time() -> (
    None
):
    system = ManualSystem()
    quarantine = Quarantine(system, LEASE)
    lengths: list[float] = []
    for _ in range(8):
        quarantine.reserve_slots()
        lengths.append(quarantine.ends_in)
        system.advance(lengths[-1])
        assert not quarantine.reserves_slots
        system.advance(2 * lengths[-1] - 0.001)
        quarantine.reserve_slots()
        assert not quarantine.reserves_slots
        system.advance(0.002)
    assert lengths[0] == SHORTEST_RESERVE
    assert lengths == sorted(lengths)
    assert lengths[-1] == LONGEST_RESERVE
    quarantine.note_claim([claimed("a", 3)])
    system.advance(1)
    assert not quarantine.is_active(lambda _: False)
    system.advance(1)
    quarantine.reserve_slots()
    assert quarantine.ends_in == SHORTEST_RESERVE
