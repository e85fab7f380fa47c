"""The link to the dashboard in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from perdure.django.models import DashboardLink
from perdure.django.project_settings import project_settings
from perdure.django.roles import role_of


@admin.register(DashboardLink)
class DashboardLinkAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no class of Django is generic at run time
    """A link: its list leads to the dashboard, and there is nothing to add or change."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Redirect to the dashboard."""
        return HttpResponseRedirect(project_settings().dashboard)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the link to users with a role."""
        return role_of(request.user) is not None

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Show the link to users with a role."""
        return role_of(request.user) is not None

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: there is nothing to add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: there is nothing to change."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: there is nothing to delete."""
        return False
