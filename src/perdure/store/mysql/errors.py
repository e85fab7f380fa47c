"""Meaning of errors of MySQL, MariaDB and their driver, read from the number and never from the text."""

from __future__ import annotations

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
from perdure.store.mysql.driver import DriverError, ServerNotTrusted

#: Deadlock, lock wait timeout, a row that changed under a snapshot, NOWAIT; and a commit that lost against another
#: node of a cluster, which a server reports as a deadlock, an error during COMMIT (1180) or a rollback during COMMIT
#: (3101).
_LOST_RACE = frozenset({1213, 1205, 1020, 3572, 1180, 3101})
#: Another transaction created the same row at the same moment; the next attempt will see it.
_THERE_NOW = 1062
#: Raised by statements that fail on purpose if a condition does not hold.
_OUT_OF_RANGE = 1690
#: Connection lost or killed; server gone, shutting down, full or not yet ready.
_LOST = frozenset({
    0, 1040, 1042, 1043, 1047, 1053, 1077, 1079, 1080, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1317, 1927,
    1969, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 3032, 3100, 3168, 4031,
})  # fmt: skip
#: A replica, or a former primary, refuses writes.
_READ_ONLY = frozenset({1290, 1792, 1836})
_NO_RIGHT = frozenset({1044, 1142, 1143, 1227, 1370})
_NO_TABLES = frozenset({1146, 1054})
#: A table, column, index or constraint exists already, or was dropped already.
_MADE = frozenset({1050, 1060, 1061, 1091, 1826, 3822})
_FULL = frozenset({1021, 1030, 1037, 1038, 1041, 1114})
_DAMAGED = frozenset({1034, 1035, 1126, 1194, 1195, 1712, 1932})
#: Wrong password, unknown database, a way to log in that the driver does not have; a host that is not allowed, a
#: password that has expired, an account that is locked (MySQL, MariaDB).
_NO_WAY_IN = frozenset({1045, 1049, 1698, 1251, 2058, 2059, 1130, 1862, 3118, 4151})
_TOO_LARGE = frozenset({1153, 1301})

#: Everything that the driver raises; OSError and timeouts come from the network.
ERRORS: tuple[type[Exception], ...] = (DriverError, OSError, TimeoutError)


def is_race(error: BaseException) -> bool:
    """Tell whether another attempt may succeed."""
    return code_of(error) in _LOST_RACE or code_of(error) == _THERE_NOW


def is_refusal(error: BaseException) -> bool:
    """Tell whether a packet was stopped by its own condition, or by a row that exists."""
    return code_of(error) in (_OUT_OF_RANGE, _THERE_NOW)


def is_made(error: BaseException) -> bool:
    """Tell whether the schema had the change of a DDL statement already."""
    return code_of(error) in _MADE


def is_lost(error: BaseException) -> bool:
    """Tell whether another connection may succeed.

    It may if this one broke, or the server restarts, is full or has changed its role.
    """
    if isinstance(error, OSError | TimeoutError):
        return True
    code = code_of(error)
    # An error without a number means packets out of order, after which a connection is unusable.
    return (
        isinstance(error, DriverError)
        and not isinstance(error, ServerNotTrusted)
        and (code is None or code in _LOST or code in _READ_ONLY)
    )


def translate(error: BaseException, where: str) -> StoreError:
    """Return the error of the store contract for a driver error; `where` names the database."""
    if isinstance(error, ServerNotTrusted):
        return StoreRefused(f"{where} is not trusted: {_text(error)}")
    code = code_of(error)
    detail = f"{_text(error)} ({code if code is not None else type(error).__name__})"
    if code in _READ_ONLY:
        return StoreReadOnly(f"{where} does not accept writes: {detail}; point the URL at the primary")
    if code in _NO_RIGHT:
        return StoreDenied(
            f"{where} denies this user a right: {detail}; grant it SELECT, INSERT, UPDATE and DELETE on the tables, "
            "and run `perdure migrate` as a user that may create tables"
        )
    if code in _NO_TABLES:
        return SchemaMismatch(f"{where} lacks a table of Perdure: {detail}; run `perdure migrate` once")
    if code in _FULL:
        return StoreFull(f"{where} has no room left or its disk fails: {detail}; free some space or check the disk")
    if code in _DAMAGED:
        return StoreCorrupt(f"{where} reports damage: {detail}; read the server's log and restore a backup if need be")
    if code in _TOO_LARGE:
        return StoreError(f"{where} does not take so large a value: {detail}; raise the server's max_allowed_packet")
    if code in _NO_WAY_IN:
        return StoreRefused(
            f"{where} does not let this user in: {detail}; check the user, password and database of the URL, and the "
            "access rules of the server"
        )
    if is_lost(error) or is_race(error):
        return StoreUnavailable(f"{where} cannot be used now: {detail}; check that it runs and that the URL is right")
    return StoreError(f"{where} refused a statement: {detail}")


def code_of(error: BaseException) -> int | None:
    """Return the number of an error; None if it has none."""
    number = error.args[0] if isinstance(error, DriverError) and error.args else None
    return number if isinstance(number, int) else None


def _text(error: BaseException) -> str:
    text = error.args[1] if isinstance(error, DriverError) and len(error.args) > 1 else error
    return str(text) or type(error).__name__
