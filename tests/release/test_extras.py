"""Each extra works alone, and the library without any."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.release.probes import PROBES

ROOT = Path(__file__).parent.parent.parent
#: Not among the packages of development, because workers use it where it is installed.
ONLY_WHEN_PROVING = {"fast"}
PROVE = bool(os.environ.get("PERDURE_PROVE"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}


def ask(python: str | Path, folder: Path, *arguments: str) -> None:
    command = [python, "-m", "tests.release.probes", *arguments]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_extra_has_a_probe() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert PROBES.keys() - {""} == extras.keys() - {"all"}


@pytest.mark.parametrize("extra", [extra for extra in PROBES if extra not in ONLY_WHEN_PROVING])
def test_an_extra_imports_only_what_it_needs(extra: str, tmp_path: Path) -> None:
    ask(sys.executable, tmp_path, extra)


@pytest.mark.skipif(not PROVE, reason="installs each extra from the package index; set PERDURE_PROVE=1")
@pytest.mark.parametrize("extra", [*PROBES, "all"])
def test_an_extra_installs_alone_into_an_empty_environment(extra: str, wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([*pip, "install", wanted], check=True, env=ENVIRONMENT)
    subprocess.run([*pip, "check"], check=True, env=ENVIRONMENT)
    ask(python, tmp_path, "" if extra == "all" else extra, "--installed")
