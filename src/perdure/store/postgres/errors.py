"""What an error of PostgreSQL or of the way to it means, by its SQLSTATE and never by its text."""

from __future__ import annotations

from perdure.errors import (
    SchemaMismatch,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from perdure.store.postgres.driver import DriverErrors, ServerError

#: The transaction lost against another one; the connection is fine.
_LOST_RACE = frozenset({"40001", "40P01", "55P03"})
#: Prepared statements are not ours alone: a pooler hands the session to others between transactions.
_POOLED = frozenset({"26000", "42P05"})
_NO_TABLES = frozenset({"42P01", "3F000"})
_NO_RIGHT = "42501"
#: Some servers that speak the protocol lack functions of PostgreSQL.
_NO_FUNCTION = "42883"
_READ_ONLY = "25006"
#: Classes: wrong password, unknown role, no rule that admits it; unknown database.
_NO_WAY_IN = ("28", "3D")

#: What the driver raises when something is wrong; OSError and timeouts are the network's.
ERRORS: tuple[type[Exception], ...] = (ServerError, *DriverErrors, OSError, TimeoutError)


def is_race(error: BaseException) -> bool:
    """Whether trying again at once, on the same connection, is all there is to do."""
    return _state(error) in _LOST_RACE


def is_pooled(error: BaseException) -> bool:
    """Whether a pooler stands between us and the server that does not keep prepared statements. Nothing was executed then."""
    return _state(error) in _POOLED


def is_refused(error: BaseException) -> bool:
    """Whether the server does not let this role call a function, or has no such function."""
    return _state(error) in (_NO_RIGHT, _NO_FUNCTION)


def is_lost(error: BaseException) -> bool:
    """Whether another connection may succeed: this one broke or was pooled, the server restarts, is full, or changed its role."""
    state = _state(error)
    return (
        # The driver's ValueErrors are about a parameter, which no other connection would take either.
        (isinstance(error, (*DriverErrors, OSError, TimeoutError)) and not isinstance(error, ValueError))
        or state[:2] == "08"
        or state[:3] == "57P"
        or state in ("57014", "25P03", "53300", _READ_ONLY)
        or state in _POOLED
    )


def translate(error: BaseException, where: str) -> StoreError:
    """The error that the contract knows; `where` names the database."""
    state = _state(error)
    detail = f"{str(error) or type(error).__name__} ({state or type(error).__name__})"
    if state == _READ_ONLY:
        return StoreReadOnly(f"{where} does not accept writes: {detail}. Point the URL at the primary.")
    if state == _NO_RIGHT:
        return StoreReadOnly(
            f"{where} refuses this user: {detail}. Grant it SELECT, INSERT, UPDATE and DELETE on the tables, and let somebody "
            "who may create tables run `perdure migrate`."
        )
    if state in _NO_TABLES:
        return SchemaMismatch(f"{where} lacks a table of Perdure: {detail}. Run `perdure migrate` once.")
    if state in ("53100", "58030"):
        return StoreFull(f"{where} has no room left or its disk fails: {detail}. Free some space or check the disk.")
    if state[:2] == "XX":
        return StoreCorrupt(f"{where} reports damage: {detail}. Look at the server's log; restore a backup if need be.")
    if state[:2] in _NO_WAY_IN:
        return StoreRefused(
            f"{where} does not let this user in: {detail}. Check user, password and database of the URL, and whom the server lets in."
        )
    if is_lost(error) or is_race(error) or state[:2] == "53":
        return StoreUnavailable(f"{where} cannot be used now: {detail}. Check that it runs and that the URL is right.")
    return StoreError(f"{where} refused a statement: {detail}.")


def _state(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""
