"""The wheel and the sdist: built twice with the same bytes, complete, small, and with the licences of their parts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VENDORED = ROOT / "src" / "perdure" / "dashboard"


def files_of_the_repository() -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in found if name and (ROOT / name).is_file()]


def copy(target: Path, *, time: int, mode: int) -> Path:
    """A copy of the repository whose files have other times and permissions."""
    for name in reversed(files_of_the_repository()) if time % 2 else files_of_the_repository():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
        path.chmod(mode)
        os.utime(path, (time, time))
    return target


def build(folder: Path, **environment: str) -> dict[str, Path]:
    """Build the sdist and the wheel: files by their ending."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--target", "wheel", "-d", "out"]
    plain = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    ran = subprocess.run(command, cwd=folder, env=plain | environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {path.suffix: path for path in (folder / "out").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = copy(tmp_path_factory.mktemp("first"), time=1_600_000_000, mode=0o644)
    return build(folder, SOURCE_DATE_EPOCH="1700000000", PYTHONHASHSEED="1", TZ="Asia/Tokyo")


def digest(path: Path) -> tuple[str, str]:
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_two_builds_have_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(tmp_path / "second", time=1_650_000_001, mode=0o664)
    again = build(folder, SOURCE_DATE_EPOCH="1700000000", PYTHONHASHSEED="2", TZ="America/Lima", LC_ALL="C")
    assert {digest(path) for path in again.values()} == {digest(path) for path in built.values()}


def test_the_wheel_is_pure_python_and_small(built: dict[str, Path]) -> None:
    assert built[".whl"].name == f"perdure-{PROJECT['version']}-py3-none-any.whl"
    assert built[".whl"].stat().st_size < 2 * 1024 * 1024
    assert {Path(name).parts[0].partition("-")[0] for name in names(built[".whl"])} == {"perdure", "perdure_pytest"}


def test_the_wheel_has_all_files_of_the_package(built: dict[str, Path]) -> None:
    sources = {name.removeprefix("src/") for name in files_of_the_repository() if name.startswith("src/")}
    assert sources - set(names(built[".whl"])) == set()
    assert "perdure/py.typed" in sources
    assert "perdure_pytest/py.typed" in sources


def test_the_wheel_has_the_licence_of_each_vendored_file(built: dict[str, Path]) -> None:
    libraries = {path.name.partition(".")[0] for path in (VENDORED / "static").glob("*.min.*")}
    assert libraries == {path.stem for path in (VENDORED / "licenses").iterdir()}
    told = metadata(built[".whl"])
    assert told["License-Expression"] == "Apache-2.0 AND MIT AND 0BSD"
    files = told.get_all("License-File") or []
    assert {Path(name).stem for name in files} == {"LICENSE", *libraries}
    for name in files:
        assert any(one.endswith(f".dist-info/licenses/{name}") for one in names(built[".whl"])), name


def test_the_sdist_has_what_its_tests_and_pages_need(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    tracked = [name for name in files_of_the_repository() if not name.startswith(".")]
    assert [name for name in tracked if name not in found] == []


def test_the_metadata_names_every_extra(built: dict[str, Path]) -> None:
    told = metadata(built[".whl"])
    assert set(told.get_all("Provides-Extra") or []) == set(PROJECT["optional-dependencies"])
    base = [one for one in told.get_all("Requires-Dist") or [] if "extra" not in one]
    assert {Requirement(one).name for one in base} == {"msgspec", "click", "rich", "cronsim", "tzdata"}
    assert told["Requires-Python"] == ">=3.11"


def test_the_versions_of_development_are_locked() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if "://" in line or " @ " in line or "/" in line or line.startswith("-")]
    locked: dict[str, list[str]] = {}
    for line in lines:
        one = Requirement(line)
        [pin] = one.specifier
        assert pin.operator == "==", line
        locked.setdefault(canonicalize_name(one.name), []).append(pin.version)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted = [*groups["dev"], *groups["docs"], *PROJECT["dependencies"]]
    wanted += [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    for text in wanted:
        if isinstance(text, dict) or (need := Requirement(text)).name == "perdure":
            continue
        versions = locked.get(canonicalize_name(need.name), [])
        assert any(need.specifier.contains(one) for one in versions), (
            f"run `make lock`: {text} is not in constraints.txt"
        )
