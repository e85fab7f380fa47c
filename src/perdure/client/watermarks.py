"""Watermarks of queues and types, set for all engines: once enough runs are queued, starts are refused or wait."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from perdure.core.ids import check_name
from perdure.core.option_checks import check_instance, check_whole
from perdure.core.policy.watermark import Watermark
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.client.session import Session


class Watermarks:
    """Watermarks of an engine's database, for all processes that start runs there: `engine.watermarks`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def set(self, watermark: Watermark) -> None:
        """Set a watermark, in place of the present one. Other engines follow within a few seconds."""
        check_instance("watermark", watermark, Watermark, "Watermark(queue='mail', high=1000)")
        if watermark is None:
            raise UsageError("watermark=None: to remove one, use `watermarks.remove`")
        await (await self._session.opened()).set_watermark(watermark, self._session.actor)
        self._session.backpressure.forget()

    async def remove(self, *, queue: str | None = None, type: str | None = None) -> None:
        """Remove the watermark of a queue or a type; the one given to an `Engine` applies again."""
        store = await self._session.opened()
        await store.remove_watermark(*_place(queue, type), self._session.actor)
        self._session.backpressure.forget()

    async def list(self) -> builtins.list[Watermark]:
        """List the watermarks that are set in the database."""
        return await (await self._session.opened()).watermarks()

    async def depth(self, *, queue: str | None = None, type: str | None = None, limit: int = 100_000) -> int:
        """Count the runs that are ready and wait for a worker, on a queue or of a type, up to `limit`."""
        most = min(check_whole("limit", limit, 1), 2**31)
        return await (await self._session.opened()).depth(*_place(queue, type), most)


def _place(queue: str | None, type: str | None) -> tuple[str, str]:
    if (queue is None) == (type is None):
        raise UsageError("say which: one of queue and type")
    return ("type", check_name(type, "type")) if queue is None else ("queue", check_name(queue, "queue"))
