"""The comparison of two runs, from their records."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.model.record import Record, RecordKind
from perdure.dashboard.diff import ROWS, DiffLine, Verdict, compare, line_diff
from tests.dashboard.test_timeline import SECOND, T0, a_record, a_run, facts


def verdicts(first: list[Record], second: list[Record]) -> dict[str, str]:
    return {row.location: row.verdict.value for row in compare(facts(first), facts(second)).rows}


def moved(record: Record, seconds: int) -> Record:
    later = seconds * SECOND
    return msgspec.structs.replace(record, at=record.at + later, started_at=record.started_at + later)


def test_runs_that_recorded_the_same_at_other_times_do_not_differ() -> None:
    first = [a_record(0, "charge", 0, 1), a_record(1, "ship", 1, 2)]
    diff = compare(facts(first), facts([moved(one, 86_400) for one in first]))
    assert (diff.different, diff.first_difference) == (0, "")
    assert [row.first_shapes[0].x for row in diff.rows] == [row.second_shapes[0].x for row in diff.rows]


def test_the_first_difference_is_where_the_runs_began_to_part() -> None:
    first = [a_record(0, "a", 0, 1), a_record(1, "b", 1, 2), a_record(2, "c", 2, 3), a_record(3, "d", 3, 4)]
    second = [first[0], a_record(1, "b", 1, 2, payload="2"), a_record(2, "x", 2, 3), a_record(3, "d", 3, 4)]
    diff = compare(facts(first), facts(second))
    assert {row.location: row.verdict.value for row in diff.rows} == {
        "a": "same", "b": "changed", "c": "only first", "x": "only second", "d": "same",
    }  # fmt: skip
    assert [row.location for row in diff.rows] == ["a", "b", "c", "x", "d"]
    assert (diff.first_difference, diff.different) == ("b", 3)
    only = compare(facts(first), facts(second), only_different=True)
    assert [row.location for row in only.rows] == ["b", "c", "x"]


def test_a_failure_differs_from_a_result_and_a_fire_time_does_not_matter() -> None:
    nap = a_record(0, "sleep", 0, 1, kind=RecordKind.TIMER, payload='"2030"')
    later = a_record(0, "sleep", 0, 9, kind=RecordKind.TIMER, payload='"2031"')
    assert verdicts([nap], [later]) == {"sleep": "same"}
    failed = a_record(0, "charge", 0, 1, failed=True, payload='{"type":"E","message":"1"}')
    assert verdicts([failed], [a_record(0, "charge", 0, 1)]) == {"charge": "changed"}


def test_a_run_that_has_done_nothing_can_be_compared() -> None:
    empty = facts([], run=a_run())
    diff = compare(empty, facts([a_record(0, "a", 0, 1)]))
    assert [row.verdict for row in diff.rows] == [Verdict.ONLY_SECOND]
    assert compare(empty, empty).rows == ()


def test_long_runs_are_compared_a_page_at_a_time() -> None:
    first = [a_record(n, f"fetch#{n + 1}", n, n + 0.5) for n in range(3000)]
    second = [*first[:2999], a_record(2999, "fetch#3000", 2999, 2999.5, payload="2")]
    diff = compare(facts(first, end=3000), facts(second, end=3000))
    assert (len(diff.rows), diff.total, diff.first_difference) == (ROWS, 3000, "fetch#3000")
    last = compare(facts(first, end=3000), facts(second, end=3000), start=2900)
    assert [row.verdict for row in last.rows][-1] is Verdict.CHANGED


@given(first=st.text(max_size=60), second=st.text(max_size=60))
def test_the_lines_of_a_comparison_give_both_texts_back(first: str, second: str) -> None:
    found = line_diff(first, second)
    assert [one.text for one in found if one.sign != "+"] == first.splitlines()
    assert [one.text for one in found if one.sign != "-"] == second.splitlines()
    assert line_diff("a\nb", "a\nc") == [DiffLine(" ", "a"), DiffLine("-", "b"), DiffLine("+", "c")]
    assert T0 > 0
