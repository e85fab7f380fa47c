"""Events for other systems in a simulation: each arrives at least once, those of a key in their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.model.cloud_event import EVENT_TYPE, CloudEvent

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

#: Subscriptions, and the types of events that they want.
WANTED = {"all": "%", "odd": "told.odd"}

#: Events in the order of their publication.
PUBLISHED = "CREATE TEMP TABLE published (seq INTEGER PRIMARY KEY, id TEXT, input TEXT)"
KEEP_PUBLISHED = f"""
CREATE TEMP TRIGGER keep_published AFTER INSERT ON perdure_runs WHEN NEW.type = '{EVENT_TYPE}'
BEGIN INSERT INTO published (id, input) VALUES (NEW.id, NEW.input); END
"""

Line = tuple[str, str | None]


class Arrivals:
    """What arrives where, and when."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: By subscription and key, data of events in the order of their first arrival.
        self._begun: defaultdict[Line, list[str]] = defaultdict(list)
        self._ended: set[tuple[str, str]] = set()
        #: Data of events whose publication by a client was acknowledged.
        self.published: set[str] = set()

    def begins(self, subscription: str, event: CloudEvent) -> None:
        """Note that a delivery begins: the first one of an event when the event before it is there."""
        line = self._begun[subscription, event.partitionkey]
        if event.data in line:
            self._ledger.sometimes["an event arrived more than once"] += 1
            return
        if line and event.partitionkey is not None and (subscription, line[-1]) not in self._ended:
            self._ledger.violated(f"{event.data} comes to {subscription} before {line[-1]} of its key is there")
        line.append(event.data)

    def ends(self, subscription: str, event: CloudEvent) -> None:
        """Note that an event is there."""
        self._ledger.sometimes["an event arrived"] += 1
        self._ended.add((subscription, event.data))

    def findings(self, query: Any) -> Iterator[str]:
        """What is missing, or in another order than it was published in."""
        published: defaultdict[Line, list[str]] = defaultdict(list)
        for (given,) in query("SELECT input FROM temp.published ORDER BY seq"):
            event = msgspec.json.decode(given, type=dict[str, Any])["event"]
            for name, wanted in WANTED.items():
                if wanted in ("%", event["type"]):
                    published[name, event.get("partitionkey")].append(event["data"])
        known = [one for events in published.values() for one in events]
        yield from (f"event {one} was acknowledged, and is not there" for one in self.published - set(known))
        for (name, key), events in published.items():
            begun = self._begun[name, key]
            if missing := [one for one in events if (name, one) not in self._ended]:
                yield f"{missing[0]} of key {key} did not come to {name}"
            elif key is not None and begun != events:
                yield f"events of key {key} came to {name} as {begun} instead of {events}"
