"""The command line `perdure`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.lazy_exports import export_lazily

if TYPE_CHECKING:
    from perdure.cli.app import main

__all__ = ["main"]

export_lazily(__name__, {"perdure.cli.app": ("main",)})
del export_lazily
