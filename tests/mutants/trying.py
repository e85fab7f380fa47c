"""Faults one after the other, each with the tests that call the function that it is in. Results are kept, so that it can be interrupted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.mutants.drawing import Fault

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
KEPT = ROOT / ".mutants"

#: CPU seconds of tests a fault, as they were measured; and how many times that before it is ended, and at least so many seconds.
ENOUGH = 40.0
PATIENCE = 15.0
AT_LEAST = 120.0
#: Test files a fault: each has to be imported.
FILES = 25

QUIET = ["--quick", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]


class Result(Struct):
    """What became of a fault."""

    fault: str
    #: `killed`, `survived`, `hung` (which counts as killed), `unseen` (no test calls it) or `equivalent`
    end: str
    tests: int = 0
    by: str = ""


class Tests:
    """Which tests call which functions, from one run of all quick tests."""

    def __init__(self, found: dict[str, tuple[float, list[str]]]) -> None:
        self._seconds = {test: seconds for test, (seconds, _) in found.items()}
        self._calling: dict[str, list[str]] = defaultdict(list)
        for test, (_, functions) in found.items():
            for function in functions:
                self._calling[function].append(test)
        self._of_files: dict[str, set[str]] = defaultdict(set)
        for function, tests in self._calling.items():
            self._of_files[function.rpartition(":")[0]].update(tests)

    @classmethod
    def known(cls) -> Tests:
        """As measured for this source; measured now if need be."""
        folder = KEPT / f"seen-{_digest()}"
        if not list(folder.glob("*.json")):
            folder.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, "PERDURE_SEEN": str(folder)}
            print("looking which tests call which functions ...", flush=True)
            command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.seeing", "-n", "2", "--quick", "-q"]
            subprocess.run([*command, "-p", "no:cacheprovider", "-r", "fE"], cwd=ROOT, env=environment, check=False)
        found: dict[str, tuple[float, list[str]]] = {}
        for path in folder.glob("*.json"):
            found |= msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[float, list[str]]])
        return cls(found)

    def of(self, fault: Fault) -> list[str]:
        """Those that may notice it: quick ones first, of as many files as possible, within a bound of time."""
        tests = self._calling.get(f"{fault.path}:{fault.function}", [])
        # What is outside of functions is executed by the import, and used by whatever uses the file.
        chosen = sorted(
            tests or (self._of_files[fault.path] if not fault.function else ()), key=self._seconds.__getitem__
        )
        taken, files, spent = [], set[str](), 0.0
        for test in _in_turns(chosen):
            file = test.partition("::")[0]
            if spent > ENOUGH or (file not in files and len(files) >= FILES):
                continue
            taken.append(test)
            files.add(file)
            spent += self._seconds[test]
        return taken


def _in_turns(tests: Iterable[str]) -> Iterator[str]:
    """One of each file, then a second of each, and so on."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[test.partition("::")[0]].append(test)
    while by_file:
        for file in list(by_file):
            yield by_file[file].pop(0)
            if not by_file[file]:
                del by_file[file]


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=6)
    for folder in (SOURCE, ROOT / "tests"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def plant(path: str, text: str, tests: list[str], seconds: float) -> tuple[str, str]:
    """Run tests with another text of a file: what became of it, and the test that noticed."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    with tempfile.TemporaryDirectory(prefix="perdure-fault-") as folder:
        told = Path(folder, "fault.json")
        told.write_bytes(msgspec.json.encode({"name": name, "path": str(SOURCE / path), "text": text}))
        environment = {**os.environ, "PERDURE_FAULT": str(told), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.planting", *QUIET, f"--basetemp={folder}/tmp"]
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return "hung", ""
    if done.returncode == 0:
        return "survived", ""
    if done.returncode == 5:
        return "unseen", ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
    return "killed", failed[-1][:200] if failed else f"exit code {done.returncode}"


class Trial:
    """Tries faults and keeps what became of them."""

    def __init__(self, tests: Tests) -> None:
        self._tests = tests
        self._file = KEPT / "results.json"
        kept = self._file.read_bytes() if self._file.exists() else b"{}"
        self._results = msgspec.json.decode(kept, type=dict[str, Result])

    def of(self, fault: Fault) -> Result:
        """What became of it, now or before. One that survived is tried again: there may be a test for it by now."""
        known = self._results.get(fault.id)
        if known is None or known.end in ("survived", "unseen", "equivalent"):
            self._results[fault.id] = known = self._try(fault)
            self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self._results), indent=1))
        return known

    def _try(self, fault: Fault) -> Result:
        if fault.equivalent:
            return Result(str(fault), "equivalent")
        tests = self._tests.of(fault)
        if not tests:
            return Result(str(fault), "unseen")
        text = fault.apply((SOURCE / fault.path).read_text(encoding="utf-8"))
        end, by = plant(fault.path, text, tests, max(AT_LEAST, PATIENCE * ENOUGH))
        return Result(str(fault), end, len(tests), by)
