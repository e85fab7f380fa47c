"""The rules of `perdure lint`: codes, names, remedies, the library functions that break them, and findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule. Comments such as `# perdure: allow PD001` name it by its code or by its name."""

    code: str
    name: str
    #: Why the code is wrong in a workflow.
    reason: str
    #: The correct way. `{ctx}` is the context, or `self` in a state machine.
    remedy: str


SYNTAX = Rule("PD000", "syntax", "cannot be parsed", "fix the syntax error")
CLOCK = Rule("PD001", "clock", "reads the clock; a replay reads another time", "use {ctx}.now()")
RANDOM = Rule(
    "PD002", "random", "is random; a replay gets another value", "use {ctx}.random, such as {ctx}.random.choice(...)"
)
UUID = Rule("PD003", "uuid", "makes a new id; a replay makes another one", "use {ctx}.uuid()")
NETWORK = Rule("PD004", "network", "talks to the network; a replay repeats it", "move it into {step}")
FILES = Rule("PD005", "files", "uses the file system; a replay may find other contents", "move it into {step}")
THREADS = Rule("PD006", "threads", "leaves the run's event loop; nothing orders it on replay", "move it into {step}")
SLEEP = Rule("PD007", "blocking-sleep", "blocks the worker and is no durable timer", "use {sleep}")
ENVIRONMENT = Rule(
    "PD008",
    "environment",
    "depends on the worker's process; a replay may run in another one",
    "pass the value as an argument of the workflow, or read it in {step}",
)
ORDER = Rule(
    "PD009",
    "set-order",
    "depends on the order of a set, which differs from process to process",
    "iterate over sorted(...), or use a list or a dict",
)
IDENTITY = Rule(
    "PD010",
    "identity",
    "differs from process to process",
    "use a key of your own, {ctx}.uuid(), or a digest of hashlib",
)
GLOBALS = Rule(
    "PD011",
    "global-state",
    "is shared by all runs of the process and lost on replay",
    "keep the value in a local variable, or write it in {step}",
)
AWAIT = Rule("PD012", "missing-await", "is not awaited, so its result is never seen", "await it")
DIRECT = Rule("PD013", "direct-call", "is called directly, so nothing records it", "call it through {call}")
CALLED = Rule(
    "PD014",
    "called-step",
    "is called before ctx.step gets it, so it runs outside of the step",
    "pass the function and its arguments: ctx.step(function, argument)",
)
CLIENT = Rule(
    "PD015",
    "client-call",
    "is a call of an engine, which would be repeated on replay",
    "use ctx.start, ctx.send or ctx.call, or move it into {step}",
)
CANCEL = Rule(
    "PD016",
    "swallowed-cancel",
    "swallows a cancellation, so the run cannot be stopped",
    "catch Exception instead, or raise again",
)
WAIT = Rule(
    "PD017",
    "unordered-wait",
    "resumes in an order that differs from process to process",
    "wrap each coroutine in asyncio.create_task(...) first",
)

RULES: tuple[Rule, ...] = (
    SYNTAX, CLOCK, RANDOM, UUID, NETWORK, FILES, THREADS, SLEEP, ENVIRONMENT, ORDER, IDENTITY, GLOBALS, AWAIT, DIRECT,
    CALLED, CLIENT, CANCEL, WAIT,
)  # fmt: skip

_HTTP = ("get", "post", "put", "patch", "delete", "head", "options", "request")

