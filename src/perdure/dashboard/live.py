"""Live pages: each view is drawn once for all tabs that show it, as often as the budget of statements allows.

A view is a page with its query, as one role sees it. A tab follows its view by one stream of server-sent events and
gets the content of the page when that has changed. One task draws all views in turn. It shares the poll and the budget
of `perdure.http.live`, so an open dashboard costs at most two statements a second, however many tabs there are.
Without a tab, it sleeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from perdure.client.engine import Engine
from perdure.client.session import reading_through, session_of
from perdure.core.access import Role
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import RunSnapshot
from perdure.core.system import System
from perdure.errors import EngineClosed, PerdureError
from perdure.http.api import ServerEvent
from perdure.http.live import Hub, LiveTick
from perdure.http.problems import Refused
from perdure.http.redaction import Redactor
from perdure.store.contract import MUTATING_VERBS, Store
from perdure.store.sql.dialect import counting_statements

logger = logging.getLogger("perdure.dashboard")

#: Seconds after which a view is drawn again although no change was seen: a server does not tell of every change, and
#: time itself changes some views, as when a worker gets late. With many views it takes longer, to leave a part of the
#: budget for changes that are seen: so many seconds for each statement of a round. A file tells of every change, so
#: there only time itself has to be seen.
SILENT, SILENT_TOLD, SILENT_SHARE = 2.0, 5.0, 0.75
#: Seconds for which views share a read, by verb; others share theirs only while one round of views is drawn.
_AGES = {
    "types": 30.0, "documents": 30.0, "attributes": 15.0, "pauses": 5.0, "list_dead_letters": 5.0, "count": 5.0,
    "records": 5.0, "workers": 4.0, "depth": 3.0, "outputs": 3.0,
}  # fmt: skip
_AGE = 1.0
#: Seconds after which all records of a run are read again.
_WHOLE_AGE = 30.0
#: Seconds for which views share a read for each statement after its first.
_STATEMENT_AGE = 1.0
#: A read rests for this many times as long as it took, and at most so long: a busy database is asked less often.
_REST = 50.0
_LONGEST_REST = 15.0
#: Verbs whose answers are shared.
_SHARED = frozenset(name for name, verb in vars(Store).items() if iscoroutinefunction(verb)).difference(
    MUTATING_VERBS, ("open", "close", "poll_changes")
)
#: Statements that a view is expected to cost before it was drawn once.
_FIRST_COST = 8
_BEGIN, _END = b'<main id="content">', b"</main>"


class _KnownHistory(Struct, frozen=True, kw_only=True):
    """The records of a run that were read so far."""

    generation: int
    token: int
    records: tuple[Record, ...]
    #: Time until which new records are added to these; then all of them are read.
    until: float


class SharedReads:
    """The reading verbs of a store; calls with the same arguments share one answer for a moment.

    A snapshot of a run is read by its new records alone.
    """

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._answers: dict[str, tuple[float, asyncio.Future[Any]]] = {}
        self._histories: dict[str, _KnownHistory] = {}
        #: Statements that were sent so far.
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        if name in MUTATING_VERBS:
            raise AttributeError(f"a live page only reads; it cannot {name}")
        found = self._read_snapshot if name == "snapshot" else getattr(self._store, name)
        return self._shared(name, found) if name in _SHARED else found

    def _shared(self, name: str, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **options: Any) -> Any:
            if name == "now":
                # The time as it was last measured will do, and costs nothing.
                return self._store.clock()
            key, now = f"{name}{args!r}{options!r}", self._system.monotonic()
            until, answer = self._answers.get(key, (0.0, None))
            if answer is None or until <= now:
                self._forget(now)
                least = now + _AGES.get(name, _AGE)
                asking = self._ask(key, least, verb, args, options)
                answer = cast("asyncio.Future[Any]", self._system.spawn(asking, f"live {name}"))
                self._answers[key] = least, answer
            return await asyncio.shield(answer)

        return ask

    async def _ask(
        self, key: str, least: float, verb: Callable[..., Awaitable[Any]], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """Ask the store, and share the answer for longer the more statements and time it took."""
        begun = self._system.monotonic()
        with counting_statements() as count:
            try:
                return await verb(*args, **options)
            finally:
                self.sent += count.number
                if key in self._answers:
                    now = self._system.monotonic()
                    rest = max(_STATEMENT_AGE * (count.number - 1), min(_LONGEST_REST, _REST * (now - begun)))
                    self._answers[key] = max(least, now + rest), self._answers[key][1]

    async def _read_snapshot(
        self, run_id: str, after: int = -1, kinds: Sequence[OutputKind] = (), children: int = 0
    ) -> RunSnapshot | None:
        known = self._histories.pop(run_id, None)
        if after >= 0 or known is None or known.until <= self._system.monotonic():
            known = None
        last = known.records[-1].seq if known is not None and known.records else after
        found = await self._store.snapshot(run_id, last, kinds, children)
        if found is not None and known is not None and found.run.generation != known.generation:
            known, found = None, await self._store.snapshot(run_id, -1, kinds, children)
        if found is None or after >= 0:
            return found
        run, now = found.run, self._system.monotonic()
        if known is not None:
            found = replace(found, records=(*known.records, *found.records))
        # A checkpoint trims the history, and a retry by hand, which leads to another lease, changes it.
        whole = known is not None and (
            run.token != known.token or any(one.kind is RecordKind.SCOPE for one in found.records[len(known.records) :])
        )
        until = now if whole else now + _WHOLE_AGE if known is None else known.until
        self._histories[run_id] = _KnownHistory(
            generation=run.generation, token=run.token, records=found.records, until=until
        )
        return found

    def _forget(self, now: float) -> None:
        self._answers = {key: one for key, one in self._answers.items() if one[0] > now}
        self._histories = {run_id: one for run_id, one in self._histories.items() if one.until > now}


class ViewKey(Struct, frozen=True, kw_only=True):
    """A page of this server as one role sees it."""

    path: str
    query: str
    prefix: str
    role: Role


class _Viewer(Struct, eq=False):
    """A tab: the content that it has not taken yet, and that it was sent last."""

    ready: asyncio.Event
    content: str = ""
    sent: str = ""


class _View(Struct, eq=False):
    key: ViewKey
    shown: Redactor
    viewers: list[_Viewer]
    stale: bool = False
    cost: float = _FIRST_COST
    drawn_at: float = 0.0


Draw = Callable[[Engine, ViewKey, Redactor], Awaitable[Response]]


class LiveViews:
    """The views that tabs show, and the task that draws them."""

    def __init__(self, engine: Engine, hub: Hub, draw: Draw) -> None:
        session = session_of(engine)
        self._system = session.system
        self._hub = hub
        self._draw = draw
        self._reads = SharedReads(session.store, self._system)
        self._engine = reading_through(engine, cast("Store", self._reads))
        self._guard = LoopGuard("live pages", self._system, LoopHealth(), logger)
        self._views: dict[ViewKey, _View] = {}
        self._task: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()

    async def follow(self, key: ViewKey, shown: Redactor, *, again: bool = False) -> AsyncIterator[ServerEvent | None]:
        """Follow a view: its content whenever it has changed; at once if the tab has followed it before."""
        return self._followed(key, shown, again=again)

    async def close(self) -> None:
        """Stop drawing."""
        self._views.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _followed(self, key: ViewKey, shown: Redactor, *, again: bool) -> AsyncIterator[ServerEvent | None]:
        viewer = _Viewer(asyncio.Event())
        view = self._views.setdefault(key, _View(key, shown, []))
        view.viewers.append(viewer)
        if again:
            # The page may have changed since the connection was lost.
            view.stale = True
            self._joined.set()
        if self._task is None or self._task.done():
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._system.sleep), "perdure pages")
        try:
            # First, so that the tab knows that it is connected. A browser repeats the id when it connects again.
            yield ServerEvent({}, id="1", event="hello")
            while True:
                await viewer.ready.wait()
                viewer.ready.clear()
                viewer.sent = viewer.content
                yield ServerEvent({"content": viewer.content}, event="view")
        finally:
            view.viewers.remove(viewer)
            if not view.viewers and self._views.get(key) is view:
                del self._views[key]
                self._joined.set()

    async def _run(self) -> None:
        """Draw views while a tab shows one."""
        queue = await self._hub.join(events=False)
        try:
            with suppress(EngineClosed):
                while self._views:
                    await self._changed(queue)
                    for view in sorted(self._views.values(), key=lambda one: one.drawn_at):
                        # Tabs may have left while others were drawn.
                        if view.stale and self._views.get(view.key) is view:
                            await self._draw_view(view)
                    self._guard.succeeded()
        finally:
            self._hub.leave(queue)

    async def _changed(self, queue: asyncio.Queue[LiveTick]) -> None:
        """Wait until a view has to be drawn: after a change, for a new tab, or after a while of silence."""
        if any(view.stale for view in self._views.values()):
            return
        self._joined.clear()
        waits = [self._system.spawn(one, "perdure pages wait") for one in (_taken(queue), _told(self._joined))]
        try:
            least = SILENT_TOLD if self._reads.exclusive else SILENT
            silent = max(least, SILENT_SHARE * sum(view.cost for view in self._views.values()))
            await asyncio.wait(waits, timeout=silent, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.wait(waits)
        only_joined = not waits[0].done() or waits[0].cancelled()
        if only_joined and self._joined.is_set():
            return
        while not queue.empty():
            queue.get_nowait()
        for view in self._views.values():
            view.stale = True

    async def _draw_view(self, view: _View) -> None:
        await self._hub.budget.take(view.cost)
        before = self._reads.sent
        view.stale, view.drawn_at = False, self._system.monotonic()
        content = ""
        try:
            answer = await self._draw(self._engine, view.key, view.shown)
            if answer.status_code == 200:
                content = _content_of(bytes(answer.body))
        except (PerdureError, Refused) as error:
            # Such as a run that was deleted: its page stays as it was last seen.
            logger.debug("a live page could not be drawn: %s", error)
        cost = self._reads.sent - before
        self._hub.budget.spend(cost - view.cost)
        view.cost = max(1.0, float(cost))
        for viewer in view.viewers if content else ():
            if viewer.sent != content:
                viewer.content = content
                viewer.ready.set()


async def _taken(queue: asyncio.Queue[LiveTick]) -> None:
    await queue.get()


async def _told(event: asyncio.Event) -> None:
    await event.wait()


def _content_of(page: bytes) -> str:
    """The part of a page between its frame."""
    return page.partition(_BEGIN)[2].rpartition(_END)[0].decode()
