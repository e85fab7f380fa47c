"""An environment of its own for each peer, in a cache beside the user's other caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalog import Peer

DRIVERS = Path(__file__).parent / "drivers"
ROOT = Path(__file__).parent.parent.parent


class Unavailable(Exception):
    """A peer that cannot be installed here."""


class Environment:
    """Where a peer is installed. `install` is needed once."""

    def __init__(self, peer: Peer, cache: Path) -> None:
        self.peer = peer
        self._folder = cache / peer.name.lower()

    def install(self, timeout: float) -> str:
        """Install what is not there; return the version. Raises `Unavailable`."""
        try:
            match self.peer.registry:
                case "pip":
                    return self._pip(timeout)
                case "npm":
                    return self._npm(timeout)
                case _:
                    return _revision()
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename} was not found") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"the installation took longer than {timeout:.0f} s") from error
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or "").strip().splitlines() or ["no reason given"]
            raise Unavailable(f"{Path(error.cmd[0]).name} failed: {lines[-1][:200]}") from error

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs the driver."""
        driver = DRIVERS / self.peer.driver
        match self.peer.registry:
            case "pip":
                return [str(self._python), str(driver), *arguments]
            case "npm":
                # Node.js looks for packages beside the file.
                return ["node", str(shutil.copy(driver, self._folder)), *arguments]
            case _:
                return [sys.executable, str(driver), *arguments]

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the driver."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return outside if self.peer.registry else {**outside, "PYTHONPATH": str(ROOT)}

    @property
    def _python(self) -> Path:
        return self._folder / "venv" / "bin" / "python"

    def _pip(self, timeout: float) -> str:
        if not self._python.exists():
            _run([sys.executable, "-m", "venv", str(self._python.parent.parent)], timeout)
        name = self.peer.packages[0].partition("[")[0]
        show = [str(self._python), "-c", f"from importlib.metadata import version; print(version({name!r}))"]
        try:
            return _run(show, timeout).strip()
        except subprocess.CalledProcessError:
            _run([str(self._python), "-m", "pip", "install", "--quiet", *self.peer.packages], timeout)
        return _run(show, timeout).strip()

    def _npm(self, timeout: float) -> str:
        manifest = self._folder / "node_modules" / self.peer.packages[0] / "package.json"
        if not manifest.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "package.json").write_text('{"private": true, "type": "module"}\n')
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self._folder)]
            _run([*install, *self.peer.packages], timeout)
        return str(json.loads(manifest.read_text())["version"])


def _revision() -> str:
    try:
        return _run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], 10).strip()
    except (OSError, subprocess.SubprocessError):
        return "working copy"


def _run(command: list[str], timeout: float) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout).stdout