_NAMES: Mapping[Rule, tuple[str, ...]] = {
    CLOCK: (
        "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
        "time.process_time", "time.thread_time", "time.clock_gettime", "datetime.datetime.now",
        "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today", "pendulum.now", "pendulum.today",
        "arrow.now", "arrow.utcnow", "django.utils.timezone.now", "django.utils.timezone.localdate",
        "whenever.Instant.now", "whenever.ZonedDateTime.now", "pandas.Timestamp.now", "pandas.Timestamp.utcnow",
    ),
    RANDOM: ("random.*", "secrets.*", "os.urandom", "os.getrandom", "numpy.random.*", "ssl.RAND_bytes"),
    UUID: (
        "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.uuid8", "ulid.new", "ulid.ULID", "shortuuid.uuid",
        "nanoid.generate", "xid.Xid",
    ),
    NETWORK: (
        *(f"{library}.{verb}" for library in ("requests", "httpx") for verb in _HTTP), "requests.Session",
        "requests.session", "httpx.stream", "httpx.Client", "httpx.AsyncClient", "aiohttp.ClientSession",
        "aiohttp.request", "urllib.request.urlopen", "urllib.request.urlretrieve", "urllib.request.build_opener",
        "http.client.HTTPConnection", "http.client.HTTPSConnection", "urllib3.PoolManager", "urllib3.request",
        "socket.socket", "socket.create_connection", "socket.create_server", "socket.getaddrinfo",
        "socket.gethostbyname", "asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection",
        "smtplib.SMTP", "smtplib.SMTP_SSL", "ftplib.FTP", "imaplib.IMAP4", "poplib.POP3", "telnetlib.Telnet",
        "xmlrpc.client.ServerProxy", "boto3.client", "boto3.resource", "boto3.Session", "redis.Redis",
        "redis.asyncio.Redis", "redis.from_url", "asyncpg.connect", "asyncpg.create_pool", "psycopg.connect",
        "psycopg.AsyncConnection.connect", "psycopg2.connect", "pymysql.connect", "asyncmy.connect",
        "sqlalchemy.create_engine", "sqlalchemy.ext.asyncio.create_async_engine", "pymongo.MongoClient",
        "openai.OpenAI", "openai.AsyncOpenAI", "anthropic.Anthropic", "anthropic.AsyncAnthropic",
    ),
    FILES: (
        "open", "io.open", "io.FileIO", "os.open", "os.listdir", "os.scandir", "os.walk", "os.stat", "os.remove",
        "os.unlink", "os.rename", "os.replace", "os.mkdir", "os.makedirs", "os.rmdir", "os.path.exists",
        "os.path.isfile", "os.path.isdir", "os.path.getsize", "os.path.getmtime", "shutil.*", "tempfile.*",
        "glob.glob", "glob.iglob", "aiofiles.open", "sqlite3.connect", "aiosqlite.connect", "pickle.load", "input",
        "linecache.getline", "fileinput.input", "zipfile.ZipFile", "tarfile.open", "pathlib.Path.cwd",
        "pathlib.Path.home",
    ),
    THREADS: (
        "subprocess.*", "os.system", "os.popen", "os.fork", "os.execv", "os.execvp", "os.posix_spawn", "os.kill",
        "multiprocessing.*", "threading.Thread", "threading.Timer", "_thread.start_new_thread",
        "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor", "asyncio.to_thread",
        "asyncio.run", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
        "asyncio.run_coroutine_threadsafe", "anyio.to_thread.run_sync", "anyio.run_process",
        "asgiref.sync.sync_to_async", "signal.signal", "joblib.Parallel",
    ),
    SLEEP: ("time.sleep", "anyio.sleep", "trio.sleep", "gevent.sleep"),
    ENVIRONMENT: (
        "os.environ", "os.environb", "os.getenv", "os.getenvb", "os.getpid", "os.getppid", "os.getcwd", "os.cpu_count",
        "os.uname", "os.getlogin", "os.getloadavg", "sys.argv", "socket.gethostname", "socket.getfqdn",
        "platform.node", "platform.uname", "getpass.getuser", "uuid.getnode", "multiprocessing.cpu_count",
        "threading.get_ident", "threading.current_thread", "threading.active_count",
    ),
}  # fmt: skip

#: Names within those modules that are deterministic.
_HARMLESS = frozenset(
    (
        "subprocess.CalledProcessError", "subprocess.TimeoutExpired", "subprocess.list2cmdline", "subprocess.PIPE",
        "secrets.compare_digest", "shutil.Error", "multiprocessing.TimeoutError", "multiprocessing.cpu_count",
        "numpy.random.Generator", "random.Random",
    )
)  # fmt: skip

