"""Attributes of runs, and listings that filter by them and by everything else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.attributes import attribute_outputs, attributes_to_json, make_attributes, make_conditions
from perdure.core.model.outputs import OutputKind
from perdure.core.model.run import CountBy, Fork, NewRun, RunFilter, RunGroup, RunPage, Status
from perdure.core.model.turn import Finish, TurnOutcome
from perdure.core.policy.retention import PruneRequest
from perdure.core.policy.singleton import Debounce
from perdure.core.time.cron import Every, to_stored
from perdure.core.time.duration import NEVER
from perdure.core.time.schedule import Schedule
from perdure.errors import StoreCorrupt
from perdure.store import Store
from perdure.store.contract import Change
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    a_child,
    a_record,
    a_run,
    claim,
    commit,
    held,
)
from perdure.workflow.run_settings import RunSettings

#: Values that no database may change.
VALUES: dict[str, Any] = {
    "text": "acme",
    "empty": "",
    "spaces": " a ",
    "quotes": "'\"\\%_\n",
    "emoji": "\N{GRINNING FACE}",
    "longest": "\N{GRINNING FACE}" * 63,
    "integer": 7,
    "negative": -(2**53),
    "largest": 2**53,
    "float": 0.1,
    "whole float": 7.0,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "yes": True,
    "no": False,
    "time": datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC),
    "long ago": datetime(1, 1, 1, tzinfo=UTC),
    "last": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
}


def with_attributes(id: str = "r1", /, *, run: Mapping[str, Any] | None = None, **values: Any) -> NewRun:
    """A run to create with attributes."""
    return a_run(id, attributes=make_attributes(values), **(run or {}))


async def shown(store: Store, id: str = "r1") -> dict[str, Any]:
    """The attributes of a run, with the type of each value."""
    found = (await store.attributes([id])).get(id, {})
    return {name: (type(value), value) for name, value in found.items()}


def typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with their types, because 7, 7.0 and True would be equal."""
    return {name: (type(value), value) for name, value in values.items()}


