"""Singletons whose next run a turn may start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Park
from perdure.core.policy.singleton import SingletonPolicy, StoredSingleton, with_stored_singleton
from perdure.worker.sweeper import singleton_freed_by

OVER = Finish(Status.COMPLETED, "1")
OPTIONS = with_stored_singleton("{}", StoredSingleton(name="x/y", policy=SingletonPolicy.QUEUE))


def a_run(options: str) -> Any:
    return cast("Any", SimpleNamespace(options=options))


def test_only_the_end_of_a_singleton_lets_the_next_one_begin() -> None:
    assert singleton_freed_by(a_run(OPTIONS), OVER) == "x/y"
    assert singleton_freed_by(a_run(OPTIONS), Park(0, Reason.TIMER, 0)) is None
    assert singleton_freed_by(a_run(OPTIONS), None) is None
    assert singleton_freed_by(a_run("{}"), OVER) is None