#: Generators that are deterministic when a seed is given.
SEEDED = frozenset(("random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "random.seed"))

#: Functions of `time` that read the clock unless they get a time.
CLOCK_BY_DEFAULT = MappingProxyType(
    {"time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.asctime": 1, "time.strftime": 2}
)

_BY_NAME = {name: rule for rule, names in _NAMES.items() for name in names}


def rule_of(name: str) -> Rule | None:
    """Return the rule that a library function breaks, given its full name."""
    if name in _HARMLESS:
        return None
    rule = _BY_NAME.get(name)
    while rule is None and "." in name:
        name = name.rpartition(".")[0]
        rule = _BY_NAME.get(f"{name}.*")
    return rule


#: Methods of a path that use the file system, whatever the object is.
FILE_METHODS = frozenset(("read_text", "read_bytes", "write_text", "write_bytes"))
#: Methods of `pathlib.Path` that use the file system.
PATH_METHODS = FILE_METHODS | frozenset(
    (
        "open", "exists", "is_file", "is_dir", "is_symlink", "iterdir", "glob", "rglob", "walk", "mkdir", "rmdir",
        "unlink", "rename", "replace", "touch", "stat", "lstat", "resolve", "samefile", "chmod", "symlink_to",
        "hardlink_to", "readlink", "expanduser", "owner",
    )
)  # fmt: skip

#: Methods of a context that return something to await.
OPERATIONS = frozenset(
    (
        "step", "transaction", "sleep", "sleep_until", "receive", "receive_any", "receive_many", "receive_question",
        "join", "race", "map", "loop", "call", "shield", "outcome", "removed",
    )
)  # fmt: skip
#: Methods of a blocking context that wait.
BLOCKING_CALLS = OPERATIONS | {"gather", "wait"}
#: Methods of a context whose first argument is a function that runs as a step.
STEP_METHODS = frozenset(("step", "transaction", "undo"))

#: Functions that look at all elements and at no order.
UNORDERED = frozenset(
    ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance", "print", "repr")
)
#: Functions whose result has the order of their argument.
ORDERED = frozenset(("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "next", "itertools.chain"))

#: Methods that change a list, dict, set or deque.
MUTATORS = frozenset(
    (
        "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "pop", "popleft",
        "popitem", "remove", "discard", "clear", "subtract", "difference_update", "intersection_update", "sort",
    )
)  # fmt: skip
#: Constructors of values that can be changed.
MUTABLE = frozenset(
    (
        "list", "dict", "set", "bytearray", "collections.deque", "collections.defaultdict", "collections.Counter",
        "collections.OrderedDict", "itertools.count", "weakref.WeakValueDictionary", "weakref.WeakKeyDictionary",
    )
)  # fmt: skip


_CODE = re.compile(r"PD[0-9]+")
_ALLOW = re.compile(r"#\s*perdure:\s*allow\b([^#]*)")


class Finding(Struct, frozen=True, order=True):
    """One place that breaks a rule."""

    path: str
    line: int
    column: int
    code: str
    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code} {self.message}; {self.remedy}"


def shown_path(path: Path) -> str:
    """Path relative to the working directory, if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def is_allowed(rule: Rule, lines: Sequence[str], numbers: Sequence[int]) -> bool:
    """True if a comment `# perdure: allow` on one of the lines covers the rule."""
    for number in numbers:
        found = _ALLOW.search(lines[number - 1]) if 0 < number <= len(lines) else None
        if found is None:
            continue
        # A code that does not exist names a rule too, and must not allow the others.
        named = {word for word in re.split(r"[\s,()]+", found[1]) if word in _KNOWN or _CODE.fullmatch(word)}
        if not named or {rule.code, rule.name} & named:
            return True
    return False


_KNOWN = frozenset(name for rule in RULES for name in (rule.code, rule.name))
