"""Patterns match types character by character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import UsageError
from perdure.core.printed_text import closest
from perdure.core.routing import check_patterns, matches, select_types
from perdure.errors import InvalidName

TYPES = st.text(alphabet="aA.%_ é𝒳", max_size=6)


@given(beginning=TYPES, type=TYPES)
def test_a_pattern_means_exactly_the_types_that_begin_as_it_does(beginning: str, type: str) -> None:
    assert matches(f"{beginning}%", type) == (type[: len(beginning)] == beginning)


@given(pattern=TYPES.filter(lambda text: not text.endswith("%")), type=TYPES)
def test_without_a_percent_sign_at_its_end_a_pattern_means_one_type(pattern: str, type: str) -> None:
    assert matches(pattern, type) == (pattern == type)


def test_what_several_patterns_mean_is_chosen_once() -> None:
    known = {"billing.charge.v1": 1, "billing.refund.v1": 2, "shop.checkout.v1": 3, "Billing.charge.v1": 4}
    assert select_types(known, None) == known
    assert list(select_types(known, ["billing.%", "billing.charge.v1"])) == ["billing.charge.v1", "billing.refund.v1"]
    assert list(select_types(known, ["%"])) == list(known)


def test_a_pattern_that_means_nothing_is_an_error_that_names_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"'bill_ng.%'; there are billing.charge.v1"):
        select_types({"billing.charge.v1": 1}, ["bill_ng.%"])


def test_of_many_types_the_closest_are_named_and_the_others_counted() -> None:
    known = {f"billing.invoice{number}.v1": number for number in range(300)} | {"billing.charge.v1": 300}
    with pytest.raises(UsageError, match="no type matches 'billing.chrage.v1'; there are billing.charge.v1, ") as told:
        select_types(known, ["billing.chrage.v1"])
    assert str(told.value).endswith(" and 298 others")
    assert len(str(told.value)) < 200
    assert closest("entirely different", known).endswith(" and 298 others")
    assert closest(7, ["b", "a"]) == "a, b"
    assert closest("x", []) == "none"


@pytest.mark.parametrize("wrong", ["", "a/b", "a/%", " x", "x" * 300, "a\x00%"])
def test_a_pattern_that_no_type_could_fit_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidName):
        check_patterns([wrong])


def test_one_pattern_may_stand_alone_and_none_may_not() -> None:
    assert check_patterns("billing.%") == ("billing.%",)
    assert check_patterns(None) is None
    with pytest.raises(UsageError, match="nothing to do"):
        check_patterns([])
