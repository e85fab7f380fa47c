"""The database: the contract, and the way to a store that fulfils it."""

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
