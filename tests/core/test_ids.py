from __future__ import annotations

import unicodedata
import uuid
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core.ids import check_id, check_name, child_id, short_key, uuid7, uuid8
from perdure.errors import InvalidId, InvalidName

NOW = 1_700_000_000_123_456

microseconds = st.integers(0, 2**48 * 1000 - 1)
entropy = st.binary(min_size=8, max_size=16)


@given(microseconds, entropy)
def test_a_uuid7_is_one_by_the_book(now: int, random: bytes) -> None:
    text = uuid7(now, random)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == now // 1000
    assert check_id(text) == text


@given(microseconds, entropy, microseconds, entropy)
def test_later_ids_sort_later_to_the_microsecond(first: int, a: bytes, second: int, b: bytes) -> None:
    assume(first != second)
    earlier, later = sorted((first, second))
    assert uuid7(earlier, a) < uuid7(later, b)


@given(st.integers(0, 2**48 * 1000 - 2))
def test_an_id_of_the_next_microsecond_sorts_later_whatever_chance_adds(now: int) -> None:
    assert uuid7(now, b"\xff" * 8) < uuid7(now + 1, bytes(8))


@given(microseconds, st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
def test_different_entropy_makes_different_ids(now: int, a: int, b: int) -> None:
    assert (uuid7(now, a.to_bytes(8, "big")) == uuid7(now, b.to_bytes(8, "big"))) == (a == b)


def test_too_little_entropy_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        uuid7(NOW, b"1234567")


@pytest.mark.parametrize(
    "good",
    [
        "o",
        "o-42",
        "a/b#2",
        "pages/~17/fetch",
        "x" * 255,
        "é" * 127,
        "é" * 127 + "e",
        "注文 42",
        "🎉",
        "a b",
        "a\u00a0b",
    ],
)
def test_a_good_id_is_given_back(good: str) -> None:
    assert check_id(good) == good


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ("", "empty"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\u2028b", "control"),
        (" a", "whitespace"),
        ("a ", "whitespace"),
        ("a\u00a0", "whitespace"),
        ("\t", "whitespace"),
        ("a\ud800", "surrogate"),
        ("e\u0301", "composed"),
        ("\u212b", "composed"),
        (42, "int"),
        (None, "NoneType"),
        (b"a", "bytes"),
    ],
)
def test_a_bad_id_is_refused_with_the_rule_and_the_value(wrong: Any, rule: str) -> None:
    with pytest.raises(InvalidId, match=rule) as caught:
        check_id(wrong, "idempotency key")
    assert "idempotency key" in str(caught.value)
    assert repr(wrong)[:300] in str(caught.value)


def test_a_huge_id_is_not_shown_whole() -> None:
    with pytest.raises(InvalidId) as caught:
        check_id("x" * 1_000_000)
    assert len(str(caught.value)) < 500


@given(st.text())
def test_whatever_passes_for_an_id_is_safe_in_every_database(text: str) -> None:
    try:
        checked = check_id(text)
    except InvalidId:
        return
    assert 1 <= len(checked.encode()) <= 255
    assert unicodedata.normalize("NFC", checked) == checked
    assert checked.strip() == checked
    assert not any(unicodedata.category(character) == "Cc" for character in checked)


def test_a_str_enum_becomes_plain_text() -> None:
    class Queue(StrEnum):
        MAIL = "mail"

    assert type(check_name(Queue.MAIL, "queue")) is str
    assert check_name(Queue.MAIL, "queue") == "mail"


@pytest.mark.parametrize("good", ["charge", "shop.checkout.v1", "Class.method", "a b", "x" * 200, "платёж"])
def test_a_good_name_is_given_back(good: str) -> None:
    assert check_name(good, "step name") == good


@pytest.mark.parametrize("wrong", ["a/b", "a#2", "~a", "x" * 201, "", " a", "a\n", "a\ud800", 5])
def test_a_bad_name_is_refused_and_the_message_says_of_what(wrong: Any) -> None:
    with pytest.raises(InvalidName, match="queue"):
        check_name(wrong, "queue")


def test_a_childs_id_shows_where_it_comes_from() -> None:
    assert child_id("o-42", "ship#2") == "o-42/ship#2"


ids = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=255
).filter(lambda text: len(text.encode()) <= 255 and unicodedata.is_normalized("NFC", text))


@given(ids, ids)
def test_a_childs_id_is_a_good_id_however_long_the_location(parent: str, location: str) -> None:
    child = child_id(parent, location)
    assert len(child.encode()) <= 255
    assert child == child_id(parent, location)
    # A location can begin with a mark that composes with nothing before it, since a slash stands between.
    assert check_id(child) == child


def test_long_children_of_one_parent_differ_by_their_location_alone() -> None:
    parent = "p" * 250
    found = {child_id(parent, f"step#{number}") for number in range(1000)}
    assert len(found) == 1000


def test_descendants_of_any_generation_have_an_id() -> None:
    found = set()
    current = "run"
    for _ in range(500):
        current = child_id(current, "descend")
        found.add(current)
    assert len(found) == 500
    assert max(len(each.encode()) for each in found) <= 255


def test_the_digest_of_a_long_id_never_changes() -> None:
    assert child_id("p" * 255, "ship") == "p" * 213 + "/~0124c983123f66d3438e9c7008d3cdfadbdda38e"


def test_a_key_is_readable_while_there_is_room_and_a_digest_when_not() -> None:
    assert short_key("run:1:loop/~3/charge#2") == "run:1:loop/~3/charge#2"
    found = {short_key(f"{'r' * 255}:{'n' * 200}/step#{number}") for number in range(1000)}
    assert len(found) == 1000
    assert max(map(len, found)) < 100


@given(st.binary(max_size=40))
def test_a_uuid8_is_one_by_the_book_and_follows_from_its_source(source: bytes) -> None:
    made = uuid.UUID(uuid8(source))
    assert (str(made), made.version, made.variant) == (uuid8(source), 8, uuid.RFC_4122)
    assert uuid8(source) != uuid8(source + b"x")
