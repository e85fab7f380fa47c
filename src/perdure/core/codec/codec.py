"""`Codec`: typed JSON, without silent loss.

`encode` accepts values that decode to an equal value, and refuses all others with the path of the field. `decode`
follows annotations; `Any` gives plain JSON values. `digest` is the same for equal values in every process. A usual
value costs one pass of msgspec and a few scans of its bytes; only suspicious values are walked through.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.json_problems import DEPTH, find_flaw, has_set_of_sets, ordered
from perdure.core.codec.pydantic_models import AdaptedDecoder, decode_model, encode_model, mentions_model, order_model
from perdure.core.codec.roundtrip import all_plain, find_difference, find_lost, is_flat, is_open, plain_fields
from perdure.core.codec.unions import TaggedDecoder
from perdure.core.printed_text import brief
from perdure.errors import DecodeError, EncodeError, PayloadTooLarge

WARN_BYTES = 256 * 1024
MAX_BYTES = 1024 * 1024

_log = logging.getLogger("perdure.codec")

#: Values that need no annotation to come back as they were.
_PLAIN_DATA = "text, numbers, lists, and dicts with text as keys"
#: Types without parts, whose JSON needs no further checks.
_SIMPLE = frozenset({type(None), bool, int})
#: Types whose values survive JSON unchanged.
_SCALARS = frozenset({type(None), bool, int, float, str})
#: End of a time of day or of a UTC offset.
_CLOCK = re.compile(r':[0-9][0-9]"')
#: A double in MessagePack whose exponent is all ones: NaN and the infinities.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_BRACKET = ord("[")
_NO_KWARGS: dict[str, Any] = {}
#: JSON up to this length cannot be nested too deep.
_QUICK_BYTES = 2 * DEPTH
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

#: Makes the hash of which a digest shows 12 digits. A copy is cheaper than a new one, which parses its options.
_new_hash = hashlib.blake2b(digest_size=6).copy

_encode = msgspec.json.Encoder(enc_hook=encode_model).encode
_encode_in_order = msgspec.json.Encoder(enc_hook=order_model, order="deterministic").encode
_pack = msgspec.msgpack.Encoder().encode
_decode_plain = msgspec.json.Decoder().decode


AnyDecoder = msgspec.json.Decoder[Any] | AdaptedDecoder | TaggedDecoder


class Codec:
    """Typed JSON with size limits: a warning over `warn_bytes`, an error over `max_bytes`."""

    def __init__(self, *, warn_bytes: int = WARN_BYTES, max_bytes: int = MAX_BYTES, strict: bool = False) -> None:
        self._warn_bytes = warn_bytes
        self._max_bytes = max_bytes
        self._decoders: dict[Any, AnyDecoder] = {}
        #: Classes whose parts cannot change in JSON without changing its length.
        self._flat: set[Any] = set()
        #: Gets the fields of classes whose values come back as they were if all of their types are plain.
        self._plain_fields: dict[Any, Callable[[Any], tuple[object, ...]]] = {}
        self.strict = False
        if strict:
            self.be_strict()

    def be_strict(self) -> None:
        """Require from now on that each value comes back exactly, even where its declared type allows a conversion."""
        self.strict = True
        # Set on the instance, so that the usual codec needs no check for each step.
        # mypy refuses an assignment to a method.
        setattr(self, "store_quickly", lambda value, declared: None)  # noqa: B010 # mypy refuses to assign a method
        setattr(self, "decode_quickly", lambda payload, type: self.decode(payload, type, ""))  # noqa: B010 # see above

    def encode(self, value: object, what: str, declared: Any = Any) -> str:
        """Encode a value of a declared type as JSON; `what` names it in errors.

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
        """Encode and decode a usual value; None if it needs the full checks of `encode` and `decode`."""
        kind = type(value)
        if kind is str and (declared is str or declared is Any):
            return self._store_text(value)
        try:
            data = _encode(value)
            decoded = self._decoders[declared].decode(data)
            get = self._plain_fields.get(kind) if kind is declared else None
            if get is not None and all_plain(map(type, get(value))):
                # Only a NUL in a text is left to be found; the checks below are for other types.
                text = data.decode()
                has_nul = "\\" in text and "\\u0000" in text
                return None if has_nul or len(data) > self._warn_bytes else (text, decoded)
            if (kind is not declared or declared not in self._flat) and decoded != value:
                return None
            # A class may compare something else than its fields; a lost field makes the JSON shorter.
            if kind not in _SCALARS and (
                (len(data) > _QUICK_BYTES and _is_too_deep(data)) or len(_encode(decoded)) != len(data)
            ):
                return None
        except Exception:
            return None
        text = data.decode()
        if len(data) > self._warn_bytes:
            return None
        if kind not in _SIMPLE and (
            # The same checks as in `_is_suspicious`. Single characters are found many times as fast, and mostly absent.
            ("\\" in text and "\\u0000" in text) or "null" in text or ("N" in text and "NaN" in text) or 'nan"' in text
            or ("Z" in text and 'Z"' in text) or _CLOCK.search(text)
        ):  # fmt: skip
            return None
        return text, decoded

    def _store_text(self, value: Any) -> tuple[str, Any] | None:
        """Encode a text, which comes back as it was; None if it needs the full checks."""
        try:
            data = _encode(value)
        except Exception:
            return None
        return None if len(data) > self._warn_bytes or "\0" in value else (data.decode(), value)

    def store(self, value: object, declared: Any, what: str) -> tuple[str, Any]:
        """Encode and decode a value; returns both. Raises `EncodeError` if they differ, and `DecodeError`."""
        stored = self.store_quickly(value, declared)
        if stored is not None:
            return stored
        payload = self.encode(value, what, declared)
        decoded = self.decode(payload, declared, what)
        self.compare(value, decoded, declared, what)
        return payload, decoded

    def compare(self, value: object, decoded: object, declared: Any, what: str) -> None:
        """Raise `EncodeError` if a value came back changed in a way that its declared type does not allow."""
        found = find_difference(value, decoded, self.digest, exact=self.strict or is_open(declared))
        if found is None:
            return
        path, problem = found
        if not is_open(declared):
            fix = f"it is declared as {_name(declared)}: declare its own type, or a union"
        elif what.startswith("result of "):
            returned = f"`-> {type(value).__name__}`" if not path else "with that class in it"
            fix = f"declare the return type, {returned}, or return plain data: {_PLAIN_DATA}"
        else:
            fix = f"annotate it with its class, or pass plain data: {_PLAIN_DATA}"
        raise EncodeError(_message(what, path, f"{problem}; {fix}"), path=path)

    def needs_tags(self, declared: Any, what: str) -> bool:
        """Tell whether values of a type are stored with the names of their classes."""
        return isinstance(self._decoder(declared, what), TaggedDecoder)

    def tagged(self, value: object, declared: Any, what: str) -> object:
        """Add class names to a value where its type is a union of classes."""
        decoder = self._decoder(declared, what)
        return decoder.to_plain(value) if isinstance(decoder, TaggedDecoder) else value

    def decode(self, payload: str | bytes, type: Any, what: str) -> Any:
        """Decode JSON to a type; `what` names the value in errors. Raises `DecodeError`."""
        decoder = self._decoder(type, what)
        try:
            value = decoder.decode(payload)
        except Exception as error:
            # A user's class may raise anything while it is built; the payload does not fit it.
            raise DecodeError(f"cannot decode {what} as {_name(type)}: {error}") from error
        if self.strict:
            self._check_nothing_lost(payload, value, type, what)
        return value

    def decode_quickly(self, payload: str, type: Any) -> Any:
        """Decode JSON to a type that was decoded before. Any error means that `decode` has to be called."""
        return self._decoders[type].decode(payload)

    def _check_nothing_lost(self, payload: str | bytes, value: Any, type: Any, what: str) -> None:
        before = _decode_plain(payload)
        after = _decode_plain(_encode(self.tagged(value, type, what)))
        lost = find_lost(before, after)
        if lost is not None:
            raise DecodeError(f"cannot decode {what} as {_name(type)}: {lost or 'it'} is lost (strict)")

    def check(self, type: Any, what: str) -> None:
        """Raise `DecodeError` if values of a type can never be decoded."""
        self._decoder(type, what)

    def digest_of_fixed(self, args: tuple[Any, ...], step: str) -> str:
        """As `digest` of the arguments of a step, if their types are in `FIXED` and they are given by position."""
        try:
            data = _encode_in_order((args, _NO_KWARGS))
        except Exception:
            return self.digest((args, _NO_KWARGS), step)
        hashing = _new_hash()
        hashing.update(data)
        return hashing.hexdigest()

    def digest(self, value: object, step: str = "") -> str:
        """Twelve hexadecimal digits of the hash of a value's canonical JSON. Raises `EncodeError` if it has none.

        `step`: name of the step, if the value is its arguments, by position and by name.
        """
        try:
            data = _encode_in_order(value)
        except Exception:
            # msgspec sorts neither keys other than text nor elements that do not compare.
            data = b""
        # Arguments of a call are a tuple in a tuple: without a third bracket they contain no set of sets.
        is_plain = type(value) is tuple and data.find(_BRACKET, 2) < 0
        if not data or (not is_plain and _has_set_of_sets(value, data)):
            try:
                data = _encode_in_order(ordered(value, _encode_in_order))
            except Exception as error:
                raise (_bad_arguments(value, step) or _refusal(value, "a value", str(error))) from error
        hashing = _new_hash()
        hashing.update(data)
        return hashing.hexdigest()

    def _decoder(self, type: Any, what: str) -> AnyDecoder:
        try:
            known = self._decoders.get(type)
        except TypeError:
            return _new_decoder(type, what)
        if known is None:
            known = self._decoders[type] = _new_decoder(type, what)
            if is_flat(type):
                self._flat.add(type)
                if (get := plain_fields(type)) is not None:
                    self._plain_fields[type] = get
        return known

    def _weigh(self, size: int, what: str) -> None:
        advice = "keep the data elsewhere (a file, an object store, a table of your own) and pass a reference to it"
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"{what} is {size:,} bytes of JSON; the limit is {self._max_bytes:,}; {advice}, or raise the limit"
            )
        _log.warning("%s is %s bytes of JSON, more than the recommended %s; %s", what, size, self._warn_bytes, advice)


