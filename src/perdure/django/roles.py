"""Roles in the dashboard by the permissions of Django's users."""

from __future__ import annotations

from typing import Any

from perdure.core.access import Role

_PERMISSIONS = (
    ("perdure.administer", Role.ADMIN),
    ("perdure.operate_runs", Role.OPERATOR),
    ("perdure.view_runs", Role.VIEWER),
)


def role_of(user: Any) -> Role | None:
    """Return the role of a user, or None. A superuser has all permissions, and an inactive user has none."""
    return next((role for permission, role in _PERMISSIONS if user.has_perm(permission)), None)
