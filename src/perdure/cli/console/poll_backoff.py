"""The option `--poll-backoff`."""

from __future__ import annotations

from typing import Any

import click

_FORMAT = "write it as first=1s,shortest=500ms,longest=30s,idle=1.2,busy=0.8, or a part of that"


def parse_poll_backoff(context: click.Context, option: click.Parameter, text: str | None) -> dict[str, Any]:
    """Parse the pairs of the option. Their values are checked with the other options of a worker."""
    given: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} has no value; {_FORMAT}")
        given[name.strip()] = _number(value) if name.strip() in ("idle", "busy") else value.strip()
    return given


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; {_FORMAT}") from None
