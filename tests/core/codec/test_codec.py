from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import logging
import os
import subprocess
import sys
import types
from collections import ChainMap, Counter, OrderedDict, deque
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.codec.codec import Codec
from perdure.errors import DecodeError, EncodeError, PayloadTooLarge, UsageError
from tests.core.values import Colour, Line, Node, Order, Point, typed

codec = Codec()
NAN = float("nan")


@given(typed(nasty=False))
def test_a_clean_value_comes_back_equal_and_of_its_type(pair: tuple[Any, Any]) -> None:
    kind, value = pair
    payload = codec.encode(value, "it")
    back = codec.decode(payload, kind, "it")
    assert back == value
    assert type(back) is type(value)
    assert codec.encode(back, "it") == payload or contains_set(value)
    assert len(codec.digest(value)) == 12


@given(typed(nasty=True))
def test_a_nasty_value_is_refused_or_comes_back_equal(pair: tuple[Any, Any]) -> None:
    kind, value = pair
    try:
        payload = codec.encode(value, "it")
    except EncodeError as error:
        assert str(error).startswith("cannot store it: ")
        return
    assert codec.decode(payload, kind, "it") == value
    json.loads(payload)
    assert "\0" not in payload
    codec.digest(value)


def contains_set(value: Any) -> bool:
    """Tell whether a value contains a set, whose order is not part of its value."""
    match value:
        case set() | frozenset():
            return True
        case dict():
            return any(contains_set(one) for pair in value.items() for one in pair)
        case list() | tuple() | deque():
            return any(contains_set(one) for one in value)
        case msgspec.Struct():
            return any(contains_set(getattr(value, name)) for name in value.__struct_fields__)
    return dataclasses.is_dataclass(value) and any(
        contains_set(getattr(value, field.name)) for field in dataclasses.fields(value)
    )


keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | keys,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_json_needs_no_type(value: Any) -> None:
    payload = codec.encode(value, "it")
    assert codec.decode(payload, Any, "it") == value == json.loads(payload)


POISONS: list[Any] = [
    NAN,
    float("inf"),
    -float("inf"),
    Decimal("NaN"),
    Decimal("sNaN"),
    "a\0b",
    "\0",
    "\ud800",
    "a\udfffb",
    object(),
    (n for n in "ab"),
    iter([1]),
    range(3),
    deque([1]),
    ChainMap({}),
    types.MappingProxyType({}),
    Path("x"),
    Fraction(1, 2),
    1j,
    len,
    int,
    Order,
    ValueError("x"),
    sys,
    lambda: None,
    msgspec.Raw(b'{"a": 1}'),
    msgspec.Raw(b'{"a":1,"a":2}'),
    msgspec.Raw(b'"\\u0000"'),
    msgspec.Raw(b"garbage"),
    10**4400,
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=30))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
    time(1, tzinfo=timezone(timedelta(seconds=-61))),
    {1: 1, "1": 2},
    {1.0: 1, "1.0": 2},
    {Colour.RED: 1, "red": 2},
    {NAN: 1},
    {Decimal("NaN"): 1},
    {10**4400: 1},
    {True: 1},
    {None: 1},
    {(1, 2): 1},
    {frozenset(): 1},
    {"\0": 1},
    {"\ud800": 1},
    type("Text", (str,), {})("x"),
    type("Number", (int,), {})(1),
    type("Real", (float,), {})(1.0),
    enum.Enum("Odd", {"A": NAN}).A,  # type: ignore[attr-defined] # made at run time
    enum.Enum("Odd", {"A": object()}).A,  # type: ignore[attr-defined] # made at run time
]


