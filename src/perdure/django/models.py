"""Permissions of the dashboard, and its link in Django's admin. There is no table."""

from __future__ import annotations

from django.db import models


class DashboardLink(models.Model):
    """The dashboard as the admin lists it, and the permissions that give roles in it."""

    class Meta:
        """A model without a table."""

        managed = False
        app_label = "perdure"
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"
        default_permissions = ()
        permissions = (
            ("view_runs", "Can see runs (viewer)"),
            ("operate_runs", "Can start and control runs (operator)"),
            ("administer", "Can do everything in the dashboard (admin)"),
        )

    def __str__(self) -> str:
        return "dashboard"
