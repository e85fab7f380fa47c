"""`perdure init`: the project that it makes passes its own tests and checks, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.init.command import FILES, project_name
from tests.cli.conftest import Perdure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "My Shop"
    command = [sys.executable, "-m", "perdure.cli", "init", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider"),
        # What mypy found out about the package itself is kept for the next time.
        ("mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "init"), "."),
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_the_project_passes_its_own_checks(project: Path, words: tuple[str, ...]) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=project, env=plain, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_tests_of_the_project_can_fail(project: Path, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (project / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace('"approval", bool', '"aproval", bool'), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_it_names_the_files_and_the_next_two_commands(perdure: Perdure, tmp_path: Path) -> None:
    answer = perdure("init", "my shop")
    assert (answer.code, answer.err) == (0, "")
    for name in FILES:
        assert name in answer.out
        assert (tmp_path / "my shop" / name).is_file()
    assert "cd 'my shop' && perdure dev app:engine" in answer.out
    assert "cd 'my shop' && pip install --group dev && pytest" in answer.out
    made = perdure("init", "other", "--json").json
    assert made["files"] == [*FILES]
    assert made["next"][0] == "cd other && perdure dev app:engine"


def test_the_working_directory_is_the_default(perdure: Perdure, tmp_path: Path) -> None:
    answer = perdure("init", "--json")
    assert answer.json["next"] == ["perdure dev app:engine", "pip install --group dev && pytest"]
    assert (tmp_path / "app.py").is_file()


@pytest.mark.parametrize("taken", [*FILES])
def test_nothing_is_overwritten_and_nothing_is_made_beside_it(perdure: Perdure, tmp_path: Path, taken: str) -> None:
    mine = tmp_path / "mine" / taken
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    answer = perdure("init", "mine")
    assert (answer.code, f"has {taken} already" in answer.err) == (1, True), answer.err
    assert mine.read_text(encoding="utf-8") == "mine"
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [mine]


def test_a_folder_that_cannot_be_written_is_left_as_it_was(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "is a file; name a folder" in perdure("init", "file").err
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "tests").write_text("", encoding="utf-8")
    answer = perdure("init", "half")
    assert (answer.code, "cannot make a project in 'half'" in answer.err) == (1, True), answer.err
    assert [path.name for path in (tmp_path / "half").iterdir()] == ["tests"]


@pytest.mark.parametrize(
    ("folder", "name"), [("My Shop", "my-shop"), ("__", "orders"), ("shop", "shop"), ("été 2", "t-2")]
)
def test_the_name_of_a_project_is_that_of_a_package(folder: str, name: str) -> None:
    assert project_name(Path(folder)) == name


def test_the_readme_has_ten_lines(project: Path) -> None:
    assert len((project / "README.md").read_text(encoding="utf-8").splitlines()) == 10
