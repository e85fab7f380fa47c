"""Values to JSON and back, typed at both ends, never lossy in silence.

`encode` accepts what comes back equal when it is decoded by its own type, and refuses everything else with the path of the
field. `decode` follows annotations; `Any` gives plain JSON values. `digest` is the same for equal values in every process.
The usual value costs one pass of msgspec and a few scans of its bytes; only what looks suspicious there is walked through.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from typing import Any

import msgspec

from perdure.core.decoders import decoder_for
from perdure.core.errors import DecodeError, EncodeError, PayloadTooLarge
from perdure.core.flaw import DEPTH, find_flaw, has_set_of_sets, ordered
from perdure.core.models import AdaptedDecoder, decode_model, encode_model, mentions_model, order_model

WARN_BYTES = 256 * 1024
MAX_BYTES = 1024 * 1024

_log = logging.getLogger("perdure.codec")

#: What has no inside: the text of these needs no second look.
_SIMPLE = frozenset({type(None), bool, int})
#: The end of a time of day or of a UTC offset.
_CLOCK = re.compile(r':[0-9][0-9]"')
#: A double in MessagePack whose exponent is all ones: NaN and the infinities.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_BRACKET = ord("[")
#: Text that is no longer is not too deep.
_QUICK_BYTES = 2 * DEPTH
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_encode = msgspec.json.Encoder(enc_hook=encode_model).encode
_encode_in_order = msgspec.json.Encoder(enc_hook=order_model, order="deterministic").encode
_pack = msgspec.msgpack.Encoder().encode
_decode_plain = msgspec.json.Decoder().decode


AnyDecoder = msgspec.json.Decoder[Any] | AdaptedDecoder


class Codec:
    """Typed JSON with limits: over `warn_bytes` it logs a warning, over `max_bytes` it refuses."""

    def __init__(self, *, warn_bytes: int = WARN_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self._warn_bytes = warn_bytes
        self._max_bytes = max_bytes
        self._decoders: dict[Any, AnyDecoder] = {}

    def encode(self, value: object, what: str) -> str:
        """The value as JSON; `what` says in errors whose it is. Raises `EncodeError` or `PayloadTooLarge`."""
        try:
            data = _encode(value)
        except Exception as error:
            raise _refusal(value, what, str(error)) from error
        if len(data) > self._warn_bytes:
            self._weigh(len(data), what)
        text = data.decode()
        if type(value) not in _SIMPLE and _is_suspicious(value, data, text):
            flaw = find_flaw(value)
            if flaw is not None:
                raise EncodeError(_message(what, *flaw), path=flaw[0])
        return text

    def store_quickly(self, value: object, declared: Any) -> tuple[str, Any] | None:
        """The value as JSON, and what that decodes to, of the usual value; None if it needs a closer look: `encode`, `decode`."""
        try:
            data = _encode(value)
            decoded = self._decoders[declared].decode(data)
            # The JSON of what came back is shorter when two keys of an object had become one.
            if len(data) > _QUICK_BYTES or len(_encode(decoded)) != len(data):
                return None
        except Exception:
            return None
        text = data.decode()
        if type(value) not in _SIMPLE and (
            # What `_is_suspicious` would look at.
            "\\u0000" in text or "null" in text or "NaN" in text or 'nan"' in text or 'Z"' in text or _CLOCK.search(text)
        ):  # fmt: skip
            return None
        return text, decoded

    def decode(self, payload: str | bytes, type: Any, what: str) -> Any:
        """The value of that type; `what` says in errors whose it is. Raises `DecodeError`."""
        decoder = self._decoder(type, what)
        try:
            return decoder.decode(payload)
        except Exception as error:
            # Whatever a class of the user's raises while it is built, it means that the payload does not fit it.
            raise DecodeError(f"Cannot read {what} as {_name(type)}: {error}") from error

    def check(self, type: Any, what: str) -> None:
        """Raise `DecodeError` if values of that type could never be decoded."""
        self._decoder(type, what)

    def digest(self, value: object, step: str = "") -> str:
        """Twelve hexadecimal digits of the value's canonical JSON. Raises `EncodeError` for what has none.

        `step` names the step whose arguments, by position and by name, the value is.
        """
        try:
            data = _encode_in_order(value)
        except Exception:
            # msgspec orders neither keys that are no text nor elements that do not compare.
            data = b""
        # The arguments of a call are a tuple in a tuple: without a third bracket there is no set of sets in them.
        is_plain = type(value) is tuple and data.find(_BRACKET, 2) < 0
        if not data or (not is_plain and _has_set_of_sets(value, data)):
            try:
                data = _encode_in_order(ordered(value, _encode_in_order))
            except Exception as error:
                raise (_bad_arguments(value, step) or _refusal(value, "a value", str(error))) from error
        return hashlib.blake2b(data, digest_size=6).hexdigest()

    def _decoder(self, type: Any, what: str) -> AnyDecoder:
        try:
            known = self._decoders.get(type)
        except TypeError:
            return _new_decoder(type, what)
        if known is None:
            known = self._decoders[type] = _new_decoder(type, what)
        return known

    def _weigh(self, size: int, what: str) -> None:
        advice = "Keep the data elsewhere (a file, an object store, a table of your own) and pass a reference to it"
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"{what} is {size:,} bytes of JSON; the limit is {self._max_bytes:,}. {advice}, or raise the limit."
            )
        _log.warning(
            "%s is %s bytes of JSON, over the %s that are reasonable. %s.", what, size, self._warn_bytes, advice
        )


def decoder_of(type: Any) -> AnyDecoder:
    """What decodes JSON to a type. Raises whatever msgspec does about a type that cannot be decoded."""
    try:
        return decoder_for(Any if type is inspect.Signature.empty else type, dec_hook=decode_model)
    except Exception:
        if not mentions_model(type):
            raise
    return AdaptedDecoder(type)


def _new_decoder(type: Any, what: str) -> AnyDecoder:
    try:
        return decoder_of(type)
    except Exception as error:
        raise DecodeError(f"{_name(type)}, the type of {what}, cannot be decoded from JSON: {error}") from error


def _is_suspicious(value: object, data: bytes, text: str) -> bool:
    """Whether the JSON leaves a doubt that the value survives it. False alarms are cheap, misses are not allowed."""
    if "\\u0000" in text or "NaN" in text or 'nan"' in text:
        return True
    if type(value) is str:
        return False
    if "null" in text and _may_hide_nan(value):
        return True
    # Offsets with seconds lose them, and the text does not tell that they were there.
    if 'Z"' in text or _CLOCK.search(text) is not None:
        return True
    if len(data) > 2 * DEPTH and _is_too_deep(data):
        return True
    # The JSON of the JSON is shorter when two keys of an object had become one.
    try:
        return len(_encode(_decode_plain(data))) != len(data)
    except Exception:
        return True


def _may_hide_nan(value: object) -> bool:
    try:
        return _NOT_FINITE.search(_pack(value)) is not None
    except Exception:
        # MessagePack has no integers over 64 bits.
        return True


def _is_too_deep(data: bytes) -> bool:
    # Peeling off the innermost brackets takes as many rounds as there are levels. Brackets inside strings only add to them.
    brackets = data.translate(None, _NOT_BRACKETS)
    for _ in range(DEPTH):
        peeled = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not peeled:
            return False
        if len(peeled) == len(brackets):
            return True
        brackets = peeled
    return True


def _has_set_of_sets(value: object, data: bytes) -> bool:
    # Sets inside of sets do not raise when they are sorted, although `<` on them is no order.
    start = 1 if type(value) in {list, tuple} else 0
    return (data.find(b"[[", start) >= 0 or data.find(b"[{", start) >= 0) and has_set_of_sets(value)


def _refusal(value: object, what: str, reason: str) -> EncodeError:
    flaw = find_flaw(value)
    path, problem = flaw if flaw is not None else ("", reason)
    return EncodeError(_message(what, path, problem), path=path)


def _bad_arguments(value: object, step: str) -> EncodeError | None:
    match value:
        case tuple((args, kwargs)) if step:
            places = {**{f"argument {number}": one for number, one in enumerate(args, 1)}, **kwargs}
        case _:
            return None
    for place, one in places.items():
        flaw = find_flaw(one)
        if flaw is not None:
            path = f"{place}{'' if flaw[0][:1] in ('', '[') else '.'}{flaw[0]}"
            return EncodeError(_message(f"the arguments of step {step!r}", path, flaw[1]), path=path)
    return None


def _message(what: str, path: str, problem: str) -> str:
    return f"Cannot store {what}: {path or 'it'} {problem}"


def _name(type: Any) -> str:
    return getattr(type, "__name__", None) or repr(type)
