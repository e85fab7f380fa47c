"""Effects of each documented statement on each database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.run_orders import Pause, PauseKind, RunOrder
from perdure.core.model.turn import Finish, Park, Turn, TurnOutcome
from perdure.core.routing import TypeInfo
from perdure.store.plain_sql import NAMES, statement
from perdure.testing.conformance.harness import ACTOR, a_child, a_run, a_worker
from perdure.testing.conformance.harness import claim as claim_in_python
from tests.store.plain_sql.places import SECOND, Plain

TYPE = "mail.send.v1"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sql.md"


async def claimed(plain: Plain, run_id: str, **params: object) -> dict[str, object]:
    """Claim a run; return what a worker needs to know."""
    row = next(row for row in await plain.do("claim", **params) if row["id"] == run_id)
    return {"id": row["id"], "token": row["token"], "nonce": row["nonce"]}


async def a_waiting_parent(plain: Plain, child: str = "child") -> None:
    """Start a workflow in Python that has called an activity and waits for it."""
    await plain.store.create([a_run("parent", type="shop.v1")], ACTOR)
    [parent] = (await claim_in_python(plain.store, types=("shop.v1",))).runs
    turn = Turn(
        lease=parent.lease,
        children=(a_child(child, "parent", "send", type=TYPE, input='{"to":"a@b.c"}'),),
        next=Park(2**60, Reason.CHILD, 0),
    )
    assert await plain.store.commit([turn], "w1") == [TurnOutcome.APPLIED]


async def test_an_insert_is_a_run_that_any_worker_takes(plain: Plain) -> None:
    answer = await plain.one("insert", type=TYPE, input='{"to": "ü"}')
    assert answer["created"]
    run = await plain.store.get(answer["id"])
    assert run is not None
    assert (run.type, json.loads(run.input), run.queue, run.priority) == (TYPE, {"to": "ü"}, "default", 100)
    assert (run.status, run.attempt, run.max_attempts) == (Status.PENDING, 1, 0)
    assert await plain.events(run.id) == ["created"]
    # The clock of this process may be behind the server's, which stamped the row, until it is measured.
    await plain.store.now()
    [taken] = (await claim_in_python(plain.store, types=(TYPE,))).runs
    assert taken.run.id == run.id


async def test_a_second_insert_under_a_key_gives_the_run_that_is_there(plain: Plain) -> None:
    first = await plain.one("insert", type=TYPE, idempotency_key="welcome:42")
    again = await plain.one("insert", type=TYPE, idempotency_key="welcome:42", input='{"other": 1}')
    assert (again["id"], bool(first["created"]), bool(again["created"])) == (first["id"], True, False)
    assert await plain.events(first["id"]) == ["created"]
    other = await plain.one("insert", type=TYPE, idempotency_key="Welcome:42")
    assert other["id"] != first["id"]


async def test_an_insert_for_later_waits_and_a_queue_and_a_priority_are_kept(plain: Plain) -> None:
    at = await plain.store.now() + 3600 * SECOND
    run_id = await plain.insert(run_at=at, queue="slow", priority=7, max_attempts=3)
    run = await plain.store.get(run_id)
    assert run is not None
    assert (run.status, run.reason, run.wake_at) == (Status.WAITING, Reason.TIMER, at)
    assert (run.queue, run.priority, run.max_attempts) == ("slow", 7, 3)


async def test_an_insert_of_what_is_not_json_is_refused(plain: Plain) -> None:
    with pytest.raises(Exception, match=r"(?i)json|null"):
        await plain.insert(input="{to: me")
    assert (await plain.store.query("SELECT COUNT(*) FROM perdure_runs")) == [(0,)]


async def test_a_query_tells_status_result_and_error(plain: Plain) -> None:
    assert await plain.do("query", id="unknown") == []
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    assert (await plain.one("query", id=run_id))["status"] == "running"
    await plain.do("complete", **lease, output='{"sent": true}')
    answer = await plain.one("query", id=run_id)
    assert (answer["status"], json.loads(answer["output"]), answer["error"]) == ("completed", {"sent": True}, None)
    failed = await plain.insert()
    await plain.do("fail", **await claimed(plain, failed), error_type="SmtpError", error_message="it's full")
    answer = await plain.one("query", id=failed)
    assert (answer["status"], answer["error_type"], answer["error_message"]) == ("failed", "SmtpError", "it's full")


async def test_a_claim_takes_a_lease_of_its_own_on_each_run(plain: Plain) -> None:
    run_id = await plain.insert(input="[1]", max_attempts=4)
    before = await plain.store.now()
    [row] = await plain.do("claim", worker="node-1", nonce="n1", lease=100 * SECOND)
    assert (row["id"], row["token"], row["nonce"], row["type"], json.loads(row["input"])) == (
        run_id,
        1,
        "n1",
        TYPE,
        [1],
    )
    assert (row["attempt"], row["max_attempts"], row["options"], bool(row["cancelled"])) == (1, 4, "{}", False)
    assert 99 * SECOND < row["lease_until"] - before < 160 * SECOND
    assert row["details"] is None
    assert "which is not one of Python's; unless it is heard of, others get the run in " in await plain.why(run_id)
    assert await plain.do("claim", worker="node-1", nonce="n2") == []
    # After a lost answer, a repetition returns the same runs.
    assert await plain.do("claim", worker="node-1", nonce="n1") == [row]
    assert await plain.events(run_id) == ["created", "started"]
    assert (await plain.row(run_id))["worker"] == "node-1"


async def test_a_heartbeat_extends_the_lease_and_tells_of_a_cancellation(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id, lease=30 * SECOND)
    before = (await plain.row(run_id))["lease_until"]
    answer = await plain.one("heartbeat", **lease, lease=60 * SECOND)
    assert answer["lease_until"] > before
    assert not answer["cancelled"]
    assert (await plain.one("cancel", id=run_id, reason="enough", key="c1")) == {
        "outcome": "accepted",
        "status": "running",
    }
    assert (await plain.one("heartbeat", **lease))["cancelled"]
    assert await plain.do("heartbeat", **{**lease, "token": 9}, details="1") == []
    assert await plain.store.outputs(run_id, OutputKind.HEARTBEAT, "", -1, 10) == []
    assert await plain.one("fail", **lease, delay=SECOND) == {"outcome": "applied", "status": "cancelled"}
    assert await plain.events(run_id) == ["created", "started", "cancel_requested", "cancelled"]


@pytest.mark.parametrize("output", ['{"a":[1,"ö"]}', None])
async def test_a_run_that_was_asked_to_stop_and_completes_is_cancelled_with_a_partial_result(
    plain: Plain, output: str | None
) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    await plain.one("cancel", id=run_id, reason='it\'s "enough"', key="c1")
    for _ in range(2):
        # After a lost answer, a repetition changes nothing.
        assert await plain.one("complete", **lease, output=output) == {"outcome": "applied"}
    row = await plain.row(run_id)
    assert (row["status"], row["output"]) == ("cancelled", None)
    error = Failure.from_json(row["error"])
    assert (error.type, error.message) == (
        "perdure.errors.RunCancelled",
        f"run '{run_id}' was cancelled: it's \"enough\"",
    )
    assert json.loads(error.partial or "null") == json.loads(output or "null")
    assert await plain.events(run_id) == ["created", "started", "cancel_requested", "cancelled"]


async def test_a_parent_is_told_of_a_child_that_was_cancelled_and_completed(plain: Plain) -> None:
    await a_waiting_parent(plain)
    lease = await claimed(plain, "child", types=TYPE)
    await plain.one("cancel", id="child", reason="no need", key="c")
    assert await plain.one("complete", **lease, output="7") == {"outcome": "applied"}
    [told] = await plain.store.inbox("parent", 0)
    assert told.failed
    assert Failure.from_json(told.payload or "").partial == "7"


async def test_what_a_heartbeat_says_is_there_for_the_next_attempt(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    for details in ('{"page": 1}', '{"page": 2}'):
        await plain.do("heartbeat", **lease, details=details)
    await plain.do("heartbeat", **lease)
    await plain.do("fail", **lease, delay=0)
    [row] = await plain.do("claim")
    assert json.loads(row["details"]) == {"page": 2}
    [said] = await plain.store.outputs(run_id, OutputKind.HEARTBEAT, "", -1, 10)
    assert json.loads(said.payload) == {"page": 2}


async def test_a_run_ends_once_and_only_for_who_holds_it(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    for wrong in ({"token": 2}, {"nonce": "other"}, {"nonce": "NONCE-1"}, {"nonce": "nonce-1 "}, {"id": "other"}):
        assert await plain.one("complete", **{**lease, **wrong}, output="1") == {"outcome": "lost"}
        assert (await plain.one("fail", **{**lease, **wrong}))["outcome"] == "lost"
        assert await plain.one("release", **{**lease, **wrong}) == {"outcome": "lost"}
    assert await plain.one("complete", **lease, output="1") == {"outcome": "applied"}
    # A repetition after a lost answer changes nothing.
    assert await plain.one("complete", **lease, output="2") == {"outcome": "applied"}
    assert (await plain.row(run_id))["output"] == "1"
    assert await plain.events(run_id) == ["created", "started", "completed"]


async def test_a_failed_attempt_is_recorded_and_another_follows_after_the_delay(plain: Plain) -> None:
    run_id = await plain.insert(max_attempts=3)
    now = await plain.store.now()
    answer = await plain.one("fail", **await claimed(plain, run_id), delay=3600 * SECOND, error_message="first")
    assert answer == {"outcome": "applied", "status": "waiting"}
    row = await plain.row(run_id)
    assert (row["reason"], row["attempt"], row["lease_until"]) == ("retry", 2, 0)
    assert 3590 * SECOND < row["wake_at"] - now < 3610 * SECOND
    [record] = await plain.store.history(run_id)
    assert (record.kind, record.attempts, record.run_attempt, record.retry_at) == (
        RecordKind.ATTEMPT,
        1,
        1,
        row["wake_at"],
    )
    assert json.loads(record.payload or "") == {"type": "OSError", "message": "first"}
    assert await plain.events(run_id) == ["created", "started", "retried"]
    assert "The last attempt failed: OSError: first." in await plain.why(run_id)


async def test_the_last_attempt_fails_the_run(plain: Plain) -> None:
    run_id = await plain.insert(max_attempts=2)
    lease = await claimed(plain, run_id)
    assert (await plain.one("fail", **lease, delay=0))["status"] == "pending"
    # A repetition after a lost answer.
    assert (await plain.one("fail", **lease, delay=0)) == {"outcome": "applied", "status": "pending"}
    lease = await claimed(plain, run_id)
    assert lease["token"] == 2
    assert (await plain.one("fail", **lease, delay=0))["status"] == "failed"
    assert await plain.events(run_id) == ["created", "started", "retried", "started", "failed"]
    said = [json.loads(event.data) for event in await plain.store.events(run_id)]
    assert said[1] == {"token": 1, "attempt": 1}
    assert {**said[2], "at": 0} == {"attempt": 2, "at": 0, "error": "OSError", "message": "no way"}
    assert said[-1] == {"error": "OSError", "message": "no way"}
    assert len(await plain.store.history(run_id)) == 1


async def test_a_run_that_is_given_back_is_anybodys_and_has_used_up_nothing(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    assert await plain.one("release", **lease) == {"outcome": "applied"}
    assert await plain.one("complete", **lease, output="1") == {"outcome": "lost"}
    row = await plain.row(run_id)
    assert (row["status"], row["attempt"], row["claims"], row["token"]) == ("pending", 1, 0, 2)
    assert (await claimed(plain, run_id))["token"] == 3
    assert await plain.events(run_id) == ["created", "started", "released"]


@pytest.mark.parametrize("ending", ["complete", "fail", "cancel"])
async def test_a_parent_is_told_in_the_same_transaction_and_wakes_up(plain: Plain, ending: str) -> None:
    await a_waiting_parent(plain)
    if ending == "cancel":
        answer = await plain.one("cancel", id="child", reason="no need", key="c")
        assert answer == {"outcome": "accepted", "status": "cancelled"}
    else:
        lease = await claimed(plain, "child", types="mail.%")
        assert (await plain.one(ending, **lease, output='"sent"'))["outcome"] == "applied"
    [word] = await plain.store.inbox("parent", 0)
    assert (word.kind, word.name, word.key, word.failed) == (
        RecordKind.CHILD,
        "send",
        "child:child:1",
        ending != "complete",
    )
    if ending == "complete":
        assert word.payload == '"sent"'
    parent = await plain.row("parent")
    assert (parent["status"], parent["reason"], parent["inbox_seq"]) == ("pending", None, 1)


async def test_a_parent_that_is_at_work_is_marked_and_one_that_has_ended_is_left_alone(plain: Plain) -> None:
    await a_waiting_parent(plain)
    lease = await claimed(plain, "child", types=TYPE)
    await plain.store.cancel("parent", "", "c", ACTOR)
    [parent] = (await claim_in_python(plain.store, types=("shop.v1",), nonce="again")).runs
    # The run had read the cancellation by then.
    await plain.one("complete", **lease, output="1")
    assert (await plain.row("parent"))["marked"] == 1
    done = Turn(lease=parent.lease, next=Finish(Status.CANCELLED, "{}"))
    assert await plain.store.commit([done], "w1") == [TurnOutcome.APPLIED]


async def test_a_run_that_has_not_begun_is_cancelled_at_once(plain: Plain) -> None:
    run_id = await plain.insert()
    assert await plain.one("cancel", id=run_id, reason="it's over", key="c") == {
        "outcome": "accepted",
        "status": "cancelled",
    }
    assert (await plain.one("cancel", id=run_id, key="c"))["outcome"] == "duplicate"
    assert (await plain.one("cancel", id=run_id, key="d"))["outcome"] == "finished"
    assert (await plain.one("cancel", id="unknown"))["outcome"] == "unknown"
    assert "it's over" in (await plain.row(run_id))["error"]
    assert await plain.events(run_id) == ["created", "cancel_requested", "cancelled"]
    said = json.loads((await plain.store.events(run_id))[-1].data)
    assert said["message"] == f"run '{run_id}' was cancelled before it could go on: it's over"


async def test_a_run_that_has_begun_finds_the_cancellation_in_its_inbox(plain: Plain) -> None:
    await a_waiting_parent(plain)
    assert await plain.one("cancel", id="parent", reason="ö", key="c") == {"outcome": "accepted", "status": "pending"}
    [entry] = await plain.store.inbox("parent", 0)
    assert (entry.kind, entry.key, json.loads(entry.payload or "")) == (RecordKind.CANCEL, "c", "ö")


async def test_a_run_past_its_deadline_is_not_given_out_and_no_lease_outlives_one(plain: Plain) -> None:
    now = await plain.store.now()
    late, soon = a_run("late", type=TYPE, deadline=now + 1), a_run("soon", type=TYPE, deadline=now + 30 * SECOND)
    begun = a_run("begun", type=TYPE, deadline=now + 20 * SECOND, close_by=now + 25 * SECOND)
    await plain.store.create([late, soon, begun], ACTOR)
    rows = {row["id"]: row for row in await plain.do("claim", lease=60 * SECOND)}
    assert rows.keys() == {"soon", "begun"}
    assert rows["soon"]["lease_until"] == now + 30 * SECOND
    assert rows["begun"]["lease_until"] == rows["begun"]["deadline"] == now + 25 * SECOND
    await plain.do("heartbeat", **{key: rows["soon"][key] for key in ("id", "token", "nonce")}, lease=60 * SECOND)
    assert (await plain.row("soon"))["lease_until"] == now + 30 * SECOND
    assert (await plain.store.sweep(10)).expired == 1


async def test_no_worker_is_given_a_paused_run_or_a_workflow_of_pythons(plain: Plain) -> None:
    await plain.store.register(a_worker(), [TypeInfo(type="shop.v1", kind="workflow"), TypeInfo(type="mine.v1")])
    assert await plain.insert("mine.v1")
    workflow, by_type, by_queue = [await plain.insert(type) for type in ("shop.v1", "paused.v1", TYPE)]
    await plain.store.pause(Pause(kind=PauseKind.TYPE, name="paused.v1"), ACTOR)
    await plain.store.pause(Pause(kind=PauseKind.QUEUE, name="default"), ACTOR)
    assert await plain.do("claim") == []
    await plain.store.resume(PauseKind.QUEUE, "default", ACTOR)
    assert [row["id"] for row in await plain.do("claim")] == [by_queue]
    await plain.store.resume(PauseKind.TYPE, "paused.v1", ACTOR)
    assert [row["id"] for row in await plain.do("claim")] == [by_type]
    assert (await plain.row(workflow))["status"] == "pending"


async def test_a_run_that_was_paused_while_a_worker_had_it_waits_after_its_attempt(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await claimed(plain, run_id)
    await plain.store.order_run(RunOrder(run_id=run_id, kind=RecordKind.PAUSE, key="p"), ACTOR)
    assert (await plain.one("fail", **lease, delay=0))["status"] == "pending"
    assert await plain.do("claim") == []
    await plain.store.order_run(RunOrder(run_id=run_id, kind=RecordKind.RESUME, key="r"), ACTOR)
    assert [row["id"] for row in await plain.do("claim")] == [run_id]


async def test_a_worker_in_another_language_registers_its_types(plain: Plain) -> None:
    assert (await plain.one("register", type=TYPE, runtime="node", description="Sends mail."))["enabled"]
    [first] = await plain.store.types()
    assert (first.type, first.kind, first.runtime, first.description) == (TYPE, "activity", "node", "Sends mail.")
    await plain.store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
    assert not (await plain.one("register", type=TYPE, runtime="node", description="Sends mail."))["enabled"]
    assert (await plain.store.types())[0].registered_at == first.registered_at
    await plain.store.resume(PauseKind.TYPE, TYPE, ACTOR)
    await plain.do("register", type=TYPE, runtime="node")
    [later] = await plain.store.types()
    assert (later.runtime, later.description, later.enabled) == ("node", "", True)


async def test_a_type_belongs_to_the_runtime_that_registered_it_first_unless_it_is_shared(plain: Plain) -> None:
    python, shared = TypeInfo(type=TYPE), TypeInfo(type=TYPE, runtime="shared")
    assert (await plain.one("register", type=TYPE, runtime="node"))["enabled"]
    assert not (await plain.one("register", type=TYPE, runtime="go", description="no"))["enabled"]
    assert await plain.store.register(a_worker("w1"), [python, TypeInfo(type="mine.v1")]) == (TYPE,)
    assert {one.type: (one.runtime, one.description) for one in await plain.store.types()} == {
        TYPE: ("node", ""), "mine.v1": ("python", ""),
    }  # fmt: skip
    assert not (await plain.one("register", type="mine.v1", runtime="node"))["enabled"]
    mine, theirs = await plain.insert("mine.v1"), await plain.insert()
    assert [row["id"] for row in await plain.do("claim", types="%")] == [theirs]
    assert await plain.store.register(a_worker("w1"), [shared]) == ()
    assert await plain.store.register(a_worker("w2"), [python]) == ()
    assert (await plain.one("register", type="mine.v1", runtime="shared"))["enabled"]
    assert {one.runtime for one in await plain.store.types()} == {"shared"}
    assert [row["id"] for row in await plain.do("claim", types="%", nonce="again")] == [mine]


async def test_a_claim_leaves_out_the_types_of_other_runtimes(plain: Plain) -> None:
    of_node, of_none, of_all = [await plain.insert(type) for type in (TYPE, "mail.read.v1", "mail.sort.v1")]
    await plain.one("register", type=TYPE, runtime="node")
    await plain.one("register", type="mail.sort.v1", runtime="node")
    await plain.one("register", type="mail.sort.v1", runtime="shared")
    assert await plain.do("claim", types=TYPE, runtime="go") == []
    claimed = await plain.do("claim", types="mail.%", runtime="go")
    assert {row["id"] for row in claimed} == {of_none, of_all}
    assert [row["id"] for row in await plain.do("claim", types="mail.%", runtime="node")] == [of_node]


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_is_described_alike_for_every_database(name: str) -> None:
    from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE

    found = [statement(dialect, name) for dialect in (SQLITE, POSTGRES, MYSQL)]
    assert len({one.version for one in found}) == 1
    assert len({one.text.splitlines()[0] for one in found}) == 1
    assert f"| `{name}` | {found[0].version} | " in PAGE.read_text(encoding="utf-8")
    renamed = statement(POSTGRES, name, "theirs.mine_").text
    assert "theirs.mine_" in renamed
    assert "perdure_" not in renamed
