"""Which singleton a turn may let go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from perdure.core.model import Finish, Park, Reason, Status
from perdure.core.singleton import Policy, Single, with_single
from perdure.worker.succession import name_after

OVER = Finish(Status.COMPLETED, "1")
OPTIONS = with_single("{}", Single(name="x/y", policy=Policy.QUEUE))


def a_run(options: str) -> Any:
    return cast("Any", SimpleNamespace(options=options))


def test_only_the_end_of_a_singleton_lets_the_next_one_begin() -> None:
    assert name_after(a_run(OPTIONS), OVER) == "x/y"
    assert name_after(a_run(OPTIONS), Park(0, Reason.TIMER, 0)) is None
    assert name_after(a_run(OPTIONS), None) is None
    assert name_after(a_run("{}"), OVER) is None
