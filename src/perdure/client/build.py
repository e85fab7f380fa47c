"""The build of an application: the version of its package, and the commit of the checkout that it lies in.

Both are read from files, once for a module. No program is started, and a missing repository is no error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.core.model.documents import BUILD_CHARACTERS
from perdure.core.option_checks import check_text
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.workflow.definition import Definition

if TYPE_CHECKING:
    from importlib.metadata import Distribution

#: Folders with installed packages, which may lie in the checkout of another program.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Bytes that are read of a file of a repository, and characters of a commit that are kept.
_MOST_BYTES = 1_000_000
_COMMIT = 12


def check_build(build: object) -> str:
    """Check the name of a build. Raises `UsageError`."""
    name = check_text("build", build)
    if not name.strip() or len(name) > BUILD_CHARACTERS:
        raise UsageError(f"build={brief(build)}: give a name of 1 to {BUILD_CHARACTERS} characters, such as '1.4.2'")
    return name


def build_of(workflows: Mapping[str, Definition[Any, Any]]) -> str:
    """Return the build of the package that defines the first workflow; empty if it is unknown."""
    for definition in workflows.values():
        module = definition.function.__module__
        if module.partition(".")[0] != "perdure":
            return _build_of_module(module)
    return ""


@cache
def _build_of_module(module: str) -> str:
    try:
        version = _version(module.partition(".")[0])
    except Exception:
        # Metadata is data of others: whatever is wrong with it, the application starts.
        version = ""
    file = getattr(sys.modules.get(module), "__file__", None)
    commit = commit_of(Path(file)) if isinstance(file, str) else ""
    parts = [part for part in (version, f"g{commit}" if commit else "") if part]
    return "+".join(parts)[:BUILD_CHARACTERS]


@cache
def _version(package: str) -> str:
    """Return the version of the distribution that has a package; empty if none is installed.

    `metadata.packages_distributions` would parse the metadata and all file names of every installed distribution, which
    takes a tenth of a second. Only the distribution that is found is parsed.
    """
    if package == "__main__":
        return ""
    # Imported here, because a client that starts no worker does not need it.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        found = (one for one in metadata.distributions() if _has_package(one, package))
        return next((one.version for one in found), "")


def _has_package(distribution: Distribution, package: str) -> bool:
    names = distribution.read_text("top_level.txt")
    if names is not None:
        return package in names.split()
    folder = Path(str(distribution.locate_file("")))
    if folder.is_dir() and not ((folder / package).exists() or (folder / f"{package}.py").exists()):
        # The usual case, which spares reading the list of files. A distribution in an archive has no such folder.
        return False
    record = distribution.read_text("RECORD") or ""
    return any(f"\n{file}" in f"\n{record}" for file in (f"{package}/", f"{package}.py,"))


def commit_of(file: Path) -> str:
    """Return the commit that is checked out where a file lies, without starting git; empty if there is none."""
    try:
        path = file.resolve()
        if _INSTALLED & set(path.parts):
            return ""
        for folder in path.parents:
            git = folder / ".git"
            if git.exists():
                return _head(git)[:_COMMIT]
    except (OSError, ValueError):
        pass
    return ""


def _head(git: Path) -> str:
    if git.is_file():
        # A worktree, or a submodule.
        git = (git.parent / _read(git).removeprefix("gitdir:").strip()).resolve()
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    common = git / _read(git / "commondir").strip() if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _commit(_read(place / name).strip())
    packed = _read(common / "packed-refs") if (common / "packed-refs").is_file() else ""
    found = (line.split(" ", 1) for line in packed.splitlines() if " " in line)
    return next((_commit(commit) for commit, ref in found if ref == name), "")


def _commit(text: str) -> str:
    is_commit = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text if is_commit else ""


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(_MOST_BYTES).decode("utf-8", "replace")
