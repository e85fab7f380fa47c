"""Meaning of errors of PostgreSQL and of its driver, read from the SQLSTATE and never from the text."""

from __future__ import annotations

import ssl

from perdure.errors import (
    SchemaMismatch,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from perdure.store.postgres.driver import ConfigurationError, DriverErrors, ServerError

#: The transaction lost against another one; the connection still works.
_LOST_RACE = frozenset({"40001", "40P01", "55P03"})
#: A prepared statement is missing or taken: a pooler gives the session to other clients between transactions.
_POOLED = frozenset({"26000", "42P05"})
_NO_TABLES = frozenset({"42P01", "3F000"})
_NO_RIGHT = "42501"
#: Some servers that speak the protocol lack functions of PostgreSQL.
_NO_FUNCTION = "42883"
_READ_ONLY = "25006"
#: Classes: wrong password, unknown role, no rule that admits it; unknown database.
_NO_WAY_IN = ("28", "3D")

#: Everything that the driver raises; OSError and timeouts come from the network.
ERRORS: tuple[type[Exception], ...] = (ServerError, *DriverErrors, OSError, TimeoutError)


def is_race(error: BaseException) -> bool:
    """Tell whether another attempt at once, on the same connection, may succeed."""
    return _state(error) in _LOST_RACE


def is_pooled(error: BaseException) -> bool:
    """Tell whether a pooler lost our prepared statement. Nothing was executed then."""
    return _state(error) in _POOLED


def is_refused(error: BaseException) -> bool:
    """Tell whether this role may not call a function, or the server lacks it."""
    return _state(error) in (_NO_RIGHT, _NO_FUNCTION)


def is_lost(error: BaseException) -> bool:
    """Tell whether another connection may succeed.

    It may if this one broke or was pooled, or the server restarts, is full or has changed its role.
    """
    state = _state(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return (
        # A ValueError of the driver is about a parameter, which no other connection would accept either.
        (isinstance(error, (*DriverErrors, OSError, TimeoutError)) and not isinstance(error, ValueError))
        or state[:2] == "08"
        or state[:3] == "57P"
        or state in ("57014", "25P03", "53300", _READ_ONLY)
        or state in _POOLED
    )


def translate(error: BaseException, where: str) -> StoreError:
    """Return the error of the store contract for a driver error; `where` names the database."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where} is not trusted: its certificate cannot be verified: {error.verify_message}; add sslrootcert=FILE "
            "to the URL if it was issued by an authority of your own, and use a host name that is in the certificate"
        )
    if isinstance(error, ConfigurationError):
        return StoreRefused(f"{where} cannot be used with this URL: {error}")
    state = _state(error)
    detail = f"{str(error) or type(error).__name__} ({state or type(error).__name__})"
    if state == _READ_ONLY:
        return StoreReadOnly(f"{where} does not accept writes: {detail}; point the URL at the primary")
    if state == _NO_RIGHT:
        return StoreDenied(
            f"{where} denies this user a right: {detail}; grant it SELECT, INSERT, UPDATE and DELETE on the tables, "
            "and run `perdure migrate` as a user that may create tables"
        )
    if state in _NO_TABLES:
        return SchemaMismatch(f"{where} lacks a table of Perdure: {detail}; run `perdure migrate` once")
    if state in ("53100", "58030"):
        return StoreFull(f"{where} has no room left or its disk fails: {detail}; free some space or check the disk")
    if state[:2] == "XX":
        return StoreCorrupt(f"{where} reports damage: {detail}; read the server's log and restore a backup if need be")
    if state[:2] in _NO_WAY_IN:
        return StoreRefused(
            f"{where} does not let this user in: {detail}; check the user, password and database of the URL, and the "
            "access rules of the server"
        )
    if is_lost(error) or is_race(error) or state[:2] == "53":
        return StoreUnavailable(f"{where} cannot be used now: {detail}; check that it runs and that the URL is right")
    return StoreError(f"{where} refused a statement: {detail}")


def _state(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""
