"""Each rule of `perdure lint`, on a few lines of code: what it finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from perdure.lint import RULES, lint, python_files

HEAD = """
import asyncio, contextlib, datetime, functools, io, itertools, os, pathlib, random, secrets, sys, time, uuid
import perdure
from perdure import Context, Engine, activity, step, workflow
from perdure.machine import StateMachine
from datetime import datetime as dt

SEEN = set()
COUNTER = itertools.count()
RNG = random.Random(42)
TAG = uuid.uuid4().hex
engine = Engine("sqlite://", [])

DEFAULTS = dict(key=lambda: time.time())

class Order:
    @staticmethod
    def scale(given): given.total = 1

@step(timeout="1s")
async def charge(cents): return cents + time.time()

@activity("ship.v1")
async def ship(order): return order

@workflow("child.v1")
async def child(ctx: Context): return 1

async def plain(x): return x

async def relay(ctx, function, *rest): return await ctx.options(name="x").step(function, *rest)
"""


def codes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "app.py"
    path.write_text(text)
    return [finding.code for finding in lint([path])]


def in_workflow(body: str) -> str:
    head = "async def flow(ctx, order, names: set[str], tasks=()):"
    return f'{HEAD}\n@workflow("shop.v1")\n{head}\n{indent(dedent(body).strip(), "    ")}\n'


WRONG = {
    "PD001": [
        "time.time()",
        "dt.now()",
        "datetime.date.today()",
        "clock = time.monotonic\nclock()",
        "from time import perf_counter as p\np()",
        "time.localtime()",
        "time.strftime('%Y')",
        "f'{time.time_ns()}'",
        "def now(): return dt.utcnow()\nnow()",
        "sorted(order, key=lambda _: time.time())",
        "later = lambda: time.time()\nlater()",
        "await ctx.step(plain, time.time())",
        "await ctx.options(timeout=time.time()).step(plain, 1)",
        "async def branch(ctx): return time.time()\nawait ctx.join({'a': branch})",
        "await ctx.race({'a': lambda ctx: ctx.step(plain, dt.now())})",
        "async def body(ctx, state): time.time()\nawait ctx.loop(0, body)",
        "async def each(ctx: Context, x): time.time()\nawait ctx.map(each, order)",
        "def late(at=time.time()): return at\nlate()",
        "branches = {'a': lambda ctx: time.time()}\nawait ctx.join(branches)",
        "return (lambda: time.time())()",
        "await relay(ctx, lambda: 1, time.time())",
        "match order:\n    case {'time': _}: time.time()",
    ],
    "PD002": [
        "random.random()",
        "random.shuffle(order)",
        "random.Random()",
        "secrets.token_hex()",
        "os.urandom(8)",
        "random.SystemRandom()",
        "RNG.random()",
    ],
    "PD003": ["uuid.uuid4()", "uuid.uuid1()", "from uuid import uuid4 as new\nnew()", "return TAG"],
    "PD004": [
        "import requests\nrequests.post('x')",
        "import httpx\nasync with httpx.AsyncClient() as client: await client.get('x')",
        "import urllib.request\nurllib.request.urlopen('x')",
        "import socket as s\ns.create_connection(('a', 1))",
        "await asyncio.open_connection('a', 1)",
    ],
    "PD005": [
        "open('x')",
        "pathlib.Path('x').exists()",
        "(pathlib.Path('x') / 'y').open()",
        "order.read_text()",
        "os.listdir('.')",
        "import tempfile\ntempfile.mkdtemp()",
        "import sqlite3\nsqlite3.connect('x')",
    ],
    "PD006": [
        "import subprocess\nsubprocess.run(['x'])",
        "import threading\nthreading.Thread(target=plain).start()",
        "from concurrent.futures import ThreadPoolExecutor as Pool\nPool()",
        "await asyncio.to_thread(plain, 1)",
        "await asyncio.get_running_loop().run_in_executor(None, plain)",
        "os.system('x')",
    ],
    "PD007": ["time.sleep(1)"],
    "PD008": [
        "os.environ['X']",
        "os.getenv('X')",
        "os.getpid()",
        "if 'X' in os.environ: return 1",
        "sys.argv[1]",
        "from os import environ\nenviron.get('X')",
    ],
    "PD009": [
        "for name in names: await ctx.step(plain, name)",
        "return list(names)",
        "return ','.join(names)",
        "return next(iter(names))",
        "a, b = names",
        "return [*names]",
        "return names.pop()",
        "left = list(names)\nreturn left",
        "for name in list(names): await ctx.step(plain, name)",
        "if len(order) == 1: return next(iter(names))",
        "return [name for name in names if name]",
        "return tuple(set(order) | {'x'})",
        "return min(names, key=len)",
        "for key in order.keys() - {'x'}: ctx.send(key, 'x')",
        "await ctx.map(plain, names)",
        "await asyncio.gather(*(ctx.step(plain, name) for name in names))",
        "left = names.difference(order)\nfor name in left: yield name",
        "async def find() -> set[str]: return set()\nfor n in await ctx.step(find): ctx.emit('x', n)",
    ],
    "PD010": ["hash('x')", "id(order)", "{id(order): 1}"],
    "PD011": [
        "SEEN.add(order)",
        "global TOTAL\nTOTAL = 1",
        "import app\napp.SEEN.clear()",
        "del SEEN[0]",
        "random.seed(1)",
        "perdure_engine = 1\nSEEN.pop()",
        "return next(COUNTER)",
    ],
    "PD012": [
        "ctx.step(charge, 1)",
        "ctx.sleep(1)",
        "asyncio.sleep(1)",
        "plain(1)",
        "paid = ctx.step(charge, 1)",
        "paid = ctx.step(charge, 1)\nif paid: return 1",
        "return ctx.step(charge, 1).total",
        "return 1 + ctx.options(name='x').step(charge, 1)",
        "while ctx.receive('x'): pass",
        "fast = ctx.options(timeout=1)\nfast.step(charge, 1)",
        "for x in ctx.step(plain, 1): pass",
        "if (paid := ctx.step(charge, 1)): return 1",
        "while (paid := ctx.receive('x')) is not None: pass",
        "paid: int = ctx.step(charge, 1)",
        "paid: int = ctx.step(charge, 1)\nif paid > 1: return 1",
    ],
    "PD013": ["await charge(1)", "charge(1)", "await ship(1)", "child()", "await asyncio.gather(charge(1))"],
    "PD014": ["await ctx.step(plain(1))", "await ctx.step(charge(1))", "await ctx.step(await plain(1))"],
    "PD015": [
        "await engine.start(child())",
        "await engine.runs.list()",
        "e: Engine = order\nawait e.send('x', 'y')",
        "async def f(handle: perdure.Handle): await handle.result()\nawait f(order)",
    ],
    "PD016": [
        "try: await ctx.sleep(1)\nexcept: pass",
        "try: await ctx.sleep(1)\nexcept BaseException: return 1",
        "try: await ctx.sleep(1)\nexcept asyncio.CancelledError: pass",
        "try: await ctx.sleep(1)\nexcept (ValueError, asyncio.CancelledError): x = 1",
        "with contextlib.suppress(BaseException): await ctx.sleep(1)",
    ],
    "PD017": ["for one in asyncio.as_completed([plain(1), plain(2)]): await one"],
}


@pytest.mark.parametrize(("code", "body"), [(code, body) for code, bodies in WRONG.items() for body in bodies])
def test_a_rule_finds(code: str, body: str, tmp_path: Path) -> None:
    assert code in codes(tmp_path, in_workflow(body))


RIGHT = [
    "await ctx.step(time.time)",
    "await ctx.step(charge, 1)",
    "await ctx.options(name='x').step(lambda: time.time())",
    "await ctx.step(functools.partial(open, 'x'))",
    "opening = functools.partial(plain, 'x')\nawait ctx.step(opening)",
    "def now(): return time.time()\nawait ctx.step(now)",
    "now = lambda: time.time()\nawait ctx.options(name='x').step(now)",
    "await ctx.transaction(lambda c: c.execute(time.time()))",
    "def undo(x): time.sleep(1)\nawait ctx.options(undo=undo).step(charge, 1)\nctx.undo(undo, 1)",
    "def each(x): return time.time()\nawait ctx.map(each, order)",
    "await ctx.map(lambda x: time.time(), order)",
    "random = ctx.random\nrandom.choice(order)",
    "time = order.time\ntime.time()",
    "def f(time): return time.time()\nf(order)",
    "random.Random(order).random()",
    "uuid.uuid5(uuid.NAMESPACE_DNS, order)\nuuid.UUID(order)",
    "ctx.uuid(), ctx.now(), ctx.random()",
    "time.strftime('%Y', order)\ntime.gmtime(0)",
    "datetime.datetime.fromisoformat(order)\ndatetime.timedelta(days=1)",
    "return sorted(names), len(names), sum(len(n) for n in names), 'x' in names",
    "for number in {1, 2}: await ctx.step(plain, number)",
    "numbers: set[int] = set()\nfor number in numbers: await ctx.step(plain, number)",
    "running = set()\nrunning.add(asyncio.create_task(plain(1)))\nawait asyncio.gather(*running)",
    "done, pending = await asyncio.wait([ctx.step(plain, 1)])\nfor d in done: await d",
    "total = 0\nfor name in names: total += len(name)",
    "if any(name == order for name in names): return 1",
    "return {name.upper() for name in names}",
    "return sorted([n for n in names])",
    "seen = set()\nseen.add(order)",
    "cache = {}\ncache[order] = 1",
    "op = ctx.step(charge, 1)\nawait op",
    "op = ctx.step(charge, 1)\nif op.done(): pass\nop.cancel()",
    "ops = [ctx.step(charge, n) for n in order]\nawait asyncio.gather(*ops)",
    "task = asyncio.create_task(plain(1))\nawait task",
    "ctx.send('x', 'y')\nctx.publish('a', 1)\nctx.emit('a', 1)\nctx.start(child())\nctx.spawn(child())",
    "await ctx.call(ship(1))\nawait ctx.call(child())",
    "call = ship(1)\nawait ctx.call(call.options(retry=1))",
    "try: await ctx.sleep(1)\nexcept asyncio.CancelledError: raise",
    "try: await ctx.sleep(1)\nexcept asyncio.CancelledError: return 'stopped'",
    "try: await ctx.sleep(1)\nexcept BaseException:\n    await ctx.step(plain, 1)\n    raise",
    "try: await ctx.sleep(1)\nexcept Exception: pass",
    "try: return 1 / order\nexcept BaseException: return 0",
    "t = asyncio.create_task(plain(1))\nt.cancel()\nwith contextlib.suppress(asyncio.CancelledError): await t",
    "try: await ctx.sleep(1)\nexcept asyncio.CancelledError: asyncio.current_task().uncancel()",
    "await asyncio.sleep(5)\nasync with asyncio.timeout(5): await ctx.sleep(1)",
    "return {*names, 'x'}, max(*names)",
    "(only,) = names",
    "class_like = Order()\nOrder.scale(order)",
    "return DEFAULTS",
    "return [*map(str, sorted(names))]",
    "print(order)\nimport logging\nlogging.info('x')",
    "for one in asyncio.as_completed([asyncio.create_task(plain(1))]): await one",
    "import urllib.parse\nurllib.parse.quote('x')",
    "pathlib.Path('x').name\npathlib.Path('a') / 'b'",
    "open = order.open\nopen('x')",
    "io.StringIO().read()",
    "ways = {'a': lambda: time.time(), 'b': lambda: random.random()}\nawait ctx.step(ways[order])",
    "ways = [lambda: time.sleep(1), charge]\nfor way in ways: await ctx.step(way)",
    "way = (lambda: time.time()) if order else (lambda: random.random())\nawait ctx.step(way)",
    "await relay(ctx, lambda: time.time())",
    "await relay(ctx, function=lambda: time.time())",
    "ordered = list(names)\nordered.sort()\nreturn ordered",
    "for name in list(names):\n    if len(name) > 3: names.discard(name)",
    "if len(names) == 1: return next(iter(names))",
    "if len(names) != 1: raise ValueError\nreturn names.pop()",
    "numbers: set[float] = set()\nfor number in numbers: await ctx.step(plain, number)",
    "for number in {0.5, 1.5}: await ctx.step(plain, number)",
    "keys: set[uuid.UUID] = set()\nfor key in keys: await ctx.step(plain, key)",
    "match order:\n    case [time, *random]: return time.time() + random.random()",
    "match order:\n    case {'id': uuid, **os}: return uuid.uuid4(), os.environ",
    "match order:\n    case str() as time: return time.time()",
    "op: object = ctx.step(charge, 1)\nawait op",
    "if (paid := await ctx.step(charge, 1)): return paid",
    "async def pages():\n    for n in order: yield await ctx.step(plain, n)\nasync for p in pages(): ctx.emit('x', p)",
    "await ctx.options(undo=lambda: time.sleep(1)).step(charge, 1)",
    "await ctx.options(using=lambda: open('x')).transaction(charge, 1)",
    "try: await ctx.step(plain, 1)\nexcept TimeoutError: pass",
    "import requests\ntry: await ctx.step(plain, 1)\nexcept requests.HTTPError: pass",
    "import subprocess\ntry: await ctx.step(plain, 1)\nexcept subprocess.CalledProcessError: pass",
    "time.time()  # perdure: allow",
    "time.time()  # perdure: allow PD001",
    "time.time()  # perdure: allow clock (measured only)",
    "f(\n    time.time(),\n)  # perdure: allow clock",
]


@pytest.mark.parametrize("body", RIGHT)
def test_correct_code_is_left_alone(body: str, tmp_path: Path) -> None:
    assert codes(tmp_path, in_workflow(body)) == []


def in_blocking_workflow(body: str) -> str:
    body = body.replace("await ", "").replace("async ", "")
    head = "def flow(ctx: BlockingContext, order, names: set[str], tasks=()):"
    imported = "from perdure.blocking import Context as BlockingContext"
    return f'{HEAD}\n{imported}\n@workflow("shop.v1")\n{head}\n{indent(dedent(body).strip(), "    ")}\n'


#: Code of asyncio, which a `def` has not.
ASYNC = ("asyncio", "relay", "plain(1)", "async for", "yield")


def is_portable(body: str) -> bool:
    return not any(word in body for word in ASYNC)


@pytest.mark.parametrize(
    ("code", "body"),
    [(code, body) for code, bodies in WRONG.items() for body in bodies if is_portable(body) and code != "PD012"],
)
def test_a_rule_finds_the_same_in_a_workflow_that_is_not_async(code: str, body: str, tmp_path: Path) -> None:
    assert code in codes(tmp_path, in_blocking_workflow(body))


@pytest.mark.parametrize(
    "body",
    [
        *(body for body in RIGHT if is_portable(body) and "ctx.step(charge, 1)\nif op" not in body),
        "ctx.step(charge, 1)\nif ctx.step(charge, 2): return ctx.receive('x') + 1",
        "ctx.gather(lambda: ctx.step(charge, 1), lambda: ctx.sleep(1))",
        "paid = ctx.options(name='x').step(charge, 1)\nreturn paid.total",
        "with ctx.timeout(5): ctx.sleep(1)",
        "def part(): return ctx.step(charge, 1)\nctx.gather(part, part)",
        "def helper(ctx, cents): ctx.step(charge, cents)\nhelper(ctx, 3)",
    ],
)
def test_correct_code_that_is_not_async_is_left_alone(body: str, tmp_path: Path) -> None:
    assert codes(tmp_path, in_blocking_workflow(body)) == []


@pytest.mark.parametrize("head", ["def f(ctx):", "def f(ctx: 'perdure.blocking.Context'):"])
def test_a_workflow_that_is_not_async_is_recognised(head: str, tmp_path: Path) -> None:
    text = f"import time, perdure, perdure.blocking\n@perdure.workflow('x')\n{head} ctx.sleep(1), time.time()\n"
    assert codes(tmp_path, text) == ["PD001"]


@pytest.mark.parametrize("body", ["ctx.gather(part)", "ctx.shield(part)", "ctx.join({'a': part})", "ctx.gather(now)"])
def test_functions_that_a_blocking_context_calls_are_workflow_code(body: str, tmp_path: Path) -> None:
    assert codes(tmp_path, in_blocking_workflow(f"def part(): time.time()\nnow = part\n{body}")) == ["PD001"]


def test_a_comment_allows_only_the_rule_that_it_names(tmp_path: Path) -> None:
    assert codes(tmp_path, in_workflow("time.time()  # perdure: allow PD002")) == ["PD001"]


@pytest.mark.parametrize("comment", ["allow PD01", "allow PD0011 (measured)", "allow PD002, PD99"])
def test_a_comment_with_a_code_that_does_not_exist_allows_nothing_else(comment: str, tmp_path: Path) -> None:
    assert codes(tmp_path, in_workflow(f"time.time()  # perdure: {comment}")) == ["PD001"]


@pytest.mark.parametrize("above", ["\f", "TEXT = 'a\u2028b\x1cc\x85'", "# \x0b"])
def test_a_comment_is_found_below_characters_that_end_no_line_of_code(above: str, tmp_path: Path) -> None:
    assert codes(tmp_path, f"{above}\n{in_workflow('time.time()  # perdure: allow')}") == []


FLOW = "from perdure import workflow\n@workflow('x')\nasync def f(ctx):"


@pytest.mark.parametrize(
    "text",
    [
        "from perdure import workflow as wf\n@wf('x')\nasync def f(ctx): time.time()",
        "import perdure as p\n@p.workflow('x')\nasync def f(ctx): time.time()",
        "from perdure import workflow\nasync def f(ctx): time.time()\nflow = workflow('x')(f)",
        "from perdure import Context\nasync def helper(c: Context): time.time()",
        "from perdure import Context\nasync def helper(c: 'Context | None'): time.time()",
        "import perdure\nclass M(perdure.machine.StateMachine[str, str]):\n  def on_start(self, input): time.time()",
        """from perdure.machine import StateMachine as S