class Attributes:
    """Attributes belong to their run: they are created, changed and deleted with it."""

    async def test_values_come_back_as_they_were(self, store: Store) -> None:
        await store.create([a_run(attributes=make_attributes(VALUES))], ACTOR)
        assert await shown(store) == typed(VALUES)

    async def test_a_time_is_the_same_in_any_zone(self, store: Store) -> None:
        at = datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))
        await store.create([with_attributes(at=at)], ACTOR)
        assert await shown(store) == typed({"at": datetime(2026, 3, 1, 12, tzinfo=UTC)})

    async def test_a_run_without_attributes_has_no_rows(self, store: Store, harness: Harness) -> None:
        await store.create([a_run()], ACTOR)
        assert await harness.query("SELECT * FROM perdure_attributes") == []
        assert await store.attributes(["r1", "unknown"]) == {}

    async def test_they_can_be_read_in_plain_sql(self, store: Store, harness: Harness) -> None:
        await store.create([with_attributes(customer="acme", amount=12.5, vip=True)], ACTOR)
        rows = await harness.query(
            "SELECT name, kind, text_value, number_value, created_at FROM perdure_attributes WHERE run_id = 'r1' "
            "ORDER BY name"
        )
        [run] = await store.get_many(["r1"])
        assert rows == [
            ("amount", "float", None, 12.5, run.created_at),
            ("customer", "text", "acme", None, run.created_at),
            ("vip", "bool", None, 1.0, run.created_at),
        ]

    async def test_a_turn_sets_and_removes_them(self, store: Store) -> None:
        lease = await held(store, attributes=make_attributes({"phase": "new", "amount": 1, "kept": True}))
        outputs = attribute_outputs({"phase": "paid", "amount": None, "at": datetime(2026, 1, 1, tzinfo=UTC)})
        assert await commit(store, lease, a_record(0), outputs=tuple(outputs)) is TurnOutcome.APPLIED
        expected = {"at": datetime(2026, 1, 1, tzinfo=UTC), "kept": True, "phase": "paid"}
        assert await shown(store) == typed(expected)

    async def test_the_last_value_of_a_turn_counts(self, store: Store) -> None:
        lease = await held(store)
        values: list[dict[str, Any]] = [{"a": 1, "b": 1}, {"a": "two", "b": None}, {"a": 3.5}]
        outputs = [output for one in values for output in attribute_outputs(one)]
        await commit(store, lease, a_record(0), outputs=tuple(outputs))
        assert await shown(store) == typed({"a": 3.5})

    async def test_a_turn_whose_lease_is_lost_sets_nothing(self, store: Store) -> None:
        lease = await held(store, attributes=make_attributes({"phase": "new"}))
        lost = replace(lease, nonce="another")
        outputs = tuple(attribute_outputs({"phase": "paid"}))
        assert await commit(store, lost, a_record(0), outputs=outputs) is TurnOutcome.LOST
        assert await shown(store) == typed({"phase": "new"})

    async def test_the_same_value_again_is_not_written(self, store: Store, harness: Harness) -> None:
        lease = await held(store, attributes=make_attributes({"phase": "new", "amount": 7}))
        heard: list[Change] = []
        store.subscribe(heard.append)
        outputs = tuple(attribute_outputs({"phase": "new", "amount": 7, "missing": None}))
        await commit(store, lease, a_record(0), outputs=outputs)
        assert [change for change in heard if change & Change.OUTPUT] == []
        await commit(store, lease, a_record(1), outputs=tuple(attribute_outputs({"amount": 7.0})))
        assert await shown(store) == typed({"amount": 7.0, "phase": "new"})
        assert [change for change in heard if change & Change.OUTPUT] != []

    async def test_a_turn_that_is_repeated_sets_them_once(self, store: Store) -> None:
        lease = await held(store)
        for _ in range(2):
            turn = (lease, a_record(0))
            assert await commit(store, *turn, outputs=tuple(attribute_outputs({"a": 1}))) is TurnOutcome.APPLIED
        assert await shown(store) == typed({"a": 1})

    async def test_outputs_of_the_same_turn_are_written_too(self, store: Store) -> None:
        lease = await held(store)
        state = replace(attribute_outputs({"phase": "paid"})[0], kind=OutputKind.STATE, payload='"paid"')
        await commit(store, lease, a_record(0), outputs=(*attribute_outputs({"a": 1}), state))
        rows = await store.outputs("r1", state.kind, None, -1, 10)
        assert [(row.name, row.payload) for row in rows] == [("phase", '"paid"')]
        assert await shown(store) == typed({"a": 1})

    async def test_children_have_their_own(self, store: Store) -> None:
        parent = await held(store, "parent", attributes=make_attributes({"customer": "acme"}))
        child = a_child("child", attributes=make_attributes({"sku": "x1"}))
        await commit(store, parent, a_record(0), children=(child, a_child("other")))
        assert await shown(store, "child") == typed({"sku": "x1"})
        assert await shown(store, "other") == {}
        assert await shown(store, "parent") == typed({"customer": "acme"})

    async def test_a_second_start_of_an_id_changes_nothing(self, store: Store) -> None:
        first = with_attributes(customer="acme")
        for _ in range(2):
            [answer] = await store.create([first], ACTOR)
            assert answer.created
        other = with_attributes(run={"write_id": "other"}, customer="other", more=1)
        [answer] = await store.create([other], ACTOR)
        assert not answer.created
        assert await shown(store) == typed({"customer": "acme"})

    async def test_a_debounced_start_sets_those_of_the_last(self, store: Store) -> None:
        single = RunSettings(single=Debounce("10s").to_stored(TYPE)).to_json()
        for number in range(2):
            new = with_attributes(f"r{number}", run={"options": single}, number=number, **{f"only{number}": True})
            await store.create([new], ACTOR)
        assert await shown(store, "r0") == typed({"number": 1, "only0": True, "only1": True})

    async def test_a_fork_has_those_it_was_given(self, store: Store) -> None:
        await store.create([with_attributes(customer="acme")], ACTOR)
        new = with_attributes("r2", customer="acme")
        fork = Fork(run=new, source="r1", step="", records=(), started_at=0, seed="")
        assert (await store.fork(fork, ACTOR)).created
        assert await shown(store, "r2") == typed({"customer": "acme"})

    async def test_a_schedule_gives_them_to_its_runs(self, store: Store, harness: Harness) -> None:
        spec = to_stored(Every("1h", start=datetime(2020, 1, 1, tzinfo=UTC)))
        values: dict[str, Any] = {"origin": "nightly", "level": 2}
        schedule = Schedule(
            id="nightly", spec=spec, type=TYPE, attributes=attributes_to_json(make_attributes(values)), due_at=NEVER
        )
        await store.save_schedule(schedule, 0, "w", "schedule_created", ACTOR)
        [run_id] = await store.trigger("nightly", [], "key", ACTOR) or []
        assert await shown(store, run_id) == typed(values)
        kept = await store.schedule("nightly")
        assert kept is not None
        assert kept.attributes == schedule.attributes

    async def test_pruning_deletes_them(self, store: Store, harness: Harness) -> None:
        lease = await held(store, attributes=make_attributes({"customer": "acme"}))
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        assert (await store.prune(PruneRequest(before=NEVER), 10, None, ACTOR)).runs == 1
        assert await harness.query("SELECT * FROM perdure_attributes") == []

    async def test_those_of_an_earlier_run_of_the_id_are_not_shown(self, store: Store, harness: Harness) -> None:
        await store.create([with_attributes(customer="acme", amount=1)], ACTOR)
        # As a worker of an older version prunes.
        await harness.execute("DELETE FROM perdure_runs WHERE id = 'r1'")
        await harness.execute("DELETE FROM perdure_events WHERE run_id = 'r1'")
        harness.system.advance(1)
        await store.create([with_attributes(run={"write_id": "second"}, customer="other")], ACTOR)
        assert await shown(store) == typed({"customer": "other"})
        page = await store.list(RunFilter(attributes=make_conditions({"amount": 1})), 10, None)
        assert page.runs == ()
        page = await store.list(RunFilter(attributes=make_conditions({"amount": (">", 0)})), 10, None)
        assert page.runs == ()

    async def test_a_damaged_row_is_named(self, store: Store, harness: Harness) -> None:
        await store.create([with_attributes(customer="acme"), with_attributes("r2", customer="b")], ACTOR)
        await harness.execute("UPDATE perdure_attributes SET text_value = NULL WHERE run_id = 'r1'")
        with pytest.raises(StoreCorrupt, match=r"perdure_attributes.*'r1'.*'customer'"):
            await store.attributes(["r1"])
        assert await shown(store, "r2") == typed({"customer": "b"})
        page = await store.list(RunFilter(), 10, None)
        assert [run.attributes for run in page.runs] == [{"customer": "b"}, {}]


