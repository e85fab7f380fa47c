"""The Django app: tables of Perdure after `manage.py migrate`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from perdure.client.engine import Engine
from perdure.django.project_settings import database_url, project_settings

#: Databases that this process has migrated: tests of Django repeat the signal.
_migrated: set[str] = set()


class PerdureConfig(AppConfig):
    """The app `perdure.django`, under the label `perdure`."""

    name = "perdure.django"
    label = "perdure"
    verbose_name = "Perdure"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Check the setting `PERDURE`, and follow migrations."""
        project_settings()
        post_migrate.connect(_create_tables, sender=self, dispatch_uid="perdure")


def _create_tables(*, using: str, **_: Any) -> None:
    """Create or update the tables, in the database that was migrated."""
    chosen = project_settings()
    if not chosen.migrate or chosen.url is not None or using != chosen.database:
        return
    database: Any = connections[using]
    if database.vendor == "sqlite" and database.is_in_memory_db():
        return
    url = database_url()
    if url not in _migrated:
        with Engine(url).blocking() as engine:
            engine.open()
        _migrated.add(url)