@pytest.mark.parametrize("poison", POISONS, ids=[f"{type(each).__name__}-{n}" for n, each in enumerate(POISONS)])
def test_what_does_not_survive_is_refused_with_its_path(poison: Any) -> None:
    order = {
        "id": None,
        "items": [{"price": 1}, {"price": 2}, {}, {"price": poison}],
        "at": datetime(2020, 1, 1, tzinfo=UTC),
    }
    with pytest.raises(EncodeError) as caught:
        codec.encode({"order": order}, "the input of run o-42")
    assert caught.value.path == "order.items[3].price"
    assert str(caught.value).startswith("cannot store the input of run o-42: order.items[3].price ")
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("poison", POISONS, ids=[f"{type(each).__name__}-{n}" for n, each in enumerate(POISONS)])
def test_what_does_not_survive_is_refused_at_the_top_too(poison: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(poison, "the result of charge")
    assert caught.value.path == ""
    assert str(caught.value).startswith("cannot store the result of charge: it ")
    with pytest.raises(EncodeError) as caught:
        codec.encode([poison], "the result of charge")
    assert caught.value.path == "[0]"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (
            Order(UUID(int=1), [Line("a", None), Line("b", Decimal("NaN"))], datetime(2020, 1, 1)),
            "lines[1].price",
        ),
        (Node([Node([]), Node([], (1, NAN))]), "children[1].position[1]"),  # type: ignore[arg-type] # wrong on purpose
        (Point(NAN, 1), "[0]"),
        ([10**30, NAN], "[1]"),
        ({"a b": [NAN]}, "['a b'][0]"),
        ({"a": {7: NAN}}, "a[7]"),
        (({"x": (NAN,)},), "[0].x[0]"),
    ],
)
def test_the_path_is_written_as_one_would_write_it(value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(value, "it")
    assert caught.value.path == path


@given(st.lists(st.sampled_from(["key", "index", "field"]), max_size=12), st.sampled_from(POISONS[:10]))
def test_the_path_is_exact_at_any_depth(steps: list[str], poison: Any) -> None:
    value, path = poison, ""
    for step in reversed(steps):
        match step:
            case "key":
                value, path = {"before": None, "key": value, "after": "NaN"}, f".key{path}"
            case "index":
                value, path = [None, "null", value, []], f"[2]{path}"
            case _:
                value, path = Node(value), f".children{path}"
    with pytest.raises(EncodeError) as caught:
        codec.encode(value, "it")
    assert caught.value.path == path.removeprefix(".")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_deep_values_are_accepted_up_to_a_depth_that_can_always_be_read() -> None:
    assert codec.decode(codec.encode(nested(200), "it"), Any, "it") == nested(200)
    wide = [nested(150) for _ in range(50)]
    assert codec.decode(codec.encode(wide, "it"), Any, "it") == wide


@pytest.mark.parametrize("levels", [201, 300, 900, 5_000, 100_000])
def test_deeper_ones_are_refused(levels: int) -> None:
    with pytest.raises(EncodeError, match="200 levels"):
        codec.encode(nested(levels), "it")


def test_alternating_nesting_is_measured_too() -> None:
    value: Any = 1
    for _ in range(150):
        value = {"a": [value], "z": "]}"}
    with pytest.raises(EncodeError, match="200 levels"):
        codec.encode(value, "it")


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = [1]
    ring.append({"again": ring})
    with pytest.raises(EncodeError, match="contains itself"):
        codec.encode(ring, "it")


def test_text_that_looks_like_json_is_only_text() -> None:
    for text in [
        "null" * 300,
        "[" * 1000,
        "{" * 1000 + "]",
        "\\u0000",
        '{"a":NaN}',
        "2020-01-01T00:00:00Z",
        ':00"',
        'Z"',
        '"nan"',
    ]:
        assert codec.decode(codec.encode([text, {text: text}], "it"), Any, "it") == [text, {text: text}]


def test_mappings_of_other_classes_come_back_as_dicts() -> None:
    for value in (OrderedDict(a=1), Counter("a")):
        assert codec.decode(codec.encode(value, "it"), dict[str, int], "it") == {"a": 1}


def test_json_that_was_encoded_before_goes_in_as_it_is() -> None:
    raw = msgspec.Raw(b'{"a":[null,"2020-01-01T00:00:00Z"]}')
    assert codec.encode(raw, "it") == codec.encode(codec.decode(codec.encode([raw], "it"), Any, "it")[0], "it")


def test_the_order_of_a_dict_is_kept() -> None:
    value = dict.fromkeys(("z", "a", "m"), 1)
    assert list(codec.decode(codec.encode(value, "it"), Any, "it")) == ["z", "a", "m"]


def test_a_large_payload_is_refused_with_its_size_and_advice() -> None:
    with pytest.raises(PayloadTooLarge, match=r"the result of fetch is 1,100,002 bytes.*limit is 1,048,576.*reference"):
        codec.encode("x" * 1_100_000, "the result of fetch")
    assert codec.encode("x" * (1_048_576 - 2), "it")


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(PayloadTooLarge):
        Codec(max_bytes=300, warn_bytes=300).encode("é" * 150, "it")


def test_a_heavy_payload_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "perdure"):
        Codec(warn_bytes=10, max_bytes=100).encode("x" * 20, "the result of fetch")
        Codec(warn_bytes=22, max_bytes=100).encode("x" * 20, "the result of fetch")
    [record] = caplog.records
    assert "the result of fetch is 22 bytes" in record.getMessage()


def test_decoding_names_what_it_was_for_and_where_it_does_not_fit() -> None:
    with pytest.raises(
        DecodeError, match=r"cannot decode the input of run o-1 as list\[.*Line\].*\$\[1\]\.sku|sku"
    ) as caught:
        codec.decode('[{"sku":"a","price":null},{"sku":1,"price":null}]', list[Line], "the input of run o-1")
    assert isinstance(caught.value.__cause__, msgspec.ValidationError)