async def pages(store: Store, limit: int, filter: RunFilter) -> list[RunPage]:
    """All pages of a listing."""
    found = [await store.list(filter, limit, None)]
    while found[-1].cursor is not None:
        found.append(await store.list(filter, limit, found[-1].cursor))
    return found


async def ids(store: Store, limit: int = 100, **filter: Any) -> list[str]:
    """Ids that a listing shows, over all pages."""
    attributes = make_conditions(filter.pop("attributes", None))
    wanted = RunFilter(attributes=attributes, **filter)
    return [run.id for page in await pages(store, limit, wanted) for run in page.runs]


class Filters:
    """Every filter alone and with others, forwards and backwards, with any number of candidates."""

    @pytest.fixture
    async def some(self, store: Store, harness: Harness) -> list[str]:
        """Twelve runs, a second apart, oldest first."""
        for number in range(12):
            values: dict[str, Any] = {
                "number": number,
                "share": number / 4,
                "customer": ("acme", "beta", "\N{LATIN SMALL LETTER E WITH ACUTE}clair")[number % 3],
                "vip": number % 2 == 0,
                "at": datetime(2026, 1, 1 + number, tzinfo=UTC),
            }
            if number == 5:
                del values["number"]
            new = a_run(
                f"{'job' if number % 4 else 'order'}-{number:02}",
                type=OTHER_TYPE if number % 5 == 0 else TYPE,
                queue="slow" if number % 2 else "default",
                attributes=make_attributes(values),
            )
            await store.create([new], ACTOR)
            harness.system.advance(1)
        return [run.id for page in reversed(await pages(store, 100, RunFilter())) for run in reversed(page.runs)]

    def picked(self, some: list[str], *numbers: int) -> list[str]:
        return [some[number] for number in numbers]

    async def test_listings_have_the_attributes(self, store: Store, some: list[str]) -> None:
        [page] = await pages(store, 100, RunFilter(id_prefix="order-08"))
        [run] = page.runs
        assert run.attributes == {
            "number": 8,
            "share": 2.0,
            "customer": "\N{LATIN SMALL LETTER E WITH ACUTE}clair",
            "vip": True,
            "at": datetime(2026, 1, 9, tzinfo=UTC),
        }

    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [
            ({"customer": "acme"}, (9, 6, 3, 0)),
            ({"customer": "ACME"}, ()),
            ({"customer": ("in", ["beta", "acme"])}, (10, 9, 7, 6, 4, 3, 1, 0)),
            ({"customer": ("in", [])}, ()),
            ({"customer": ("prefix", "b")}, (10, 7, 4, 1)),
            ({"customer": ("prefix", "\N{LATIN SMALL LETTER E WITH ACUTE}")}, (11, 8, 5, 2)),
            ({"customer": ("prefix", "")}, tuple(range(11, -1, -1))),
            ({"customer": (">", "b")}, (11, 10, 8, 7, 5, 4, 2, 1)),
            ({"customer": [(">=", "acme"), ("<=", "beta")]}, (10, 9, 7, 6, 4, 3, 1, 0)),
            ({"number": 7}, (7,)),
            ({"number": 7.0}, (7,)),
            ({"number": ("<", 3)}, (2, 1, 0)),
            ({"number": ("<=", 3)}, (3, 2, 1, 0)),
            ({"number": (">", 9)}, (11, 10)),
            ({"number": [(">=", 4), ("<", 8)]}, (7, 6, 4)),
            ({"share": ("in", [0.25, 2])}, (8, 1)),
            ({"vip": True}, (10, 8, 6, 4, 2, 0)),
            ({"vip": False}, (11, 9, 7, 5, 3, 1)),
            ({"vip": 1}, ()),
            ({"number": True}, ()),
            ({"at": datetime(2026, 1, 3, tzinfo=UTC)}, (2,)),
            ({"at": (">=", datetime(2026, 1, 11, tzinfo=UTC))}, (11, 10)),
            ({"missing": "x"}, ()),
            ({"customer": "acme", "vip": True}, (6, 0)),
            ({"customer": "acme", "number": (">", 3), "vip": False}, (9,)),
            ({"customer": 7}, ()),
        ],
    )
    @pytest.mark.parametrize("limit", [1, 3, 100])
    async def test_attributes_are_compared(
        self, store: Store, some: list[str], wanted: dict[str, Any], numbers: tuple[int, ...], limit: int
    ) -> None:
        expected = self.picked(some, *numbers)
        assert await ids(store, limit, attributes=wanted) == expected
        assert await ids(store, limit, attributes=wanted, oldest=True) == expected[::-1]

    @pytest.mark.parametrize(
        ("filter", "numbers"),
        [
            ({"id_prefix": "order-"}, (8, 4, 0)),
            ({"id_prefix": "order-08"}, (8,)),
            ({"id_prefix": "ORDER"}, ()),
            ({"type": OTHER_TYPE}, (10, 5, 0)),
            ({"queue": "slow", "type": OTHER_TYPE}, (5,)),
            ({"roots": True}, tuple(range(11, -1, -1))),
            ({"parent_id": "none"}, ()),
            ({"status": (Status.PENDING,)}, tuple(range(11, -1, -1))),
            ({"status": (Status.PENDING, Status.FAILED), "id_prefix": "order"}, (8, 4, 0)),
            ({"status": (Status.COMPLETED,)}, ()),
            ({"deleted": True}, ()),
            ({"created_after": START + 8 * SECOND, "id_prefix": "job"}, (11, 10, 9)),
            ({"created_before": START + 2 * SECOND, "attributes": {"vip": True}}, (0,)),
            ({"queue": "slow", "attributes": {"customer": "acme"}}, (9, 3)),
            ({"id_prefix": "job", "attributes": {"number": ("<", 4)}}, (3, 2, 1)),
            ({"status": (Status.PENDING,), "attributes": {"number": ("<", 4)}, "type": OTHER_TYPE}, (0,)),
            ({"schedule": "order"}, ()),
        ],
    )
    async def test_filters_are_combined(
        self, store: Store, some: list[str], filter: dict[str, Any], numbers: tuple[int, ...]
    ) -> None:
        expected = self.picked(some, *numbers)
        for limit in (1, 2, 100):
            assert await ids(store, limit, **filter) == expected
            assert await ids(store, limit, **filter, oldest=True) == expected[::-1]

    @pytest.mark.parametrize(
        "filter",
        [
            {},
            {"id_prefix": "job"},
            {"attributes": {"number": (">=", 0)}},
            # Of few different values.
            {"attributes": {"customer": (">=", "acme")}},
            {"roots": True},
        ],
    )
    @pytest.mark.parametrize("oldest", [False, True])
    async def test_the_way_back_shows_the_same_pages(
        self, store: Store, some: list[str], filter: dict[str, Any], oldest: bool
    ) -> None:
        filter = {**filter, "attributes": make_conditions(filter.get("attributes"))}
        wanted = RunFilter(**filter, oldest=oldest)
        forth = await pages(store, 4, wanted)
        assert forth[0].previous is None
        page = forth[-1]
        for expected in forth[-2::-1]:
            assert page.previous is not None
            page = await store.list(wanted, 4, page.previous)
            assert [run.id for run in page.runs] == [run.id for run in expected.runs]
            assert page.cursor is not None
        # The first page has none before it; only going back finds out.
        assert page.previous is None
        again = await store.list(wanted, 4, page.cursor)
        assert [run.id for run in again.runs] == [run.id for run in forth[1].runs]

    async def test_runs_created_meanwhile_shift_nothing(self, store: Store, some: list[str]) -> None:
        newest = await store.list(RunFilter(), 4, None)
        oldest = await store.list(RunFilter(oldest=True), 8, None)
        await store.create([a_run("new")], ACTOR)
        second = await store.list(RunFilter(), 4, newest.cursor)
        assert [run.id for run in second.runs] == self.picked(some, 7, 6, 5, 4)
        back = await store.list(RunFilter(), 4, second.previous)
        assert [run.id for run in back.runs] == self.picked(some, 11, 10, 9, 8)
        assert [run.id for run in (await store.list(RunFilter(), 4, back.previous)).runs] == ["new"]
        last = await store.list(RunFilter(oldest=True), 8, oldest.cursor)
        assert [run.id for run in last.runs] == [*self.picked(some, 8, 9, 10, 11), "new"]

    async def test_an_empty_page_leads_back_to_the_last_run(self, store: Store, some: list[str]) -> None:
        [page] = await pages(store, 100, RunFilter(oldest=True))
        after = await store.list(RunFilter(), 5, (await store.list(RunFilter(), 11, None)).cursor)
        assert [run.id for run in after.runs] == [some[0]]
        await store.create([a_run("gone")], ACTOR)
        before = await store.list(RunFilter(oldest=True), 12, None)
        await self.remove(store, "gone")
        empty = await store.list(RunFilter(oldest=True), 5, before.cursor)
        assert (empty.runs, empty.cursor) == ((), None)
        back = await store.list(RunFilter(oldest=True), 5, empty.previous)
        assert [run.id for run in back.runs] == [run.id for run in page.runs[-5:]]

    async def remove(self, store: Store, id: str) -> None:
        """End a run and delete it."""
        await store.cancel(id, '""', "key", ACTOR)
        await store.delete(id, "", ACTOR)

    async def test_a_scan_stops_and_goes_on(self, store: Store, some: list[str]) -> None:
        found: list[str] = []
        cursor, calls = None, 0
        while True:
            page = await store.list(RunFilter(type=OTHER_TYPE), 10, cursor, scan=4)
            found += [run.id for run in page.runs]
            cursor, calls = page.cursor, calls + 1
            if cursor is None:
                break
        assert found == self.picked(some, 10, 5, 0)
        assert calls >= 3

    async def test_deleted_runs_are_left_out_or_asked_for(self, store: Store, some: list[str]) -> None:
        await self.remove(store, some[3])
        await self.remove(store, some[7])
        assert await ids(store, deleted=True) == self.picked(some, 7, 3)
        assert some[3] not in await ids(store)
        assert len(await ids(store, deleted=None)) == 12
        assert await ids(store, attributes={"number": 3}) == []
        assert await ids(store, attributes={"number": 3}, deleted=True) == self.picked(some, 3)

    async def test_children_and_roots_are_told_apart(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, a_record(0), children=(a_child("c1"), a_child("c2", type=OTHER_TYPE)))
        assert await ids(store, roots=True) == ["parent"]
        assert await ids(store, parent_id="parent") == ["c2", "c1"]
        assert await ids(store, parent_id="parent", type=OTHER_TYPE) == ["c2"]
        assert await ids(store, parent_id="parent", roots=True) == []

    async def test_runs_of_a_schedule_are_found_by_it(self, store: Store) -> None:
        names = ["a@2026-01-01T00:00:00Z", "a@by-hand", "a@b@2026-01-01T00:00:00Z", "ab@2026-01-01T00:00:00Z", "a"]
        await store.create([a_run(name) for name in names], ACTOR)
        assert sorted(await ids(store, schedule="a")) == sorted(names[:2])
        assert await ids(store, schedule="a@b") == [names[2]]
        assert await ids(store, schedule="a", id_prefix="a@2") == [names[0]]

    async def test_errors_are_searched(self, store: Store) -> None:
        uber = "\N{LATIN SMALL LETTER U WITH DIAERESIS}ber"
        errors = {
            "r1": Failure(type="shop.CardDeclined", message='Card "4242" was declined: 100% sure', traceback="needle"),
            "r2": Failure(
                type="builtins.TimeoutError", message="no answer from \N{LATIN SMALL LETTER U WITH DIAERESIS}ber"
            ),
            "r3": Failure(type="shop.Other", message="line one\nline two"),
        }
        for id, error in errors.items():
            await commit(store, await held(store, id), next=Finish(Status.FAILED, error.to_json()))
        await store.create([a_run("r4")], ACTOR)
        expected = {
            "declined": ["r1"],
            "DECLINED": ["r1"],
            'card "4242"': ["r1"],
            "100% SURE": ["r1"],
            "timeouterror": ["r2"],
            f"{uber[0]}BER": ["r2"],
            uber[0]: ["r2"],
            "one\nline": ["r3"],
            "shop.": ["r3", "r1"],
            "needle": [],
            "1__%": [],
        }
        found = {text: await ids(store, error=text) for text in expected}
        assert {text: sorted(one) for text, one in found.items()} == {t: sorted(one) for t, one in expected.items()}
        assert await ids(store, error="declined", status=(Status.PENDING,)) == []

    async def test_an_error_that_is_no_json_is_searched_too(self, store: Store, harness: Harness) -> None:
        await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
        await harness.execute("UPDATE perdure_runs SET error = 'Disk is FULL' WHERE id = 'r1'")
        assert await ids(store, error="disk is full") == ["r1"]

    async def test_what_was_set_by_a_turn_is_found(self, store: Store) -> None:
        lease = await held(store, attributes=make_attributes({"phase": "new"}))
        await commit(store, lease, a_record(0), outputs=tuple(attribute_outputs({"phase": "paid"})))
        assert await ids(store, attributes={"phase": "new"}) == []
        assert await ids(store, attributes={"phase": "paid"}) == ["r1"]

    async def test_many_candidates_are_read_in_parts(self, store: Store) -> None:
        names = [f"n{number:04}" for number in range(700)]
        values = [make_attributes({"n": place, "even": place % 2 == 0}) for place in range(700)]
        await store.create([a_run(name, attributes=one) for name, one in zip(names, values, strict=True)], ACTOR)
        backwards = names[::-1]
        assert await ids(store, attributes={"n": (">=", 0)}) == backwards
        assert await ids(store, id_prefix="n") == backwards
        assert await ids(store, attributes={"even": True}) == backwards[1::2]
        assert await ids(store, 60, attributes={"even": True, "n": ("<", 690)}) == backwards[11::2]
        assert await ids(store, type="none") == []


