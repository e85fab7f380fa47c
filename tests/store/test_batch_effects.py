"""What becomes of messages that a batch sends, on servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from perdure.core.model.record import RecordKind, SendOutcome
from perdure.store.server.batch_effects import BatchEffects
from perdure.testing.conformance.harness import START, a_message, a_run


def a_ledger() -> BatchEffects:
    tx = SimpleNamespace(now=START, notes=False, note=lambda *_: None, notify=lambda _: None)
    effects = BatchEffects(cast("Any", tx), iter(()), set())
    effects.add(a_run("r1"))
    return effects


def test_a_message_is_accepted_once() -> None:
    effects = a_ledger()
    assert effects.send(a_message("r1")) is SendOutcome.ACCEPTED
    assert effects.send(a_message("r1")) is SendOutcome.DUPLICATE
    assert len(effects.messages) == 1


def test_a_message_to_a_run_that_is_not_there_is_not_accepted() -> None:
    effects = a_ledger()
    assert effects.send(a_message("r2")) is SendOutcome.UNKNOWN
    assert effects.messages == []


def test_a_cancellation_ends_a_run_that_has_not_begun_and_what_follows_comes_too_late() -> None:
    effects = a_ledger()
    assert effects.send(a_message("r1", kind=RecordKind.CANCEL, key="stop", payload='"enough"')) is SendOutcome.ACCEPTED
    assert effects.drafts["r1"].status == "cancelled"
    assert effects.send(a_message("r1", key="late")) is SendOutcome.FINISHED
