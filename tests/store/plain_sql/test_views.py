"""The views show the tables in readable form, alike on each database."""

from __future__ import annotations

import datetime
from typing import Any

from perdure.core.model.run_orders import Pause, PauseKind
from perdure.testing.conformance.harness import ACTOR, a_worker
from tests.store.plain_sql.places import SECOND, Plain

TYPE = "mail.send.v1"


def moment(shown: Any) -> datetime.datetime:
    """Parse a time in the format of any database."""
    time = datetime.datetime.fromisoformat(shown) if isinstance(shown, str) else shown
    assert isinstance(time, datetime.datetime)
    return time.replace(tzinfo=datetime.UTC)


async def shown(plain: Plain, run_id: str) -> dict[str, Any]:
    """Return a run from its view."""
    [row] = await plain.execute(f"SELECT * FROM {plain.tables}runs_view WHERE id = '{run_id}'")
    return row


async def test_a_run_is_shown_with_its_state_its_times_and_its_error(plain: Plain) -> None:
    run_id = await plain.insert(input='{"to": "me"}', max_attempts=2)
    ready = await shown(plain, run_id)
    assert (ready["state"], ready["started"], ready["seconds"], ready["error"]) == ("pending", None, None, None)
    now = datetime.datetime.now(datetime.UTC)
    assert abs(moment(ready["created"]) - now) < datetime.timedelta(seconds=60)
    assert moment(ready["waiting_since"]) == moment(ready["created"])
    [row] = await plain.do("claim", worker="node-1")
    lease = {name: row[name] for name in ("id", "token", "nonce")}
    at_work = await shown(plain, run_id)
    assert (at_work["state"], at_work["worker"], at_work["waiting_since"]) == ("running", "node-1", None)
    assert 0 <= float(at_work["seconds"]) < 60
    await plain.do("fail", **lease, delay=3600 * SECOND, error_type="SmtpError", error_message="it's full")
    again = await shown(plain, run_id)
    assert (again["state"], again["attempt"], again["error_type"], again["error"]) == (
        "waiting: retry",
        2,
        "SmtpError",
        "it's full",
    )
    assert datetime.timedelta(minutes=55) < moment(again["wakes"]) - moment(again["waiting_since"])
    await plain.do("cancel", id=run_id)
    [row] = await plain.do("claim")
    await plain.do("fail", id=run_id, token=row["token"], nonce=row["nonce"])
    ended = await shown(plain, run_id)
    assert (ended["state"], ended["wakes"], ended["deadline"]) == ("cancelled", None, None)
    assert moment(ended["finished"]) >= moment(ended["started"])


async def test_types_workers_and_events_are_shown(plain: Plain) -> None:
    await plain.do("register", type=TYPE, runtime="node", description="Sends mail.")
    await plain.store.pause(Pause(kind=PauseKind.TYPE, name=TYPE, reason="the bank is closed"), ACTOR)
    [type] = await plain.execute(f"SELECT * FROM {plain.tables}types_view")
    assert (type["type"], type["runtime"], type["enabled"], type["description"]) == (TYPE, "node", 0, "Sends mail.")
    assert type["disabled_because"] == "the bank is closed"
    await plain.store.register(a_worker("ours"))
    [worker] = await plain.execute(f"SELECT * FROM {plain.tables}workers_view")
    assert (worker["id"], worker["status"], worker["runs"]) == ("ours", "alive", 0)
    run_id = await plain.insert()
    [event] = await plain.execute(f"SELECT * FROM {plain.tables}events_view WHERE run_id = '{run_id}'")
    assert (event["run_id"], event["kind"], event["actor"]) == (run_id, "created", "sql")
