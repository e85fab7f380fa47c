"""A crash point more, on PostgreSQL: between the preparation of a statement and its execution, in a transaction.

The server waits there for its client and counts the session as active, so that none of the limits ends it that a store
sets. The point is passed by workers only: a process that is none has no lease by which others could tell that it stands
still.
"""

from __future__ import annotations

from typing import Any

from perdure.testing.crash import CrashingHost

PREPARED = "statement.prepared"


def pass_after_preparing(world: CrashingHost) -> None:
    """Once it has registered, this process passes the point."""
    from perdure.store.postgres.driver import _NamedSession

    inner = _NamedSession._get_statement
    known: set[Any] = set()

    async def get_statement(session: Any, *args: Any, **options: Any) -> Any:
        statement = await inner(session, *args, **options)
        if statement not in known:
            known.add(statement)
            if session.is_in_transaction() and "register.committed" in world.passed:
                world.pass_point(PREPARED)
        return statement

    _NamedSession._get_statement = get_statement
