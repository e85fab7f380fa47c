"""Perdure in projects of Django: add `perdure.django` to INSTALLED_APPS. It needs the extra `perdure[django]`.

`perdure.django.asgi` mounts the dashboard.
"""

from perdure.django.engines import async_engine, engine
from perdure.django.transactions import send, start, start_on_commit

__all__ = ["async_engine", "engine", "send", "start", "start_on_commit"]
