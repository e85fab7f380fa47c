"""Levels of the audit trail."""

from __future__ import annotations

import pytest

from perdure.core.audit import NEXT, REPEATED, Audit


@pytest.mark.parametrize(
    ("level", "once", "again"), [(Audit.FULL, True, True), (Audit.LIFECYCLE, True, False), (Audit.OFF, False, False)]
)
def test_a_level_writes_what_it_promises(level: Audit, once: bool, again: bool) -> None:
    assert level.writes("created") is once
    assert {level.writes(kind) for kind in REPEATED} == {again}
    assert not level.writes(NEXT)
