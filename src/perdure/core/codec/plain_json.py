"""JSON of our own values: settings, bounds and data of events, whose members were checked where they were given."""

from __future__ import annotations

import msgspec


def _base_value(value: object) -> object:
    """A text or number of a subclass, which a user may have given, as its base class."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a {type(value).__name__} has no JSON")


#: Encodes a value. Raises `TypeError` and `ValueError`.
plain_bytes = msgspec.json.Encoder(enc_hook=_base_value).encode


def plain_json(value: object) -> str:
    """Encode a value as text. Raises `TypeError` and `ValueError`."""
    return plain_bytes(value).decode()