@pytest.mark.parametrize("payload", ["", "{", "nope", b"\xff", b'"\xff"', '{"a":1}x', "[" * 100_000, '"' + "x" * 10])
def test_a_corrupt_payload_is_a_decode_error(payload: str | bytes) -> None:
    for kind in (Any, Line, list[Line]):
        with pytest.raises(DecodeError, match="cannot decode the history of run r"):
            codec.decode(payload, kind, "the history of run r")


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ("1", str),
        ('"1"', int),
        ("1.5", int),
        ("true", int),
        ("1", bool),
        ("null", int),
        ('"x"', Colour),
        ("[1]", tuple[int, int]),
    ],
)
def test_decoding_is_strict(payload: str, kind: Any) -> None:
    with pytest.raises(DecodeError):
        codec.decode(payload, kind, "it")


def test_an_error_of_the_users_own_class_means_that_the_payload_does_not_fit() -> None:
    @dataclasses.dataclass
    class Picky:
        n: int

        def __post_init__(self) -> None:
            raise KeyError("never")

    with pytest.raises(DecodeError, match="Picky.*never"):
        codec.decode('{"n":1}', Picky, "it")


@pytest.mark.parametrize(
    "kind",
    ["Line", dict[tuple[int, ...], int] | set[int] | list[int]],
)
def test_a_type_that_can_never_be_decoded_is_refused_before_any_value_of_it_exists(kind: Any) -> None:
    with pytest.raises(DecodeError, match="the type of the result of charge, cannot be decoded"):
        codec.check(kind, "the result of charge")


def test_a_missing_annotation_means_anything() -> None:
    codec.check(inspect.Parameter.empty, "it")
    assert codec.decode('{"a":[1]}', inspect.Parameter.empty, "it") == {"a": [1]}


def test_annotations_that_cannot_be_hashed_still_decode() -> None:
    from typing import Annotated

    assert codec.decode("1", Annotated[int, ["unhashable"]], "it") == 1


def test_equal_values_have_one_digest_whatever_their_order() -> None:
    assert codec.digest({"a": 1, "b": {"c": 2, "d": 3}}) == codec.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert codec.digest({2: 1, 1: 2}) == codec.digest({1: 2, 2: 1})
    assert codec.digest({1: 1, "a": 2}) == codec.digest({"a": 2, 1: 1})
    assert codec.digest((1, "a")) != codec.digest((1, "b"))


sets = st.frozensets(st.integers() | keys | st.none() | st.frozensets(st.integers() | keys, max_size=3), max_size=5)


@given(
    st.lists(st.integers() | keys | st.none() | st.frozensets(st.integers(), max_size=3) | sets, max_size=5),
    st.randoms(),
)
def test_the_digest_of_a_set_does_not_depend_on_how_it_was_built(elements: list[Any], random: Any) -> None:
    first: set[Any] = set()
    for element in elements:
        first.add(element)
    random.shuffle(elements)
    second = set(range(1000, 1000 + random.randrange(50))) | set(elements)
    second -= set(range(1000, 1050)) - set(elements)
    assert first == second
    assert codec.digest([first, {"k": [first]}]) == codec.digest([second, {"k": [second]}])
    assert codec.digest(first) == codec.digest(second)


DIGESTS = """
import sys
from decimal import Decimal
from perdure.core.codec.codec import Codec
from tests.core.values import *
codec = Codec()
words = {
    "alpha", "beta", "gamma", "delta", "epsilon", None, 1, 2.5, (1, "x"),
    frozenset({"a", "b", "c"}), frozenset({"d", "e"})
}
values = [
    words, [words], {"k": words}, {w: 1 for w in ("b", "a")}, {Colour.RED: 1, Colour.NULL: 2}, set(Colour), set(Word),
    {frozenset({frozenset({"x", "y"}), frozenset({"z"})}), frozenset()},
    Line("a", Decimal("1.10"), frozenset("abcdef")),
    [Line("a", None, frozenset("uvwxyz"))], {Line(c, None, frozenset("pqr" + c)) for c in "abc"}, (("o-1", 999), {}),
    {Leaf("a", 1.0), Leaf("b")}, {frozenset("abc"), frozenset("xyz")}, [[{frozenset("abc"), frozenset("xyz")}]],
]
print(*(codec.digest(value) for value in values))
"""


def test_the_digest_is_the_same_in_processes_with_other_hash_seeds() -> None:
    root = Path(__file__).parents[3]
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(found) == 1
    assert len(found.pop().split()) == 15


def test_the_digest_of_arguments_never_changes_between_versions() -> None:
    assert codec.digest((("o-1", 999), {"express": True})) == "bd2bcc1af16a"


def test_a_value_without_json_has_no_digest() -> None:
    with pytest.raises(EncodeError, match=r"\[1\]\.k is of type builtins.object"):
        codec.digest([1, {"k": object()}])


@pytest.mark.parametrize(
    ("declared", "value"), [(object, 1), (list[object], [1, "a", None]), (dict[str, object], {"a": [1]})]
)
def test_an_object_may_be_any_plain_value(declared: Any, value: Any) -> None:
    assert codec.decode(codec.encode(value, "it"), declared, "it") == value
