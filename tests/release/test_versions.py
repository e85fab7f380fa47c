"""Integrations with the oldest versions of the libraries that their extras allow; other tests have the newest."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.release.test_extras import ENVIRONMENT, PROVE, ROOT

#: By extra: the tests of its integration.
TESTS = {
    "pydantic-ai": ["tests/agent_libraries/test_pydantic_ai.py"],
    "openai-agents": ["tests/agent_libraries/test_openai_agents.py"],
    "langgraph": ["tests/langgraph"],
    "mcp": ["tests/mcp"],
    "fastapi": ["tests/frameworks/test_fastapi.py"],
    "django": ["tests/frameworks/test_django.py"],
    "flask": ["tests/frameworks/test_flask.py"],
}
#: Optional parts of a library that its tests need.
PARTS = {"pydantic-ai-slim": "[mcp]"}
#: Libraries of the same time: with newer ones, the old versions emit warnings, which are errors in tests.
COMPANIONS = {"fastapi": ["anyio<4.10", "websockets<14"]}


def oldest(extra: str) -> list[str]:
    """Requirements that an extra names, each with the oldest version that is allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = []
    for need in map(Requirement, project["optional-dependencies"][extra]):
        if need.name == "perdure":
            found += [one for other in sorted(need.extras) for one in oldest(other)]
        else:
            [lowest] = [one.version for one in need.specifier if one.operator == ">="]
            found.append(f"{need.name}{PARTS.get(need.name, '')}=={lowest}")
    return found


def test_each_integration_names_the_oldest_versions() -> None:
    assert all(oldest(extra) for extra in TESTS)


@pytest.mark.skipif(not PROVE, reason="installs other versions from the package index; set PERDURE_PROVE=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("extra", TESTS)
def test_an_integration_works_with_the_oldest_versions(extra: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    libraries = tmp_path / "libraries"
    subprocess.run(
        [*pip, "install", "--target", str(libraries), *oldest(extra), *COMPANIONS.get(extra, [])],
        check=True,
        env=ENVIRONMENT,
    )
    # The libraries of this environment are behind these, and lend what the tests need besides.
    environment = {**os.environ, "PYTHONPATH": str(libraries), "PERDURE_PROVE": ""}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS[extra]]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
