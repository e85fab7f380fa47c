"""The instructions of the Dockerfile, followed in a folder instead of an image."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.frameworks.serving import new_database, pause
from tests.release.test_extras import ENVIRONMENT, PROVE, ROOT
from tests.servers.private import free_port

FOLDER = ROOT / "examples" / "deploy"


def instructions() -> list[tuple[str, str]]:
    """Words and arguments of the lines."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if re.match(r"[A-Z]+ ", line)]


def follow(root: Path, wheel: Path) -> dict[str, str]:
    """Follow all instructions but the last in a folder that stands for both stages; return the environment."""
    environment = {**ENVIRONMENT, "PIP_FIND_LINKS": str(wheel.parent)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    for word, rest in instructions():
        if word == "RUN" and not rest.startswith("useradd"):
            subprocess.run(rest.replace("/venv", f"{root}/venv"), shell=True, check=True, cwd=root, env=environment)
        elif word == "COPY" and "--from" not in rest:
            source, target = rest.split()
            goal = root / target.strip("./")
            goal.mkdir(exist_ok=True)
            shutil.copy(FOLDER / source, goal)
        elif word == "ENV":
            for name, value in (one.split("=", 1) for one in rest.split()):
                environment[name] = value.replace("/venv", f"{root}/venv").replace("$PATH", environment["PATH"])
    return environment


@pytest.mark.skipif(not PROVE, reason="installs packages from the index; set PERDURE_PROVE=1")
def test_the_image_has_a_worker_that_stops_in_time(wheel: Path, tmp_path: Path) -> None:
    environment = follow(tmp_path, wheel)
    app = tmp_path / dict(instructions())["WORKDIR"].strip("/")
    command: list[str] = yaml.safe_load(dict(instructions())["CMD"])
    with new_database() as url:
        environment["PERDURE_URL"] = url
        program = str(tmp_path / "venv" / "bin" / command[0])

        def perdure(*arguments: str) -> str:
            called = [program, *arguments]
            return subprocess.run(called, cwd=app, env=environment, check=True, capture_output=True, text=True).stdout

        perdure("migrate")
        command = [program, *command[1:-1], f"127.0.0.1:{free_port()}"]
        with subprocess.Popen(command, cwd=app, env=environment) as worker:
            perdure("start", "shop.order.v1", "--input", '{"article": "a chair"}', "--id", "o-1")
            while "parcel with a chair" not in perdure("show", url, "o-1"):
                assert worker.poll() is None
                pause()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
