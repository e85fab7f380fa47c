"""Engines of a project: one that blocks for each process, and an async one for each event loop."""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from django.apps import apps

from perdure.client.blocking import Engine as BlockingEngine
from perdure.client.engine import Engine
from perdure.django.connections import CloseConnections
from perdure.django.project_settings import database_url, project_settings
from perdure.workflow.definition import Definition
from perdure.workflow.discover import discover

_lock = threading.Lock()
#: By address: tests of Django use another database than the server.
_blocking: dict[str, BlockingEngine] = {}
_async: WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = WeakKeyDictionary()


def engine() -> BlockingEngine:
    """Return the engine of the project, whose methods block. Threads of a process share it."""
    url = database_url()
    with _lock:
        if url not in _blocking:
            _blocking[url] = make_engine().blocking()
        return _blocking[url]


def close_engine() -> None:
    """Close the blocking engine of the project, if there is one; the next call of `engine` makes another."""
    with _lock:
        known = _blocking.pop(database_url(), None)
    if known is not None:
        known.close()


def async_engine() -> Engine:
    """Return the engine of the project for async code, one for each event loop."""
    loop, url = asyncio.get_running_loop(), database_url()
    with _lock:
        if (known := _async.get(loop)) is None or known.url != url:
            known = _async[loop] = make_engine()
        return known


def make_engine() -> Engine:
    """Make an engine by the setting `PERDURE`. Raises `ImproperlyConfigured`."""
    chosen = project_settings()
    options: dict[str, Any] = {"migrate": chosen.migrate, **chosen.options}
    options["middleware"] = [*options.get("middleware", ()), CloseConnections()]
    return Engine(database_url(), _workflows(chosen.workflows), **options)


def _workflows(modules: list[str] | None) -> list[Definition[Any, Any]]:
    if modules is None:
        named = [f"{app.name}.workflows" for app in apps.get_app_configs()]
        modules = [name for name in named if find_spec(name) is not None]
    found = [one for name in modules for one in discover(import_module(name))]
    return list({id(one): one for one in found}.values())
