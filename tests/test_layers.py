"""Imports point one way, and only the host touches clocks, randomness, tasks and threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "perdure"

#: Which packages each package may import, besides itself.
ALLOWED = {
    "core": set[str](),
    "host": {"core"},
    "workflow": {"core"},
    "replay": {"core", "workflow"},
    "store": {"core"},
    "worker": {"core", "workflow", "replay", "store"},
    "client": {"core", "workflow", "store", "worker", "host"},
    "push": {"core", "workflow", "store", "client", "host"},
    "outbox": {"core", "client", "push"},
    "admin": {"core", "workflow", "client"},
    "blocking": {"workflow", "client"},
    "machine": {"workflow"},
    "middleware": {"core"},
    "tracing": {"core"},
    "logs": {"worker"},
    "testing": {"core", "workflow", "replay", "store", "worker", "client", "host"},
    "lint": set[str](),
    "dashboard": {"core", "workflow", "store", "client", "http"},
    "metrics": {"core", "store", "client"},
    "http": {"core", "workflow", "store", "client", "metrics"},
    "library_steps": {"core", "workflow"},
    "pydantic_ai": {"core", "workflow", "library_steps", "client"},
    "openai_agents": {"core", "workflow", "library_steps", "client"},
    "starlette": {"core", "worker", "client", "http"},
    "fastapi": {"client", "starlette"},
    "django": {"core", "workflow", "client", "middleware", "http", "dashboard", "cli"},
    "flask": {"core", "workflow", "client", "middleware", "cli"},
    "mcp": {"core", "workflow", "client", "http"},
    "langgraph": {"core", "workflow", "store", "client"},
    "cli": {
        "core",
        "workflow",
        "store",
        "worker",
        "client",
        "host",
        "lint",
        "http",
        "metrics",
        "dashboard",
        "testing",
        "mcp",
    },
}

#: What only the host may use. A trailing dot stands for everything in the module.
WORLD = (
    "time.",
    "random.",
    "uuid.",
    "secrets.",
    "threading.",
    "_thread.",
    "concurrent.futures.",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "os.urandom",
    "os.getrandom",
    "asyncio.create_task",
    "asyncio.ensure_future",
    "asyncio.sleep",
    "asyncio.to_thread",
    "asyncio.run",
    "asyncio.run_coroutine_threadsafe",
)

#: Who else may use what of it, and why.
EXCEPTIONS = {
    ("host.py", ""): "it is the world",
    ("cli/", ""): "commands are the outermost layer: they own their process and its event loop",
    ("testing/", ""): "it builds other worlds, in terms of this one",
    ("core/codec/json_problems.py", "uuid.UUID"): "a type, not a source of ids",
    ("core/codec/snapshot.py", "uuid.UUID"): "a type, not a source of ids",
    ("core/codec/roundtrip.py", "uuid.UUID"): "a type, not a source of ids",
    ("core/limits/key_function.py", "uuid.UUID"): "a type, not a source of ids",
    ("core/codec/decoders.py", "threading.RLock"): "users' threads meet at their types; it starts none",
    (
        "store/server/identity.py",
        "threading.Lock",
    ): "connections are opened on the loops of several threads; it starts none",
    ("workflow/", "random.Random"): "the workflow's own randomness is a generator seeded by the run",
    ("workflow/", "uuid.UUID"): "the workflow's own ids are made of the run's seed",
    ("store/sqlite", "threading."): "a connection belongs to one thread: the store's writer, and its readers",
    ("store/sqlite", "asyncio.ensure_future"): "names the answer of the host's thread, and starts nothing",
    ("replay/run_loop.py", "threading.get_ident"): "it starts no thread, it asks which one it is on",
    ("worker/loop_watch.py", "threading.get_ident"): "it starts no thread, it asks which one it is on",
    ("worker/loop_watch.py", "threading.Lock"): "watches of several workers look at the threads; it starts none",
    (
        "worker/steps/threads.py",
        "threading.",
    ): "steps that block run in threads which can be abandoned, unlike a pool's",
    ("worker/steps/emit.py", "threading.Condition"): "steps emit from their own threads, and wait there for room",
    (
        "worker/steps/processes.py",
        "threading.",
    ): "a process of a step is talked to by a thread, and ends by one of its own",
    ("metrics/cells.py", "threading.RLock"): "threads of the store count, too; it starts none",
    (
        "metrics/prometheus.py",
        "asyncio.run_coroutine_threadsafe",
    ): "scrapes come on the threads of an HTTP server; the worker's loop reads the database for them",
    ("django/engines.py", "threading.Lock"): "requests on several threads share an engine; it starts none",
    (
        "pydantic_ai/threads.py",
        "concurrent.futures.",
    ): "sync tools of agents run in threads of a pool, as the library expects",
    ("client/facade.py", "threading."): "the facade for callers without an event loop has one on a thread",
    ("client/facade.py", "concurrent.futures.Future"): "the type of an answer of that loop; it starts none",
    (
        "langgraph/checkpointer.py",
        "asyncio.run_coroutine_threadsafe",
    ): "LangGraph calls sync methods on threads of its own; the loop of the engine answers them",
    ("client/facade.py", "asyncio."): "the facade for callers without an event loop has one on a thread",
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> str:
    return layer_of(path.relative_to(ROOT).parts[0].removesuffix(".py"))


def layer_of(package: str) -> str:
    """`perdure.errors` is a public module of the innermost layer."""
    return "core" if package == "errors" else package


@pytest.fixture(scope="module", autouse=True)
def _nodes() -> Iterator[None]:
    """The nodes of all files would slow down every later collection of garbage."""
    yield
    nodes_of.cache_clear()


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """The nodes that these tests look at."""
    kinds = ast.Import, ast.ImportFrom, ast.Name, ast.Attribute
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes_of(path.read_text()):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative imports hide the layer"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def own_imports_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "perdure" and len(parts) > 1:
            yield line, parts[1:]


# One test for all modules, because a test of its own takes longer than looking at a module.
def test_imports_point_one_way() -> None:
    wrong = [
        f"{name_of(path)}:{line}: {package} must not import perdure.{'.'.join(target)}"
        for path in modules()
        if (package := package_of(path)) != "__init__"
        for line, target in own_imports_of(path)
        if layer_of(target[0]) not in ALLOWED[package] | {package}
    ]
    assert wrong == []


def test_outside_of_it_the_worker_is_known_by_its_package_alone() -> None:
    wrong = [
        f"{name_of(path)}:{line}: import it from perdure.worker, not from inside of it"
        for path in modules()
        if package_of(path) in {"client", "cli"}
        for line, target in own_imports_of(path)
        if target[0] == "worker"
        and (len(target) > 2 or (len(target) > 1 and ROOT.joinpath(*target).with_suffix(".py").exists()))
    ]
    assert wrong == []


def test_every_package_has_its_place_in_the_graph() -> None:
    assert {package_of(path) for path in modules()} - {"__init__", "__main__"} <= set(ALLOWED)


def test_the_graph_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        free = {package for package, needs in ALLOWED.items() if package not in done and needs <= done}
        assert free, f"a cycle among {sorted(set(ALLOWED) - done)}"
        done |= free


def world_used_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines that use something of `WORLD`, under the name by which it is known outside."""
    nodes = nodes_of(source)
    known: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = dotted(node, known)
        if name is not None and any(name.startswith(each) if each.endswith(".") else name == each for each in WORLD):
            yield node.lineno, name


def dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value, known)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def test_only_the_host_touches_the_world() -> None:
    wrong = [
        f"{name}:{line}: {used} is for the host alone; ask the `System` that was handed in"
        for path in modules()
        for line, used in world_used_in(path.read_text())
        if not any((name := name_of(path)).startswith(place) and used.startswith(what) for place, what in EXCEPTIONS)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "from time import monotonic as m\nm()",
        "import datetime as d\nd.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import uuid\nuuid.uuid4()",
        "from threading import Thread\nThread()",
        "import asyncio\nasyncio.sleep(1)",
        "import concurrent.futures\nconcurrent.futures.Future()",
    ],
)
def test_the_world_is_recognised_under_any_name(source: str) -> None:
    assert list(world_used_in(source))