def decoder_of(type: Any) -> AnyDecoder:
    """Make a decoder of JSON to a type. Raises what msgspec raises for a type that it cannot decode."""
    try:
        return decoder_for(Any if type is inspect.Signature.empty else type, dec_hook=decode_model)
    except Exception:
        if not mentions_model(type):
            return _tagged_decoder(type)
    return AdaptedDecoder(type)


def _tagged_decoder(type: Any) -> AnyDecoder:
    """Make a decoder of a type that msgspec refuses because of a union of classes or an enum; else raises its error."""
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
    """Tell whether a value may not survive its JSON. False alarms are cheap; misses are not allowed."""
    if "\\u0000" in text or "NaN" in text or 'nan"' in text:
        return True
    if type(value) is str:
        return False
    if "null" in text and _may_hide_nan(value):
        return True
    # UTC offsets lose their seconds, and the JSON does not show it.
    if 'Z"' in text or _CLOCK.search(text) is not None:
        return True
    if len(data) > 2 * DEPTH and _is_too_deep(data):
        return True
    # Encoding the decoded JSON again gives fewer bytes if two keys of an object have become one.
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
    # Removing the innermost brackets takes as many rounds as there are levels; brackets inside strings only add levels.
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
    # Sorting sets does not raise, although `<` on sets is not a total order.
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
    if path and what.startswith("result of "):
        path = f"result{path}" if path.startswith("[") else f"result.{path}"
    return f"cannot store {what}: {path or 'it'} {problem}"


def _name(type: Any) -> str:
    return getattr(type, "__name__", None) or brief(type)
