"""Faults one after the other, each with the tests that call the function that it is in. Results are kept, so that it
can be interrupted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.mutants.drawing import Fault
from tests.mutants.forking import FAULTS, Answer, Job
from tests.mutants.places import PLACES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
KEPT = ROOT / ".mutants"
_SEEN = KEPT / "seen.json"

#: Rounds of tests that a fault has to survive: seconds of tests, as they were measured, and files, each of which has to
#: be imported.
ROUNDS = ((6.0, 8), (60.0, 60))
#: A test is ended after so many times its seconds, and at least so many seconds; it noticed the fault, then.
PATIENCE = 15.0
AT_LEAST = 60.0

#: Hypothesis looks at few examples.
BRIEF = ["--hypothesis-profile=quick"]
QUIET = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]

#: The seconds of a round, however many tests.
LONGEST = 600.0

#: Tests of the databases, for faults of the store that the others do not notice or cannot reach.
WITH_SERVERS = ["tests/store", "tests/store/postgres", "tests/store/mysql", "tests/store/user_connections"]
WITH_SERVERS_SECONDS = 240.0
_SERVERS = ("PERDURE_TEST_POSTGRES", "PERDURE_TEST_MYSQL", "PERDURE_TEST_PGBOUNCER")


class Result(Struct):
    """What became of a fault."""

    fault: str
    #: `killed`, `survived`, `hung` (which counts as killed), `unseen` (no test calls it) or `equivalent`
    end: str
    tests: int = 0
    by: str = ""


class Seen(Struct):
    """What the tests of a file call."""

    #: Of the file that the tests were in.
    digest: str
    #: The seconds that each test takes, and the functions that it calls.
    tests: dict[str, tuple[float, list[str]]]


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
        """As measured before; measured now for test files that are new or have changed, or call a file that is gone."""
        kept = msgspec.json.decode(_SEEN.read_bytes(), type=dict[str, Seen]) if _SEEN.exists() else {}
        digests = _digests()
        seen = {file: kept[file] for file, digest in digests.items() if file in kept and kept[file].digest == digest}
        sources = {str(path.relative_to(SOURCE)) for path in (SOURCE / "perdure").rglob("*.py")}
        current = {file: one for file, one in seen.items() if _paths(one) <= sources}
        missing = sorted(digests.keys() - current.keys())
        if missing:
            found = _look(missing)
            current |= {file: Seen(digests[file], found.get(file, {})) for file in missing}
            _SEEN.write_bytes(msgspec.json.encode(current))
        return cls({test: calls for one in current.values() for test, calls in one.tests.items()})

    def of(self, fault: Fault, enough: float, most: int) -> list[str]:
        """Those that may notice it, within a bound of time and of files: first those in a file of its module's name,
        then its package's, then quick ones, of as many files as possible."""
        tests = self._calling.get(f"{fault.path}:{fault.function}") or self._using(fault)
        own = f"tests/{fault.path.split('/')[1]}/"
        chosen = sorted(tests, key=lambda test: (not test.startswith(own), self._seconds[test]))
        of_name = [test for test in chosen if f"/test_{Path(fault.path).stem}" in test]
        named, taken, files, spent = set(of_name), [], set[str](), 0.0
        for test in [*of_name, *_in_turns(test for test in chosen if test not in named)]:
            file = test.partition("::")[0]
            if spent > enough or (file not in files and len(files) >= most):
                continue
            taken.append(test)
            files.add(file)
            spent += self._seconds[test]
        return taken

    def patience(self, tests: list[str]) -> float:
        """The seconds after which one of these tests does not end."""
        return max(AT_LEAST, PATIENCE * max(self._seconds[test] for test in tests))

    def _using(self, fault: Fault) -> set[str]:
        """Tests for code that runs at import, outside of a test: those that call the file or, of plain data, the files
        that import it."""
        tests = self._of_files.get(fault.path)
        if tests or fault.function:
            return tests or set()
        return set().union(*(self._of_files.get(path, ()) for path in _importers(fault.path)))


def _paths(seen: Seen) -> set[str]:
    return {function.rpartition(":")[0] for _, functions in seen.tests.values() for function in functions}


def _look(files: list[str]) -> dict[str, dict[str, tuple[float, list[str]]]]:
    """Run the tests of files once: what each of them calls, by file."""
    print(f"looking which functions the tests of {len(files)} files call ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="perdure-seen-") as folder:
        environment = {**_without_servers(), "PERDURE_SEEN": folder}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.seeing", *BRIEF, "-n", "2", "-q", "-r", "fE"]
        done = subprocess.run([*command, "-p", "no:cacheprovider", *files], cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, 1, 5):
            raise RuntimeError(f"the tests ended early, with exit code {done.returncode}")
        found: dict[str, dict[str, tuple[float, list[str]]]] = defaultdict(dict)
        for path in Path(folder).glob("*.json"):
            for test, calls in msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[float, list[str]]]).items():
                found[test.partition("::")[0]][test] = calls
    return found


