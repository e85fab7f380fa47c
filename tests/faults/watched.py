"""A store whose every answer is written down, with the time of the question, so that a test can see which late writes
were refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.core.model.claim import ClaimResult
from perdure.core.model.turn import Turn
from perdure.store import MUTATING_VERBS
from perdure.store.contract import Store


def watch(store: Store, answers: Path, pass_point: Callable[[str], None]) -> Store:
    """The store, with its writing verbs wrapped. Before a commit, a crash point is passed for each turn: `turn.park`,
    for example."""
    watched: Any = store
    file = os.open(answers, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for verb in MUTATING_VERBS:
        inner = getattr(watched, verb, None)
        if inner is not None:
            setattr(watched, verb, _wrap(verb, inner, file, pass_point))
    return store


def _wrap(verb: str, inner: Callable[..., Any], file: int, pass_point: Callable[[str], None]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        for turn in args[0] if verb == "commit" else ():
            pass_point(f"turn.{_describe(turn)}")
        asked = time.monotonic()
        answer = await inner(*args, **kwargs)
        for line in _lines(verb, args, answer):
            os.write(file, json.dumps({"verb": verb, "asked": asked, **line}).encode() + b"\n")
        return answer

    return call


def _lines(verb: str, args: tuple[Any, ...], answer: Any) -> list[dict[str, Any]]:
    if verb == "commit":
        return [
            {"turn": _describe(turn), "run": turn.lease.run_id, "answer": verdict}
            for turn, verdict in zip(args[0], answer, strict=True)
        ]
    if isinstance(answer, ClaimResult):
        return [{"answer": [claimed.run.id for claimed in answer.runs]}]
    return [{"answer": answer if isinstance(answer, bool | int) else None}]


def _describe(turn: Turn) -> str:
    return "go on" if turn.next is None else type(turn.next).__name__.lower()
