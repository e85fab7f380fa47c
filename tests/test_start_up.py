"""The start of a program: which modules are imported before they are needed, and that names come when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

#: Packages whose names are loaded when they are first used.
LAZY = ("perdure", "perdure.worker")
#: Modules that take long to import, and that few programs need.
HEAVY = {"click", "rich", "multiprocessing.connection", "pydantic", "asyncpg", "importlib.metadata", "uvloop"}


def modules_after(code: str) -> set[str]:
    """The modules that are loaded in a process that has executed this."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_alone_loads_next_to_nothing() -> None:
    loaded = modules_after("import perdure")
    assert {one for one in loaded if one.startswith("perdure")} == {
        "perdure",
        "perdure.core",
        "perdure.core.lazy_exports",
        # Empty. The decorator of this name is loaded when it is used.
        "perdure.workflow",
    }
    assert loaded & {"asyncio", "msgspec", "logging", "inspect", "cronsim", "zoneinfo", "sqlite3", *HEAVY} == set()


def test_a_client_loads_no_worker() -> None:
    loaded = modules_after("from perdure import Engine\nEngine('sqlite:///none.db')")
    assert {one for one in loaded if one.startswith(("perdure.worker.", "perdure.replay."))} == {
        "perdure.replay.run_loop",
        # The options of `Engine.worker`, which its type hints name.
        "perdure.worker.options",
        "perdure.worker.workflow_guard",
    }
    assert loaded & HEAVY == set()


def test_workflow_code_loads_no_database() -> None:
    loaded = modules_after("from perdure import Context, Retry, activity, step, workflow")
    unneeded = ("perdure.worker", "perdure.replay", "perdure.store", "perdure.client", "perdure.cli", "sqlite3")
    assert {one for one in loaded if one.startswith(unneeded)} == set()
    assert loaded & HEAVY == set()


def test_the_command_line_loads_commands_when_they_are_used() -> None:
    loaded = modules_after("from perdure.cli import main\nmain")
    assert {one for one in loaded if one.startswith(("perdure.client", "perdure.store", "perdure.worker"))} == set()
    assert loaded & {"asyncio", "msgspec", "sqlite3", *(HEAVY - {"click"})} == set()


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_and_the_table_of_a_package_agree(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    [block, table] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    [lazily] = [node for node in ast.walk(table) if isinstance(node, ast.Dict)]
    exported: dict[str, list[str]] = ast.literal_eval(lazily)
    assert imported == {name: source for source, names in exported.items() for name in names}
    assert set(imported) == set(module.__all__) <= set(dir(module))
    for name in imported:
        assert getattr(module, name) is not None


def test_a_name_that_a_subpackage_has_too_stays_a_function() -> None:
    code = "import perdure\nimport perdure.workflow.definition\nfrom perdure import workflow\nassert callable(workflow)"
    assert "perdure.workflow" in modules_after(code)


def test_errors_are_an_attribute_and_other_names_are_not() -> None:
    code = "import perdure\nassert perdure.errors.RunFailed is perdure.RunFailed"
    assert "perdure.client.engine" not in modules_after(code)
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'nothing'"):
        import_module("perdure").nothing  # noqa: B018 - reading it is the test
