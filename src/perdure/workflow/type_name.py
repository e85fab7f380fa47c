"""Type of a workflow or activity that is declared without one: its module and its name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

#: Names of the module that a program begins with; the second one in processes that `multiprocessing` spawns.
_MAIN = ("__main__", "__mp_main__")


def default_type(function: Callable[..., Any]) -> str:
    """The module and name of a function, such as `shop.orders.checkout`.

    A program that is run as a script has the name of its file, so that `python shop.py` and `import shop` agree.
    """
    module: str = getattr(function, "__module__", None) or _MAIN[0]
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{_main_name() if module in _MAIN else module}.{name.replace('.<locals>', '')}"


def _main_name() -> str:
    main = sys.modules.get(_MAIN[0])
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return _MAIN[0] if file is None else PurePath(file).stem
