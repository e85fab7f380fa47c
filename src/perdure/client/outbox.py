"""The outbox: events for other systems, and the subscriptions that they are delivered to.

Everything is a run. A published event is a run of the activity type `perdure.event.v1`. It starts one run for each
subscription that wants the event, of the activity type `perdure.delivery.` and the subscription's name. So retries,
dead letters, limits, breakers and pauses of deliveries are those of activities. Both kinds of runs are queued
singletons of the event's key: the runs of one event are in line before the next event of the key is handed on.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from perdure.core.ids import check_id, check_key, check_name, child_id
from perdure.core.model.cloud_event import (
    DELIVERY_PREFIX,
    EVENT_TYPE,
    CloudEvent,
    CloudEventPage,
    PublishedEvent,
    event_attributes,
    event_of,
    event_run_id,
    listed_event,
    make_event,
    published_event,
)
from perdure.core.model.run import Run
from perdure.core.option_checks import check_list, check_text
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Singleton, SingletonPolicy
from perdure.core.printed_text import brief
from perdure.core.routing import matches
from perdure.errors import BadArguments, RunNotFound, UsageError
from perdure.workflow.activity import Activity, activity
from perdure.workflow.definition import Call, Definition, event_call
from perdure.workflow.run_settings import ActivityOptions
from perdure.workflow.step import activity_info, is_async

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.client.session import Session

#: Attempts of a delivery: after 1 s, 2 s, 4 s, up to an hour; about nine hours in all.
DELIVERY_RETRY = Retry(attempts=20, max="1h")

Deliver = Callable[[CloudEvent], Awaitable[object] | object]


class Subscription:
    """A function that gets the events of some types and sources.

    The function is an activity: `def` in a thread or `async def`, with retries, and called at least once for each
    event. It gets the next event of a key when it has returned for the one before, or when that one is a dead letter.
    """

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        *,
        events: str | Iterable[str] = "%",
        sources: str | Iterable[str] = "%",
        **options: Unpack[ActivityOptions],
    ) -> None:
        """`name` is part of the type of its deliveries, `perdure.delivery.<name>`; do not change it.

        `events` and `sources` are patterns: a type or a source, or the beginning of one followed by `%`. The options
        are those of `@activity`; `retry` makes 20 attempts by default, in about nine hours. The key of an event
        decides the order, so `singleton` is refused.
        """
        if not callable(deliver):
            raise UsageError(f"a subscription has a function that takes an event, not {brief(deliver)}")
        if "singleton" in options:
            raise BadArguments("a subscription takes no singleton: the key of an event decides the order")
        self.name = check_name(name, "name of a subscription")
        self._deliver = deliver
        self._events = _check_patterns("events", events)
        self._sources = _check_patterns("sources", sources)
        self._options: ActivityOptions = {"retry": DELIVERY_RETRY, **options}
        self.activity()

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"

    @property
    def type(self) -> str:
        """Type of the runs that deliver to it."""
        return f"{DELIVERY_PREFIX}{self.name}"

    def wants(self, event: CloudEvent) -> bool:
        """Tell whether an event is delivered to it."""
        return any(matches(one, event.type) for one in self._events) and any(
            matches(one, event.source) for one in self._sources
        )

    def activity(self) -> Activity[[CloudEvent], None]:
        """Make the activity that delivers one event."""
        function = self._deliver

        async def finish(answer: Awaitable[object]) -> None:
            await answer

        async def deliver(event: CloudEvent) -> None:
            await cast("Awaitable[object]", function(event))

        def deliver_in_thread(event: CloudEvent) -> Any:
            answer = function(event)
            # The worker awaits an awaitable; other answers mean nothing.
            return finish(answer) if inspect.isawaitable(answer) else None

        declare = activity(self.type, **self._options)
        return declare(deliver) if is_async(function) else declare(deliver_in_thread)

    async def close(self) -> None:
        """Release connections of the current event loop; the engine calls it when it is closed."""


def _check_patterns(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else check_list(name, given, "['order.%']")
    if not patterns:
        raise UsageError(f"{name}=[] would leave a subscription without events; leave it out for all")
    return tuple(check_key(pattern, f"pattern of {name}") for pattern in patterns)


def check_subscriptions(given: Iterable[Subscription]) -> tuple[Subscription, ...]:
    """Check the subscriptions of an engine. Raises `UsageError`."""
    known: dict[str, Subscription] = {}
    for one in check_list("outbox", given, "[Webhook('shop', 'https://example.com/hook', keys=...)]"):
        if not isinstance(one, Subscription):
            raise UsageError(f"outbox has {brief(one)}: give a Subscription or a Webhook of perdure.outbox")
        if known.setdefault(one.name, one) is not one:
            raise UsageError(f"two subscriptions have the name {one.name!r}; give each its own")
    return tuple(known.values())


def delivers(subscriptions: Sequence[Subscription], type: str) -> bool:
    """Tell whether a type is one of the outbox, of these subscriptions or, without any, of other engines."""
    if type == EVENT_TYPE:
        return True
    return type.startswith(DELIVERY_PREFIX) and (not subscriptions or type in {one.type for one in subscriptions})


def delivery_code(session: Session, subscriptions: Sequence[Subscription]) -> dict[str, Definition[Any, Any]]:
    """Activities that hand events on and deliver them, by type; none without subscriptions."""
    if not subscriptions:
        return {}

    @activity(EVENT_TYPE, retry=Retry(attempts=None))
    async def hand_on(event: CloudEvent, to: str | None = None) -> builtins.list[str]:
        """Start a run for each subscription that wants an event."""
        return await _hand_on(session, subscriptions, to)

    return {EVENT_TYPE: hand_on, **{one.type: one.activity() for one in subscriptions}}


async def _hand_on(session: Session, subscriptions: Sequence[Subscription], to: str | None) -> builtins.list[str]:
    own = await session.find(activity_info().run_id)
    event = event_of(own)
    wanted = [one for one in subscriptions if one.wants(event) and to in (None, one.name)]
    if to is not None and not wanted and to not in {one.name for one in subscriptions}:
        raise UsageError(f"event {event.id!r} is for the subscription {to!r}, which this engine does not have")
    if not wanted:
        return []
    runs = []
    for one in wanted:
        call = Call.named(one.type, event=msgspec.to_builtins(event))
        if event.partitionkey is not None:
            call = call.options(singleton=Singleton(event.partitionkey, SingletonPolicy.QUEUE))
        # The id follows from the event's run, so that another attempt finds the runs that exist.
        runs.append(session.new_run(call, {"id": child_id(own.id, one.name), "queue": own.queue}))
    created = await (await session.connect()).create(runs, session.actor)
    return [answer.run.id for answer in created]


class Outbox:
    """Events for other systems: `engine.outbox`."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session

    async def publish(
        self,
        type: str,
        data: object = None,
        *,
        key: str | None = None,
        subject: str | None = None,
        source: str = "perdure",
        id: str | None = None,
        connection: object = None,
    ) -> str:
        """Publish an event; returns its id. Workflows use `ctx.publish_event`.

        Events of a `key` are delivered in the order of their publication. With an `id`, publishing it twice is
        publishing it once; `RunExists` is raised if it differs. On a `connection` of yours, it is published when you
        commit. Raises `EncodeError`, `InvalidId`…
        """
        plain = msgspec.json.decode(self._session.codec.encode(data, f"data of event {brief(type)}"))
        event = make_event(type, plain, source=source, subject=subject, key=key, id=id)
        run_id = None if id is None else event_run_id(id)
        handle = await self._engine.start(
            event_call(event), id=run_id, attributes=event_attributes(event), connection=connection
        )
        return event.id or handle.id

    async def list(
        self, *, type: str | None = None, key: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> CloudEventPage:
        """List published events, the latest first, also those that are handed on already.

        `type` may end in `%`. Continue a listing from `page.cursor`.
        """
        wanted: dict[str, object] = {} if key is None else {"event_key": check_text("key", key)}
        if type is not None:
            check_text("type", type)
            wanted["event"] = ("prefix", type[:-1]) if type.endswith("%") else type
        page = await self._engine.runs.list(type=EVENT_TYPE, attributes=wanted or None, limit=limit, cursor=cursor)
        return CloudEventPage(tuple(listed_event(run) for run in page.runs), page.cursor)

    async def get(self, event_id: str) -> PublishedEvent:
        """Read an event. Raises `RunNotFound`."""
        return published_event(await self._find(event_id))

    async def deliveries(self, event_id: str) -> builtins.list[Run]:
        """Read the runs that deliver an event, one for each subscription. Raises `RunNotFound`."""
        found = await self.get(event_id)
        return [await self._session.find(run_id) for run_id in found.deliveries]

    async def replay(self, event_ids: str | Sequence[str], *, to: str | None = None) -> builtins.list[str]:
        """Deliver events again, in this order, to all subscriptions that want them or to one; returns ids of new runs.

        Receivers get the same event with the same id. Events of a key wait for those that are to be delivered already.
        A delivery that is a dead letter is retried with `engine.dead_letters.retry`. Raises `RunNotFound`.
        """
        given = (event_ids,) if isinstance(event_ids, str) else check_list("event_ids", event_ids, "['paid-17']")
        name = None if to is None else check_name(to, "name of a subscription")
        found = [(await self.get(event_id)).event for event_id in given]
        handles = [
            await self._engine.start(event_call(event, name), attributes=event_attributes(event)) for event in found
        ]
        return [handle.id for handle in handles]

    async def _find(self, event_id: str) -> Run:
        try:
            return await self._session.find(event_run_id(check_id(event_id, "id of an event")))
        except RunNotFound:
            return await self._session.find(event_id)
