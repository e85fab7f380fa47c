"""Steps for processes of their own, which have to find them in a module."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from perdure import Retry, activity_info, step, step_info


class Odd(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


@step(process=True, retry=Retry.never())
def crunch(numbers: list[int]) -> dict[str, int]:
    info = step_info()
    assert info.location == "crunch"
    return {"sum": sum(numbers), "process": os.getpid(), "attempt": info.attempt}


@step(process=True, retry=Retry.never())
def fail(how: str) -> None:
    match how:
        case "plainly":
            raise LookupError("not here")
        case "oddly":
            raise Odd(1, 2)
        case "exit":
            sys.exit(3)
        case "return":
            return lambda: None  # type: ignore[return-value] # wrong on purpose


@step(process=True, retry=Retry.fixed("1ms", attempts=3))
def dies_once(marker: str) -> str:
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return f"attempt {step_info().attempt}"
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def lingers(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    time.sleep(600)


@step(process=True)
def tells(count: int) -> int:
    for number in range(count):
        step_info().emit("numbers", number)
    return count


def slow_square(number: int) -> int:
    """An activity's function."""
    activity_info().heartbeat(number)
    return number * number


@step(process=True, retry=Retry.never())
def tells_and_fails(count: int) -> None:
    for number in range(count):
        step_info().emit("words", number)
    raise LookupError("not here")


def headers_here() -> dict[str, str]:
    return dict(step_info().headers)


def add(left: int, right: int) -> int:
    return left + right
