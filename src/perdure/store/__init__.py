"""The database: the contract, and the way to a store that fulfils it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.lazy_exports import export_lazily

if TYPE_CHECKING:
    from perdure.store.contract import MUTATING_VERBS, Listener, Store
    from perdure.store.factory import migration_script, migration_status, open_store, tables_of
    from perdure.store.migrations import MigrationStatus
    from perdure.store.retrying import Retrying
    from perdure.store.sql.store import SqlStore

__all__ = [
    "MUTATING_VERBS",
    "Listener",
    "MigrationStatus",
    "Retrying",
    "SqlStore",
    "Store",
    "migration_script",
    "migration_status",
    "open_store",
    "tables_of",
]

export_lazily(
    __name__,
    {
        "perdure.store.contract": (
            "MUTATING_VERBS",
            "Listener",
            "Store",
        ),
        "perdure.store.factory": (
            "migration_script",
            "migration_status",
            "open_store",
            "tables_of",
        ),
        "perdure.store.migrations": ("MigrationStatus",),
        "perdure.store.retrying": ("Retrying",),
        "perdure.store.sql.store": ("SqlStore",),
    },
)
del export_lazily
