"""Packages that import a module when one of its names is used for the first time.

Most programs use a part of Perdure: a web server starts runs and has no worker. Type checkers read the imports that a
package makes under `TYPE_CHECKING`; a test compares them with the table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose names are loaded when they are first used."""

    #: Module of each name, and the modules that are names themselves.
    _where: Mapping[str, str]
    _modules: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        if (module := self._where.get(name)) is not None:
            value = getattr(import_module(module), name)
        elif name in self._modules:
            value = import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # After the first import of a subpackage, Python binds it here, under a name that may be that of a function.
        if not (name in self._where and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._where, *self._modules})


def export_lazily(package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> None:
    """Let a package load these names, by module, and these modules of its own when they are first used."""
    found = sys.modules[package]
    vars(found)["_where"] = {name: module for module, exported in names.items() for name in exported}
    vars(found)["_modules"] = frozenset(modules)
    found.__class__ = LazyPackage
