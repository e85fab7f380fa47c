"""A plugin of pytest: the module that PERDURE_FAULT names is loaded with the text that it gives, and nothing on the
disk is changed."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

FAULT = "PERDURE_FAULT"


class Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and executes another text than its file has."""

    def __init__(self, name: str, path: str, text: str) -> None:
        self._name = name
        self._path = path
        self._text = text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        package = Path(self._path).name == "__init__.py"
        places = [str(Path(self._path).parent)] if package else None
        return importlib.util.spec_from_file_location(name, self._path, loader=self, submodule_search_locations=places)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, self._path, "exec"), module.__dict__)


def _plant(told: str) -> None:
    fault = json.loads(Path(told).read_text(encoding="utf-8"))
    if fault["name"] in sys.modules:
        raise RuntimeError(f"{fault['name']} was imported before the fault could be planted")
    sys.meta_path.insert(0, Planter(fault["name"], fault["path"], fault["text"]))


if FAULT in os.environ:
    _plant(os.environ[FAULT])
