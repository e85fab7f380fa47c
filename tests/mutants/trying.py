"""Faults one after the other, each with the tests that call the function that it is in. Results are kept, so that it
can be interrupted."""

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

#: Seconds of tests a fault, as they were measured; and how many times that before it is ended, and at least so many
#: seconds.
ENOUGH = 40.0
PATIENCE = 15.0
AT_LEAST = 120.0
#: Test files a fault: each has to be imported.
FILES = 40

#: Hypothesis looks at few examples.
BRIEF = ["--hypothesis-profile=quick"]
QUIET = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]

#: Tests of the databases, for faults of the store that the others do not notice or cannot reach; and the seconds before
#: they are ended.
WITH_SERVERS = ["tests/store", "tests/store/postgres", "tests/store/mysql", "tests/store/user_connections"]
WITH_SERVERS_SECONDS = 1800.0
_SERVERS = ("PERDURE_TEST_POSTGRES", "PERDURE_TEST_MYSQL", "PERDURE_TEST_PGBOUNCER")


class Result(Struct):
    """What became of a fault."""

    fault: str
    #: `killed`, `survived`, `hung` (which counts as killed), `unseen` (no test calls it) or `equivalent`
    end: str
    tests: int = 0
    by: str = ""


class Tests:
    """Which tests call which functions, from one run of all tests that need neither a server nor another process."""

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
        if not folder.exists():
            _look(folder)
        found: dict[str, tuple[float, list[str]]] = {}
        for path in folder.glob("*.json"):
            found |= msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[float, list[str]]])
        return cls(found)

    def of(self, fault: Fault) -> list[str]:
        """Those that may notice it: its package's first, then quick ones, of as many files as possible, within a bound
        of time."""
        tests = self._calling.get(f"{fault.path}:{fault.function}") or self._using(fault)
        own = f"tests/{fault.path.split('/')[1]}/"
        chosen = sorted(tests, key=lambda test: (not test.startswith(own), self._seconds[test]))
        taken, files, spent = [], set[str](), 0.0
        for test in _in_turns(chosen):
            file = test.partition("::")[0]
            if spent > ENOUGH or (file not in files and len(files) >= FILES):
                continue
            taken.append(test)
            files.add(file)
            spent += self._seconds[test]
        return taken

    def _using(self, fault: Fault) -> set[str]:
        """Tests for code that runs at import, outside of a test: those that call the file or, of plain data, the files
        that import it."""
        tests = self._of_files.get(fault.path)
        if tests or fault.function:
            return tests or set()
        return set().union(*(self._of_files.get(path, ()) for path in _importers(fault.path)))


def _look(folder: Path) -> None:
    """Run the tests once and keep what each of them calls, unless that comes to an early end."""
    print("looking which tests call which functions ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="perdure-seen-", dir=KEPT) as unfinished:
        environment = {**_without_servers(), "PERDURE_SEEN": unfinished}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.seeing", *BRIEF, "-n", "2", "-q", "-r", "fE"]
        done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, check=False)
        if done.returncode > 1:
            raise RuntimeError(f"the tests ended early, with exit code {done.returncode}")
        Path(unfinished).rename(folder)
        Path(unfinished).mkdir()


def _importers(path: str) -> Iterator[str]:
    words = f"from {_module(path)} import "
    for file in sorted((SOURCE / "perdure").rglob("*.py")):
        if words in file.read_text(encoding="utf-8"):
            yield str(file.relative_to(SOURCE))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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
            if path.parent != Path(__file__).parent:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def plant(path: str, text: str, tests: list[str], seconds: float, *, servers: bool = False) -> tuple[str, str]:
    """Run tests with another text of a file: what became of it, and the test that noticed."""
    with tempfile.TemporaryDirectory(prefix="perdure-fault-") as folder:
        told = Path(folder, "fault.json")
        told.write_bytes(msgspec.json.encode({"name": _module(path), "path": str(SOURCE / path), "text": text}))
        environment = {**(os.environ if servers else _without_servers()), "PERDURE_FAULT": str(told)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.planting", *QUIET, f"--basetemp={folder}/tmp"]
        command += [] if servers else BRIEF
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


def _without_servers() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _SERVERS}


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
        text = fault.apply((SOURCE / fault.path).read_text(encoding="utf-8"))
        tests = self._tests.of(fault)
        end, by = plant(fault.path, text, tests, max(AT_LEAST, PATIENCE * ENOUGH)) if tests else ("unseen", "")
        if end in ("survived", "unseen") and _needs_servers(fault):
            tests = WITH_SERVERS
            end, by = plant(fault.path, text, tests, WITH_SERVERS_SECONDS, servers=True)
        return Result(str(fault), end, len(tests), by)


def _needs_servers(fault: Fault) -> bool:
    """Whether servers are there and tests with them may notice the fault."""
    return fault.path.startswith("perdure/store/") and all(server in os.environ for server in _SERVERS[:2])