def _digests() -> dict[str, str]:
    """The files with tests, and the digest of each. One that runs the conformance suite changes with the suite."""
    suite = b"".join(path.read_bytes() for path in sorted((SOURCE / "perdure" / "testing").rglob("*.py")))
    digests: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_bytes()
        if not name.startswith(PLACES):
            text += suite if b"conformance" in text else b""
            digests[name] = hashlib.blake2b(text, digest_size=6).hexdigest()
    return digests


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


def plant(path: str, text: str, tests: list[str], seconds: float, *, servers: bool = False) -> tuple[str, str]:
    """Run tests with another text of a file: what became of it, and the test that noticed. No test has more seconds."""
    with tempfile.TemporaryDirectory(prefix="perdure-fault-") as folder:
        told = Path(folder, "fault.json")
        told.write_bytes(msgspec.json.encode({"name": _module(path), "path": str(SOURCE / path), "text": text}))
        environment = {**(os.environ if servers else _without_servers()), "PERDURE_FAULT": str(told)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.planting", *QUIET, f"--basetemp={folder}/tmp"]
        command += [f"--timeout={seconds}", *([] if servers else BRIEF)]
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            return "hung", ""
    if done.returncode == 0:
        return "survived", ""
    if done.returncode == 5:
        return "unseen", ""
    if done.returncode == 4 and "ERROR: not found" in done.stdout and "Error:" not in done.stdout:
        raise RuntimeError(f"there are no such tests: {done.stdout[-1000:]}")
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
        known = self._known(fault)
        return self._keep(fault, self._try(fault)) if known is None else known

    def in_copies(self, faults: Sequence[Fault]) -> Iterator[tuple[Fault, Result]]:
        """Try faults within functions in copies of one process, which is quick."""
        tried = {
            fault.id: fault
            for fault in faults
            if fault.function and not fault.equivalent and self._known(fault) is None
        }
        jobs = [self._job(fault) for fault in tried.values()]
        for answer in answers([job for job in jobs if job.tests]):
            fault = tried[answer.id]
            yield fault, self._keep(fault, Result(str(fault), answer.end, by=answer.by[:200]))

    def _job(self, fault: Fault) -> Job:
        text = (SOURCE / fault.path).read_text(encoding="utf-8")
        path, tests = str(SOURCE / fault.path), self._tests.of(fault, *ROUNDS[-1])
        return Job(fault.id, path, text, fault.apply(text), tests, LONGEST)

    def _known(self, fault: Fault) -> Result | None:
        known = self._results.get(fault.id)
        return None if known is None or known.end in ("survived", "unseen", "equivalent") else known

    def _keep(self, fault: Fault, result: Result) -> Result:
        self._results[fault.id] = result
        self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self._results), indent=1))
        return result

    def _try(self, fault: Fault) -> Result:
        if fault.equivalent:
            return Result(str(fault), "equivalent")
        text = fault.apply((SOURCE / fault.path).read_text(encoding="utf-8"))
        end, by, tried = "unseen", "", set[str]()
        for enough, most in ROUNDS:
            tests = [test for test in self._tests.of(fault, enough, most) if test not in tried]
            if tests and end in ("survived", "unseen"):
                end, by = plant(fault.path, text, tests, self._tests.patience(tests))
                tried.update(tests)
        if end in ("survived", "unseen") and _needs_servers(fault):
            end, by = plant(fault.path, text, WITH_SERVERS, WITH_SERVERS_SECONDS, servers=True)
        return Result(str(fault), end, len(tried), by)


def answers(jobs: Sequence[Job]) -> Iterator[Answer]:
    """Try jobs in copies of a process that has collected all their tests."""
    if not jobs:
        return
    files = sorted({test.partition("::")[0] for job in jobs for test in job.tests})
    with tempfile.TemporaryDirectory(prefix="perdure-faults-") as folder:
        Path(folder, "jobs.json").write_bytes(msgspec.json.encode(jobs))
        environment = {**_without_servers(), FAULTS: folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.forking", *QUIET, *BRIEF, "--capture=no"]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--timeout={AT_LEAST}", *files], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        try:
            read = 0
            while True:
                over = process.poll() is not None
                path = Path(folder, "answers.jsonl")
                lines = path.read_bytes().splitlines(keepends=True)[read:] if path.exists() else []
                for line in lines:
                    if line.endswith(b"\n"):
                        read += 1
                        yield msgspec.json.decode(line, type=Answer)
                if over:
                    break
                time.sleep(0.2)
            if read < len(jobs):
                raise RuntimeError(f"the tests ended early:\n{Path(folder, 'log').read_text()[-3000:]}")
        finally:
            process.kill()
            process.wait()


def _needs_servers(fault: Fault) -> bool:
    """Whether servers are there and tests with them may notice the fault."""
    return fault.path.startswith("perdure/store/") and all(server in os.environ for server in _SERVERS[:2])
