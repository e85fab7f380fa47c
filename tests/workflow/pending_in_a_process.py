"""The function of an activity that gives out its token in a process of its own."""

from __future__ import annotations

from pathlib import Path

from perdure import Pending, activity_info


def give_out(file: str) -> int:
    Path(file).write_text(activity_info().token)
    return Pending
