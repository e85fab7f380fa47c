"""The public names of the frameworks' modules are what the reference documents."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", ["perdure.fastapi", "perdure.django", "perdure.flask"])
def test_a_module_is_what_the_reference_documents(module: str) -> None:
    chapter = PAGE.split(f"## `{module}`\n")[1].split("\n## ")[0]
    public = importlib.import_module(module).__all__
    assert set(re.findall(r"^### `(\w+)`", chapter, flags=re.MULTILINE)) == set(public)
    assert all(getattr(importlib.import_module(module), name).__doc__ for name in public)
