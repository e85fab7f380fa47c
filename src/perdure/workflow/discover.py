"""Definitions for an engine: decorated functions and state machines, listed by hand or found in a package.

A definition is a value; nothing is registered anywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.workflow.definition import Definition
from perdure.workflow.machine.state_machine import StateMachine

#: A workflow or activity for an engine: a decorated function, or the class of a state machine.
Definable = Definition[Any, Any] | type[StateMachine[Any, Any]]


#: Longest name of a package, in characters; the import system spends time on longer ones.
_LONGEST_NAME = 1000


def definition_of(value: Definable) -> Definition[Any, Any]:
    """The definition of a decorated function or of a state machine's class. Raises `UsageError`."""
    if isinstance(value, type) and issubclass(value, StateMachine):
        return value.definition()
    if not isinstance(value, Definition):
        raise UsageError(f'{brief(value)} is not a workflow; decorate it with @workflow("...")')
    return value


def discover(package: str | ModuleType) -> list[Definition[Any, Any]]:
    """Find all workflows and activities in the modules of a package, for an `Engine`.

    Raises `UsageError` if a module cannot be imported, or if two workflows have the same type.
    """
    found: dict[str, tuple[Definition[Any, Any], str]] = {}
    for module in _modules(package):
        for value in list(vars(module).values()):
            if isinstance(value, type) and issubclass(value, StateMachine):
                try:
                    value = value.definition()
                except UsageError:
                    continue  # a base of other machines, which has no type
            if not isinstance(value, Definition):
                continue
            known, where = found.setdefault(value.type, (value, value.__module__))
            if known is not value:
                raise UsageError(
                    f"two workflows have the type {value.type!r}: {where}.{known.__qualname__} and "
                    f"{value.__module__}.{value.__qualname__}; each needs its own"
                )
    return [workflow for workflow, _ in found.values()]


def _modules(package: str | ModuleType) -> Iterator[ModuleType]:
    root = _import(package) if isinstance(package, str) else package
    if not isinstance(root, ModuleType):
        raise UsageError(f"discover takes the name of a package, or a module, not {brief(package)}")
    yield root
    for info in sorted(
        pkgutil.iter_modules(getattr(root, "__path__", ()), f"{root.__name__}."), key=lambda one: one.name
    ):
        # Importing a `__main__` would run it.
        if info.name.rpartition(".")[2] != "__main__":
            yield from _modules(info.name)


def _import(name: str) -> ModuleType:
    if len(name) > _LONGEST_NAME:
        raise UsageError(f"{brief(name)} is too long for the name of a package")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"cannot look for workflows in {name}: {type(error).__name__}: {error}") from error
