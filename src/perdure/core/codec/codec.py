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

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.json_problems import DEPTH, find_flaw, has_set_of_sets, ordered
from perdure.core.codec.pydantic_models import AdaptedDecoder, decode_model, encode_model, mentions_model, order_model
from perdure.core.codec.roundtrip import find_difference, find_lost, is_flat, is_open
from perdure.core.codec.unions import TaggedDecoder
from perdure.errors import DecodeError, EncodeError, PayloadTooLarge

WARN_BYTES = 256 * 1024
MAX_BYTES = 1024 * 1024

_log = logging.getLogger("perdure.codec")

#: What has no inside: the text of these needs no second look.
_SIMPLE = frozenset({type(None), bool, int})
#: What equals itself when it comes back, and nothing is lost of it.
_SCALARS = frozenset({type(None), bool, int, float, str})
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


AnyDecoder = msgspec.json.Decoder[Any] | AdaptedDecoder | TaggedDecoder


class Codec:
    """Typed JSON with limits: over `warn_bytes` it logs a warning, over `max_bytes` it refuses."""

    def __init__(self, *, warn_bytes: int = WARN_BYTES, max_bytes: int = MAX_BYTES, strict: bool = False) -> None:
        self._warn_bytes = warn_bytes
        self._max_bytes = max_bytes
        self._decoders: dict[Any, AnyDecoder] = {}
        #: Classes of which no part can come back as something else without being longer or shorter.
        self._flat: set[Any] = set()
        self.strict = False
        if strict:
            self.be_strict()

    def be_strict(self) -> None:
        """From now on, every value has to come back as exactly what it was, even where its type declares something else."""
        self.strict = True
        # By the instance, so that the usual codec is not asked for every step.
        setattr(self, "store_quickly", lambda value, declared: None)  # noqa: B010

    def encode(self, value: object, what: str, declared: Any = Any) -> str:
        """The value as JSON, `declared` to be of a type; `what` says in errors whose it is.

        Raises `EncodeError` or `PayloadTooLarge`.
        """
        if declared is not Any:
            value = self.tagged(value, declared, what)
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
            kind = type(value)
            if (kind is not declared or declared not in self._flat) and decoded != value:
                return None
            # Of a class that compares something else than its fields, what came back may be shorter.
            if kind not in _SCALARS and (len(data) > _QUICK_BYTES or len(_encode(decoded)) != len(data)):
                return None
        except Exception:
            return None
        text = data.decode()
        if len(data) > self._warn_bytes:
            return None
        if kind not in _SIMPLE and (
            # What `_is_suspicious` would look at.
            "\\u0000" in text or "null" in text or "NaN" in text or 'nan"' in text or 'Z"' in text or _CLOCK.search(text)
        ):  # fmt: skip
            return None
        return text, decoded

    def store(self, value: object, declared: Any, what: str) -> tuple[str, Any]:
        """The value as JSON, and what that decodes to. Raises `EncodeError` if that is not the value, and `DecodeError`."""
        stored = self.store_quickly(value, declared)
        if stored is not None:
            return stored
        payload = self.encode(value, what, declared)
        decoded = self.decode(payload, declared, what)
        self.compare(value, decoded, declared, what)
        return payload, decoded

    def compare(self, value: object, decoded: object, declared: Any, what: str) -> None:
        """Raise `EncodeError` if a value came back as something else, as far as its declared type does not say so."""
        found = find_difference(value, decoded, self.digest, exact=self.strict or is_open(declared))
        if found is None:
            return
        path, problem = found
        fix = (
            "Annotate it with its class, or pass plain data: text, numbers, lists, and dicts with text as keys"
            if is_open(declared)
            else f"It is declared as {_name(declared)}: declare what it is, or a union"
        )
        raise EncodeError(_message(what, path, f"{problem}. {fix}"), path=path)

    def needs_tags(self, declared: Any, what: str) -> bool:
        """Whether values of a type are stored with the names of their classes."""
        return isinstance(self._decoder(declared, what), TaggedDecoder)

    def tagged(self, value: object, declared: Any, what: str) -> object:
        """The value with the names of classes, where its type is a union of several."""
        decoder = self._decoder(declared, what)
        return decoder.to_plain(value) if isinstance(decoder, TaggedDecoder) else value

    def decode(self, payload: str | bytes, type: Any, what: str) -> Any:
        """The value of that type; `what` says in errors whose it is. Raises `DecodeError`."""
        decoder = self._decoder(type, what)
        try:
            value = decoder.decode(payload)
        except Exception as error:
            # Whatever a class of the user's raises while it is built, it means that the payload does not fit it.
            raise DecodeError(f"Cannot read {what} as {_name(type)}: {error}") from error
        if self.strict:
            self._check_nothing_lost(payload, value, type, what)
        return value

    def _check_nothing_lost(self, payload: str | bytes, value: Any, type: Any, what: str) -> None:
        before = _decode_plain(payload)
        after = _decode_plain(_encode(self.tagged(value, type, what)))
        lost = find_lost(before, after)
        if lost is not None:
            raise DecodeError(f"Cannot read {what} as {_name(type)}: {lost or 'it'} is lost (strict)")

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
            if is_flat(type):
                self._flat.add(type)
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
            return _tagged_decoder(type)
    return AdaptedDecoder(type)


def _tagged_decoder(type: Any) -> AnyDecoder:
    """A decoder of a type that msgspec refuses. Raises what msgspec raises if it is not for a union of classes or an enum."""
    try:
        return TaggedDecoder(type)
    except TypeError as error:
        if "two classes" in str(error):
            raise
    return decoder_for(type, dec_hook=decode_model)


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
