"""Headers of a run: a small map of texts that travels with it to its steps, children and activities.

They are stored in the JSON of the run's options, under `headers`, where programs in plain SQL read them. A run without
headers stores and decodes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.plain_json import plain_json
from perdure.core.printed_text import brief
from perdure.errors import DecodeError, UsageError

#: Headers, as users see them.
Headers = Mapping[str, str]

NO_HEADERS: Headers = MappingProxyType({})

#: Number of headers, and characters of a name and of a value.
MOST_HEADERS = 32
NAME_CHARACTERS = 64
VALUE_CHARACTERS = 1024

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_CHARACTERS - 1}}}")
#: Control characters, and halves of characters, which no database stores.
_REFUSED = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
#: Key in the JSON of a run's options, to find it without decoding.
HEADERS_KEY = '"headers":'


class _StoredHeaders(Struct, frozen=True):
    headers: dict[str, str] = {}


_decoder = decoder_for(_StoredHeaders)


def check_headers(given: object) -> Headers:
    """Check headers that a user gave; None gives none. Raises `UsageError`, which names the broken rule."""
    if given is None:
        return NO_HEADERS
    if not isinstance(given, Mapping):
        raise UsageError(f"headers={brief(given)}: give texts by name, such as {{'tenant': 'acme'}}")
    if len(given) > MOST_HEADERS:
        raise UsageError(f"{len(given)} headers are too many; a run has at most {MOST_HEADERS}")
    return {_check_name(name): _check_value(name, value) for name, value in given.items()}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{brief(name)} cannot be the name of a header: use up to {NAME_CHARACTERS} letters, digits, '_', '.' and "
            "'-', and neither '.' nor '-' at the beginning"
        )
    return name


def _check_value(name: object, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"the header {brief(name)} is {brief(value)}; give a text")
    if len(value) > VALUE_CHARACTERS:
        raise UsageError(
            f"the header {brief(name)} has {len(value):,} characters, and {VALUE_CHARACTERS:,} are allowed; pass more "
            "as an argument"
        )
    if _REFUSED.search(value) is not None:
        raise UsageError(f"the header {brief(name)} is {brief(value)}: control characters are not allowed")
    return str(value)


def is_value(text: str) -> bool:
    """Tell whether a text can be the value of a header."""
    return len(text) <= VALUE_CHARACTERS and _REFUSED.search(text) is None


def has_headers(options: str) -> bool:
    """Tell whether the options of a run seem to have headers, without decoding them."""
    return HEADERS_KEY in options


def headers_of(options: str) -> Headers:
    """Decode the headers in a run's options. Raises `DecodeError`."""
    if HEADERS_KEY not in options:
        return NO_HEADERS
    try:
        return MappingProxyType(dict(check_headers(_decoder.decode(options).headers)))
    except (msgspec.MsgspecError, UsageError) as error:
        raise DecodeError(f"the headers in the options {brief(options)} of a run make no sense: {error}") from error


def readable_headers(options: str) -> Headers:
    """Decode the headers in a run's options for people; none if they make no sense."""
    try:
        return headers_of(options)
    except DecodeError:
        return NO_HEADERS


def with_headers(options: str, headers: Headers) -> str:
    """Replace the headers in a run's options."""
    if not headers and HEADERS_KEY not in options:
        return options
    plain: dict[str, Any] = msgspec.json.decode(options)
    plain.pop("headers", None)
    return plain_json({**plain, "headers": dict(headers)} if headers else plain)


def inherit_headers(options: str, parent_options: str, given: Headers) -> str:
    """Add to the options of a run the headers of the run that starts it, and over them those that were given.

    Raises `UsageError` if there are too many, and `DecodeError`.
    """
    if not given and HEADERS_KEY not in parent_options:
        return options
    return with_headers(options, check_headers({**headers_of(parent_options), **given}))
