"""Plain SQL statements for producers and for workers in other languages."""

from perdure.store.plain_sql.statements import NAMES, PlainStatement, statement

__all__ = ["NAMES", "PlainStatement", "statement"]