async def counted(store: Store, by: str = "", most: int = 10_000, **filter: Any) -> dict[Any, str]:
    """Counts as they are shown, by group."""
    attributes = make_conditions(filter.pop("attributes", None))
    name = by.removeprefix("attribute:")
    groups = CountBy(attribute=name) if name != by else CountBy(column=by)
    found = await store.count(RunFilter(attributes=attributes, **filter), groups, most)
    assert [one.count for one in found] == sorted((one.count for one in found), reverse=True)
    return {one.value: str(one) for one in found}


class Counting:
    """Counts are exact up to a bound, and lower bounds beyond it."""

    @pytest.fixture
    async def some(self, store: Store, harness: Harness) -> None:
        """Ten runs: six are pending, one is running, two failed, one was deleted."""
        for number in range(10):
            values = {"customer": "acme" if number % 3 else "beta", "number": number}
            await store.create(
                [
                    a_run(
                        f"r{number}",
                        type=OTHER_TYPE if number == 4 else TYPE,
                        queue="slow" if number in (5, 6) else "default",
                        attributes=make_attributes(values),
                    )
                ],
                ACTOR,
            )
            harness.system.advance(1)
        for number, next in ((0, Finish(Status.FAILED, "{}")), (1, Finish(Status.FAILED, "{}")), (2, None)):
            [claimed] = (await claim(store, nonce=f"n{number}", limit=1)).runs
            if next is not None:
                error = Failure(type="shop.Declined", message=f"number {number}").to_json()
                await commit(store, claimed.lease, next=Finish(Status.FAILED, error))
        await store.cancel("r9", '""', "key", ACTOR)
        await store.delete("r9", "", ACTOR)

    async def test_all_and_some_are_counted(self, store: Store, some: None) -> None:
        assert await counted(store) == {"": "9"}
        assert await counted(store, deleted=None) == {"": "10"}
        assert await counted(store, deleted=True) == {"": "1"}
        assert await counted(store, status=(Status.FAILED,)) == {"": "2"}
        assert await counted(store, status=(Status.PENDING, Status.FAILED)) == {"": "8"}
        assert await counted(store, status=()) == {"": "0"}
        assert await counted(store, type=OTHER_TYPE) == {"": "1"}
        assert await counted(store, id_prefix="r") == {"": "9"}
        assert await counted(store, id_prefix="none") == {"": "0"}
        assert await counted(store, attributes={"customer": "beta"}) == {"": "3"}
        assert await counted(store, attributes={"number": (">", 6)}) == {"": "2"}
        assert await counted(store, attributes={"number": (">", 6)}, created_after=START + 7 * SECOND) == {"": "1"}
        assert await counted(store, error="NUMBER 1") == {"": "1"}
        assert await counted(store, schedule="none") == {"": "0"}

    async def test_groups_are_counted(self, store: Store, some: None) -> None:
        assert await counted(store, "status") == {"pending": "6", "failed": "2", "running": "1"}
        assert await counted(store, "status", deleted=None) == {
            "pending": "6", "failed": "2", "cancelled": "1", "running": "1"
        }  # fmt: skip
        assert await counted(store, "status", status=(Status.FAILED,)) == {"failed": "2"}
        assert await counted(store, "type") == {TYPE: "8", OTHER_TYPE: "1"}
        assert await counted(store, "queue", status=(Status.PENDING,)) == {"default": "4", "slow": "2"}
        assert await counted(store, "attribute:customer") == {"acme": "6", "beta": "3"}
        assert await counted(store, "attribute:customer", queue="slow") == {"acme": "1", "beta": "1"}
        assert await counted(store, "attribute:number", attributes={"number": ("<", 2)}) == {0: "1", 1: "1"}
        assert await counted(store, "attribute:missing") == {}
        assert await counted(store, "type", error="number") == {TYPE: "2"}
        assert await counted(store, "type", status=()) == {}

    async def test_beyond_the_bound_they_are_lower_bounds(self, store: Store, some: None) -> None:
        assert await counted(store, most=9, deleted=None) == {"": "9+"}
        assert await counted(store, most=10, deleted=None) == {"": "10"}
        assert await counted(store, "status", most=3) == {"pending": "3+", "failed": "2", "running": "1"}
        found = await counted(store, "type", most=3)
        assert found
        assert all(text.endswith("+") for text in found.values())
        # One of the four is deleted.
        assert await counted(store, most=4, attributes={"customer": "beta"}) == {"": "3"}
        assert await counted(store, most=3, attributes={"customer": "beta"}) == {"": "3+"}

    async def test_runs_that_do_not_count_take_no_place_of_those_that_do(self, store: Store, some: None) -> None:
        # The newest one is deleted, and another one is of another type.
        assert await counted(store, most=6) == {"": "6+"}
        assert await counted(store, most=6, type=TYPE) == {"": "6+"}
        assert await counted(store, most=6, queue="default") == {"": "6+"}
        assert await counted(store, most=3, attributes={"number": (">", 3)}, type=TYPE) == {"": "3+"}

    async def test_a_range_of_time_bounds_a_count_of_many(self, store: Store, some: None) -> None:
        since = START + 6 * SECOND
        assert await counted(store, most=3, status=(Status.PENDING,), created_after=since) == {"": "2"}
        assert await counted(store, most=3, id_prefix="r", created_after=since) == {"": "2"}

    async def test_a_number_is_shown_in_thousands(self) -> None:
        assert str(RunGroup("", 10_000, False)) == "10,000+"
        assert str(RunGroup("", 1234)) == "1,234"
