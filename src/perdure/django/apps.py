"""The Django app: tables of Perdure after `manage.py migrate`, and no runs after a test that commits."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import mail
from django.db import connections, transaction
from django.db.models.signals import post_migrate

from perdure.client.engine import Engine
from perdure.django.engines import close_engine
from perdure.django.project_settings import database_url, project_settings

#: Databases that this process has migrated: tests of Django repeat the signal.
_migrated: set[str] = set()
#: Tables that a flush leaves as they are: the schema, and what processes that are alive have registered.
_KEPT = frozenset({f"perdure_{name}" for name in ("migrations", "workers", "registry", "health", "documents")})


class PerdureConfig(AppConfig):
    """The app `perdure.django`, under the label `perdure`."""

    name = "perdure.django"
    label = "perdure"
    verbose_name = "Perdure"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Check the setting `PERDURE`, and follow migrations."""
        project_settings()
        post_migrate.connect(_follow, sender=self, dispatch_uid="perdure")


def _follow(*, using: str, **given: Any) -> None:
    """Create or update the tables in a database that was migrated; empty them after a test that commits."""
    chosen = project_settings()
    if not chosen.migrate or chosen.url is not None or using != chosen.database:
        return
    database: Any = connections[using]
    if database.vendor == "sqlite" and database.is_in_memory_db():
        return
    # Tests of Django flush the database after each test that commits, which sends the signal without a plan of
    # migrations. Migrations of a project may send it, too, to create permissions: that must not delete a run.
    if "plan" not in given:
        if _is_under_test():
            _empty_tables(using)
            # Else its connections keep Django from dropping the test database.
            close_engine()
        return
    url = database_url()
    if url not in _migrated:
        with Engine(url).blocking() as engine:
            engine.open()
        _migrated.add(url)


def _is_under_test() -> bool:
    """Tell whether `setup_test_environment` was called, by two of its public effects."""
    return hasattr(mail, "outbox") and "testserver" in settings.ALLOWED_HOSTS


def _empty_tables(alias: str) -> None:
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        for table in connections[alias].introspection.table_names(cursor):
            if table.startswith("perdure_") and table not in _KEPT:
                cursor.execute(f"DELETE FROM {table}")
