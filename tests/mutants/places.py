"""Tests that no fault reaches, because other processes do not have it, or that need a server."""

from __future__ import annotations

import pytest

PLACES = (
    "tests/faults/", "tests/store/migrations/", "tests/mutants/", "tests/store/postgres/", "tests/store/mysql/",
    "tests/servers/", "tests/typing/", "tests/test_",
    "tests/cli/test_demo.py", "tests/cli/test_stress.py",
)  # fmt: skip
_FIXTURES = frozenset({"processes", "postgres", "mysql", "on_server", "on_postgres", "on_mysql"})
_SERVERS = ("postgres", "mysql")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave such tests out of a collection."""
    left_out = {item for item in items if _is_out_of_reach(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_out_of_reach(item: pytest.Item) -> bool:
    return (
        item.nodeid.startswith(PLACES)
        or item.get_closest_marker("timeout") is not None
        or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or any(server in item.nodeid for server in _SERVERS)
    )