class B(S[str, str]):
    def helper(self): time.time()
class M(B, type='x'):
    def on_timer(self, id): return self.helper()
""",
        f"class C:\n  def now(self): return time.time()\nc = C()\n{FLOW} c.now()",
        "from perdure import workflow\ndef outer():\n  @workflow('x')\n  async def f(ctx): time.time()\n  return f",
        f"class C:\n  @staticmethod\n  def now(): return time.time()\n{FLOW} C.now()",
        f"def a(): return b()\ndef b(): return a() or time.time()\n{FLOW} a()",
        "from perdure import *\n@workflow('x')\nasync def f(c: Context): time.time()",
        f"from time import *\n{FLOW} sleep_until = monotonic()",
    ],
)
def test_workflow_code_is_recognised_under_any_name(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, f"import time\n{text}\n") == ["PD001"]


def test_code_that_no_workflow_calls_is_left_alone(tmp_path: Path) -> None:
    assert codes(tmp_path, f"import time\ndef web(): return time.time()\n{FLOW} pass\n") == []


def test_helpers_are_followed_through_the_modules_of_a_package(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / "tools").mkdir(parents=True)
    (shop / "__init__.py").write_text("from perdure import workflow\n")
    (shop / "tools" / "__init__.py").write_text("from .clocks import now as current\n")
    (shop / "tools" / "clocks.py").write_text("import time\n\ndef now():\n    return time.time()\n")
    (shop / "flows.py").write_text(
        "from . import workflow\nfrom .tools import current\n@workflow('x')\nasync def f(ctx): return current()\n"
    )
    (finding,) = lint([shop / "flows.py"])
    assert finding.path.endswith("shop/tools/clocks.py")
    assert (finding.line, finding.column, finding.code) == (4, 12, "PD001")
    assert "called by f" in finding.message


def test_a_finding_names_place_reason_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("import time\nfrom perdure import workflow\n@workflow('x')\nasync def f(ctx):\n    time.time()\n")
    (finding,) = lint([path])
    assert str(finding) == (
        f"{path}:5:5: PD001 time.time() reads the clock; a replay reads another time; use ctx.now()"
    )


def test_a_handler_of_a_machine_gets_the_remedy_of_machines(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "import time\nfrom perdure.machine import StateMachine\n"
        "class M(StateMachine[str, str], type='x'):\n    def on_timer(self, id): time.time()\n"
    )
    (finding,) = lint([path])
    assert finding.remedy == "use self.now()"


def test_the_linted_code_is_not_imported(tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    text = f"open({str(marker)!r}, 'w')\nfrom perdure import workflow\n@workflow('x')\nasync def f(ctx): pass\n"
    assert codes(tmp_path, text) == []
    assert not marker.exists()


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n"])
def test_a_file_that_cannot_be_parsed_is_a_finding(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, text) == ["PD000"]


def test_a_file_is_read_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_bytes(f"# -*- coding: latin-1 -*-\nNAME = '\xe9'\nimport time\n{FLOW} time.time()\n".encode("latin-1"))
    assert [finding.code for finding in lint([path])] == ["PD001"]


LONG_SUM = "+".join(["'a'"] * 1500)
LONG_CHAIN = "if 1: pass\n" + "elif 2: pass\n" * 1500


@pytest.mark.parametrize(
    "text", [f"X = {LONG_SUM}", f"def f(): return {LONG_SUM}", LONG_CHAIN, f"def f():\n {LONG_SUM}"]
)
def test_long_expressions_and_chains_do_not_stop_the_linter(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, f"import time\n{text}\n{FLOW} time.time()\n") == ["PD001"]


def test_a_file_that_cannot_be_read_or_is_nested_too_deeply_is_a_finding(tmp_path: Path) -> None:
    deep = tmp_path / "deep.py"
    deep.write_text("x = " + "+".join(["1"] * 100_000))
    (tmp_path / "absent.py").symlink_to(tmp_path / "nothing")
    found = lint([deep, tmp_path / "absent.py"])
    assert sorted(finding.code for finding in found) == ["PD000", "PD000"]
    assert "nested too deeply" in "".join(finding.message for finding in found)


def test_folders_and_dangling_links_with_the_name_of_a_file_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nothing")
    (tmp_path / "app.py").write_text("x = 1\n")
    assert list(python_files([tmp_path])) == [tmp_path / "app.py"]


def test_names_are_followed_through_imports_of_everything(tmp_path: Path) -> None:
    (tmp_path / "clocks.py").write_text("import time\ndef now(): return time.time()\n")
    (tmp_path / "tools.py").write_text("from perdure import *\nfrom clocks import *\nfrom app import *\n")
    (tmp_path / "app.py").write_text("from tools import *\n@workflow('x')\nasync def f(ctx): return now()\n")
    (finding,) = lint([tmp_path / "app.py"])
    assert (Path(finding.path).name, finding.code) == ("clocks.py", "PD001")


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in RULES} == {*WRONG, "PD000"}
