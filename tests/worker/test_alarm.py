"""Waiting until told."""

from __future__ import annotations

import asyncio

from perdure.core.background_loops import Alarm
from perdure.host import Host


async def test_a_ring_wakes_a_wait_without_end() -> None:
    alarm = Alarm(Host())
    waiting = asyncio.create_task(alarm.wait(None))
    await asyncio.sleep(0)
    assert not waiting.done()
    alarm.ring()
    assert await asyncio.wait_for(waiting, 30)


async def test_a_ring_is_kept_for_the_next_wait_unless_it_is_forgotten() -> None:
    alarm = Alarm(Host())
    alarm.ring()
    assert await alarm.wait(0)
    assert not await alarm.wait(0)
    alarm.ring()
    alarm.forget()
    assert not await alarm.wait(0)
