"""The recipes are complete programs, which print what their pages show, and to which no crash makes a difference."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.testing import crash_everywhere

FOLDER = Path(__file__).parent.parent.parent / "docs" / "recipes"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What is crashed of each recipe: arguments of `crash_everywhere`.
CRASHES: list[tuple[str, Callable[[Any], dict[str, Any]]]] = [
    ("agent", lambda it: {"call": it.agent("My lamp is broken."), "messages": [("approval", True)]}),
    ("agent", lambda it: {"call": it.agent("My lamp is broken.")}),
    ("cron-report", lambda it: {"call": it.sales_report("boss@example.org"), "world": it.mails}),
    ("etl", lambda it: {"call": it.import_day("2026-11-18"), "workflows": [it.load_file]}),
    (
        "human-tasks",
        lambda it: {
            "call": it.approve("lunch", ["ann"]),
            "world": it.mails,
            "messages": [("decision", it.Decision(by="ann", approved=True))],
        },
    ),
    ("human-tasks", lambda it: {"call": it.approve("party", ["ann", "bob"]), "world": it.mails}),
    ("saga", lambda it: {"call": it.subscribe("ann", 999), "world": it.PROVIDER}),
    ("saga", lambda it: {"call": it.subscribe("bob", 999), "world": it.PROVIDER}),
    ("tenant-limits", lambda it: {"call": it.build_export("big", 1)}),
    ("webhooks", lambda it: {"call": it.invoice("acme", 7)}),
]


def source_of(page: Path) -> tuple[str, str]:
    """The program of a page, and its output."""
    (_, program), (_, output) = (one for one in BLOCK.findall(page.read_text(encoding="utf-8")) if one[0] != "sh")
    return program, output


def test_there_is_a_recipe_for_each_task() -> None:
    names = {"agent", "cron-report", "etl", "human-tasks", "saga", "tenant-limits", "webhooks"}
    assert {page.stem for page in PAGES} == names == {name for name, _ in CRASHES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_prints_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    program, output = source_of(page)
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "recipe.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports the program of a page, from a module that other processes can import."""

    def load(name: str) -> ModuleType:
        module = f"recipe_{name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(source_of(FOLDER / f"{name}.md")[0], encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return import_module(module)

    return load


@pytest.mark.parametrize(("name", "crash"), CRASHES, ids=[name for name, _ in CRASHES])
async def test_no_crash_makes_a_difference_to_a_recipe(
    name: str, crash: Callable[[Any], dict[str, Any]], recipe: Callable[[str], ModuleType]
) -> None:
    options = crash(recipe(name))
    report = await crash_everywhere(options.pop("call"), **options)
    assert report.ok, report
    assert report.isolated
    assert report.crashes
