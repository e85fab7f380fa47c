"""The bus on which an engine tells listeners about its work."""

from __future__ import annotations

import logging
from typing import get_type_hints

import pytest

from perdure.core import telemetry
from perdure.core.telemetry import SIGNALS, Listener, Telemetry


class Loops(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def loop_failed(self, loop: str, error: BaseException) -> None:
        self.heard.append(loop)


class Broken(Listener):
    def loop_failed(self, loop: str, error: BaseException) -> None:
        raise RuntimeError("broken listener")


def test_a_signal_without_listeners_is_none() -> None:
    bus = Telemetry()
    detach = bus.attach(Loops())
    assert bus.loop_failed is not None
    assert all(getattr(bus, name) is None for name in SIGNALS if name != "loop_failed")
    detach()
    assert bus.loop_failed is None


def test_an_error_of_a_listener_is_logged_and_neither_stops_other_listeners_nor_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, later = Telemetry(), Loops()
    bus.attach(Broken())
    bus.attach(later)
    assert bus.loop_failed is not None
    with caplog.at_level(logging.ERROR, logger="perdure.telemetry"):
        for _ in range(5):
            bus.loop_failed("claimer", ValueError())
    assert later.heard == ["claimer"] * 5
    assert [record.getMessage() for record in caplog.records] == [
        f"a listener failed {times} time(s) at the signal loop_failed" for times in (1, 2, 4)
    ]


def test_the_bus_has_the_signals_that_a_listener_can_hear() -> None:
    assert set(SIGNALS) == set(get_type_hints(Telemetry, vars(telemetry)))
