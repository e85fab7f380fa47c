from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import UsageError
from perdure.errors import InvalidSignature
from perdure.host import Host
from perdure.push import SigningKeys
from perdure.push.signature import signing_keys


class Clock(Host):
    """A system that stands at one second."""

    def __init__(self, second: int) -> None:
        super().__init__()
        self.second = second

    def now(self) -> int:
        return self.second * 1_000_000


#: The example in the libraries of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_a_signature_is_that_of_the_libraries_of_standard_webhooks() -> None:
    keys = SigningKeys(SECRET, system=Clock(1614265330))
    assert keys.sign(BODY, id=HEADERS["webhook-id"]) == HEADERS
    keys.verify(BODY, HEADERS)
    keys.verify(BODY.decode(), [(name.upper().encode(), value.encode()) for name, value in HEADERS.items()])
    # The prefix is optional there.
    SigningKeys(SECRET.removeprefix("whsec_"), system=Clock(1614265330)).verify(BODY, HEADERS)


def test_a_message_is_signed_with_every_key_and_accepted_with_any() -> None:
    old, new = SigningKeys.generate(), SigningKeys.generate()
    headers = SigningKeys(new, old).sign(BODY)
    assert len(headers["webhook-signature"].split()) == 2
    for keys in ([new], [old], [SECRET, old]):
        SigningKeys(*keys).verify(BODY, headers)
    with pytest.raises(InvalidSignature, match="the key differs"):
        SigningKeys(SECRET).verify(BODY, headers)


@pytest.mark.parametrize(("second", "max_age", "accepted"), [
    (0, None, True), (300, None, True), (301, None, False), (-300, None, True), (-301, None, False),
    (7200, "2h", True), (7201, "2h", False), (-301, "2h", False), (300, "1s", True),
])  # fmt: skip
def test_a_time_outside_of_the_tolerance_is_refused(second: int, max_age: str | None, accepted: bool) -> None:
    keys = SigningKeys(SECRET, system=Clock(1614265330 + second))
    if accepted:
        keys.verify(BODY, HEADERS, max_age=max_age)
    else:
        with pytest.raises(InvalidSignature, match="webhook-timestamp is 7?.01 seconds"):
            keys.verify(BODY, HEADERS, max_age=max_age)


@pytest.mark.parametrize(
    "key",
    ["", "whsec_", "s3cret-s3cret-s3cret-s3cret", "whsec_c2hvcnQ=", "whsec_" + base64.b64encode(b"x" * 65).decode()],
)
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(UsageError, match="whsec_ and the base64 of 24 to 64") as refused:
        SigningKeys(SECRET, key)
    assert not key.removeprefix("whsec_") or key.removeprefix("whsec_") not in str(refused.value)


def test_keys_are_not_shown() -> None:
    key = SigningKeys.generate()
    assert key.startswith("whsec_")
    assert key != SigningKeys.generate()
    assert key[6:20] not in repr(SigningKeys(key)) + str(SigningKeys(key))
    with pytest.raises(UsageError, match="no key"):
        SigningKeys()


@given(st.binary(max_size=50), st.lists(st.tuples(st.sampled_from(list(HEADERS)), st.binary(max_size=60)), max_size=5))
def test_no_headers_but_the_right_ones_are_accepted(body: bytes, headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(InvalidSignature):
        SigningKeys(SECRET, system=Clock(1614265330)).verify(body, headers)


@pytest.mark.parametrize("id", ["", " msg", "msg ", "a\r\nx-admin: 1", "m\xfcnze", "x" * 257, "a.1614265330", 7])
def test_an_id_that_would_not_arrive_as_it_is_is_refused(id: Any) -> None:
    with pytest.raises(UsageError, match="id="):
        SigningKeys(SECRET).sign(BODY, id=id)


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), 1e300, "1", True])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(UsageError, match="delay="):
        SigningKeys(SECRET).sign(BODY, delay=delay)


def test_every_id_that_is_accepted_comes_through() -> None:
    keys = SigningKeys(SECRET)
    for id in ("x", "x" * 256, "order-7/+=~!", "msg_1"):
        signed = keys.sign(BODY, id=id)
        keys.verify(BODY, signed)
        assert signed["webhook-id"] == id


@pytest.mark.parametrize(
    "headers", [None, 7, ["x"], [("webhook-id", 7)], {"webhook-id": None}, [(None, b"x")], {**HEADERS, "x": 1}]
)
def test_headers_of_another_shape_are_refused_like_a_wrong_signature(headers: Any) -> None:
    with pytest.raises(InvalidSignature):
        SigningKeys(SECRET, system=Clock(1614265330)).verify(BODY, headers)


@pytest.mark.parametrize("keys", [SECRET.encode(), {SECRET: 1}, 7])
def test_keys_of_another_type_are_refused_and_not_repeated(keys: Any) -> None:
    with pytest.raises(UsageError) as refused:
        signing_keys(keys)
    assert SECRET[6:] not in str(refused.value)
