"""Checks of `perdure doctor`: each reads a little, judges it, and says what to do.

Functions whose names begin with `judge` are pure. The others read through the engine, which also works on a server, or
through a store of their own, which needs the database itself.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from perdure.client.engine import Engine
from perdure.client.runs.deadlocks import Deadlock, DeadlockSearch, advice, is_full
from perdure.client.runs.inspect import span
from perdure.core.limits.breaker import BreakerInfo, Circuit
from perdure.core.limits.limit import LimitInfo
from perdure.core.model.run import RunGroup, Status
from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.model.waits import RunWaits, meant_by
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus, living_workers
from perdure.core.pinning import base_queue, pinned_build
from perdure.core.printed_text import brief, misspelt
from perdure.core.routing import served_elsewhere
from perdure.core.system import System
from perdure.core.time.schedule import Schedule
from perdure.errors import PerdureError, SchemaMismatch, UsageError
from perdure.store import MigrationStatus, SqlStore, open_store, tables_of
from perdure.store.migrations import Index
from perdure.store.sql import diagnosis
from perdure.store.sql.diagnosis import BrokenInvariant, ForgottenWaitlist, ReadyRuns
from perdure.store.sql.invariants import BOUNDED_INVARIANTS, LIVE_INVARIANTS
from perdure.store.url import SqliteUrl, parse, shown

SECOND = 1_000_000
#: Difference of two clocks that is reported, and age of a waitlist or a lease that no worker has looked at.
_SKEW = 2 * SECOND
_FORGOTTEN = 60 * SECOND
#: CheckResults of one kind that are printed one by one; the others are counted.
_NAMED = 10
#: Limits, breakers and schedules that are read.
_PAGE = 1000
#: Full limits that are searched for deadlocks.
_SEARCHED = 500
#: Stands for an engine that is not known.
_ENGINE = "MODULE:ENGINE"
#: Queues or types of a worker that one remedy resumes.
_RESUMED = 3
#: Characters of a message's value that a command repeats.
_LONGEST_VALUE = 200
#: Least `max_allowed_packet`, in bytes.
_LEAST_PACKET = 4 * 1024 * 1024


class Level(StrEnum):
    """Verdict of a check."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    PROBLEM = "problem"


class CheckResult(Struct, frozen=True):
    """A verdict, the sentence that explains it, and what to do."""

    check: str
    level: Level
    text: str
    remedy: str = ""


T = TypeVar("T")
CheckResults = list[CheckResult]
Check = Callable[[], Awaitable[CheckResults]]


def ok(check: str, text: str) -> CheckResults:
    """Make the finding of a check that found nothing wrong."""
    return [CheckResult(check, Level.OK, text)]


def warning(check: str, text: str, remedy: str) -> CheckResult:
    """Make a finding that does no harm yet."""
    return CheckResult(check, Level.WARNING, text, remedy)


def problem(check: str, text: str, remedy: str) -> CheckResult:
    """Make a finding that loses work or stops it."""
    return CheckResult(check, Level.PROBLEM, text, remedy)


class Examination:
    """One examination of a database and of the work in it."""

    def __init__(
        self, url: str, system: System, *, timeout: float, thorough: bool = False, target: str = _ENGINE
    ) -> None:
        """Prepare an examination. `target` is the engine whose worker is to be started; a placeholder if not known."""
        self._url = url
        self._engine = target
        self._shown = shown(url)
        self._system = system
        self._timeout = timeout
        self._thorough = thorough
        #: True once `database` has found a schema that an engine can use.
        self.usable = False

    async def database(self) -> AsyncIterator[CheckResults]:
        """Check URL, driver, connection and schema, and then the database itself; ends early if one of them fails."""
        try:
            store = open_store(self._url, self._system, migrate=False)
        except UsageError as error:
            yield [problem("url", str(error), "correct the URL, or install the driver that it needs")]
            return
        store.first_answer_seconds = self._timeout
        yield ok("url", f"{self._shown}, {_driver(self._url)}")
        try:
            migrations = await store.migrations()
        except SchemaMismatch as error:
            yield ok("reachable", "the database answers")
            yield [problem("schema", *halves(error))]
            return
        except PerdureError as error:
            yield [problem("reachable", *halves(error))]
            return
        yield ok("reachable", "the database answers")
        found = judge_schema(migrations, self._shown)
        yield found
        self.usable = found[0].level is Level.OK
        if self.usable:
            async for findings in self._open(store):
                yield findings

    async def _open(self, store: SqlStore) -> AsyncIterator[CheckResults]:
        dialect, tables = tables_of(self._url)
        await store.open()
        try:

            async def settings() -> CheckResults:
                return judge_settings(dialect.name, await diagnosis.read_settings(store, dialect))

            async def indexes() -> CheckResults:
                return judge_indexes(await diagnosis.missing_indexes(store, dialect, tables))

            async def rules() -> CheckResults:
                rules = LIVE_INVARIANTS if self._thorough else BOUNDED_INVARIANTS
                return judge_invariants(await diagnosis.broken_invariants(store, rules), len(rules), self._shown)

            yield await guarded("clock", lambda: self._clock(store))
            yield await guarded("durability", settings)
            yield await guarded("indexes", indexes)
            yield await guarded("work", lambda: self._work(store))
            yield await guarded("waitlists", lambda: self._waitlists(store))
            yield await guarded("deadlocks", lambda: self._deadlocks(store))
            yield await guarded("messages", lambda: self._messages(store))
            yield await guarded("invariants", rules)
        finally:
            await store.close()

    async def _clock(self, store: SqlStore) -> CheckResults:
        before = self._system.now()
        server = await store.now()
        after = self._system.now()
        return judge_clock(server, (before, after), await diagnosis.newest_time(store))

    async def _work(self, store: SqlStore) -> CheckResults:
        """Check that live workers serve the ready runs, and hold the running ones."""
        workers, now = await store.workers(), await store.now()
        elsewhere = served_elsewhere(await store.types())
        ready = [one for one in await diagnosis.ready_runs(store) if one.type not in elsewhere]
        held = await diagnosis.held_runs(store)
        found = [
            *judge_ready(ready, living_workers(workers, now), await store.pauses(), now, self._engine),
            *judge_held(held, workers),
            *judge_abandoned(await diagnosis.abandoned_runs(store, now - _FORGOTTEN)),
        ]
        count = sum(one.count for one in ready)
        return found or ok("work", f"live workers serve all ready runs ({count:,}) and hold all running ones")

    async def _waitlists(self, store: SqlStore) -> CheckResults:
        now = await store.now()
        return judge_waitlists(await diagnosis.forgotten_waitlists(store, now - _FORGOTTEN), now, self._shown)

    async def _deadlocks(self, store: SqlStore) -> CheckResults:
        """Check that the holders of permits do not wait for the runs that wait for them."""
        search, waiting, after = DeadlockSearch(store), list[LimitInfo](), ""
        while len(waiting) < _SEARCHED:
            page = await store.gates(after, _PAGE)
            waiting += [limit for limit in page if limit.waiting and is_full(limit)]
            if len(page) < _PAGE:
                break
            after = page[-1].name
        found = [(limit, await search.find(limit)) for limit in waiting[:_SEARCHED]]
        return judge_deadlocks([(limit, one) for limit, one in found if one is not None], self._shown)

    async def _messages(self, store: SqlStore) -> CheckResults:
        """Check that no run waits for a message that was sent under a misspelt name."""
        near = misspelt_messages(await diagnosis.unread_names(store, _PAGE))
        values = [await diagnosis.unread_value(store, run_id, name) for run_id, name, _ in near[:_NAMED]]
        return judge_messages(near, values, self._shown)

    async def fleet(self, engine: Engine) -> AsyncIterator[CheckResults]:
        """Check workers, limits, pauses, schedules and blocked runs, through the engine."""
        target = self._shown

        async def workers() -> CheckResults:
            return judge_workers(await engine.workers.list(), await engine.queues.paused(), target, self._engine)

        async def limits() -> CheckResults:
            limits, breakers = await engine.limits.list(limit=_PAGE), await engine.breakers.list(limit=_PAGE)
            found = judge_limits(limits, target) + judge_breakers(breakers, target)
            return found or ok("limits", "every limit and breaker can be read, and none was opened by hand")

        async def pauses() -> CheckResults:
            return judge_pauses(await engine.queues.paused(), target)

        async def schedules() -> CheckResults:
            return judge_schedules(await engine.schedules.list(limit=_PAGE))

        async def blocked() -> CheckResults:
            return judge_blocked(await engine.runs.count(status=[Status.BLOCKED]), target)

        yield await guarded("workers", workers)
        yield await guarded("limits", limits)
        yield await guarded("pauses", pauses)
        yield await guarded("schedules", schedules)
        yield await guarded("blocked", blocked)


async def guarded(check: str, read: Check) -> CheckResults:
    """Run a check; an error of the database becomes its finding, so that the next check runs."""
    try:
        return await read()
    except PerdureError as error:
        return [problem(check, f"this cannot be checked: {halves(error)[0]}", halves(error)[1])]


def skipped() -> CheckResults:
    """List the checks that need the database itself, for a target that is a server."""
    checks = ("schema", "clock", "durability", "indexes", "work", "waitlists", "deadlocks", "invariants")
    return [CheckResult(check, Level.SKIPPED, "needs the URL of the database itself") for check in checks]


def judge_schema(migrations: Sequence[MigrationStatus], target: str) -> CheckResults:
    """Judge which migrations were applied."""
    missing = [one.name for one in migrations if not one.applied_at]
    if not missing:
        return ok("schema", f"all {len(migrations)} migrations are applied")
    if len(missing) == len(migrations):
        return [problem("schema", "the database has no tables of Perdure", command("migrate", target))]
    names = ", ".join(missing)
    return [problem("schema", f"{_some(len(missing), 'migration')} pending: {names}", command("migrate", target))]


def judge_clock(server: int, here: tuple[int, int], newest: int) -> CheckResults:
    """Compare the clock of the database with the one of this machine, and with the newest time in the tables."""
    found = []
    skew = server - here[1] if server > here[1] else min(0, server - here[0])
    if abs(skew) > _SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        found.append(
            warning(
                "clock",
                f"the database's clock is {span(abs(skew))} {ahead} the clock of this machine",
                "synchronise both with NTP; leases and timers follow the database, times given by programs do not",
            )
        )
    if newest > server + _SKEW:
        found.append(
            warning(
                "clock",
                f"the newest time in the tables is {span(newest - server)} later than the database's clock",
                "the clock was set back: correct it; until then timers are late and dead workers are noticed late",
            )
        )
    return found or ok("clock", "the clocks of the database and of this machine agree to two seconds")


#: Sentence and remedy for a value of a setting that is not safe. The first level is that of the finding.
_CARELESS: Mapping[tuple[str, str], tuple[Level, str, str]] = {
    ("fsync", "off"): (
        Level.PROBLEM,
        "fsync is off: a crash of the machine may damage the whole database",
        "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
    ),
    ("full_page_writes", "off"): (
        Level.PROBLEM,
        "full_page_writes is off: a crash of the machine may damage pages of the tables",
        "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
    ),
    ("synchronous_commit", "off"): (
        Level.PROBLEM,
        "synchronous_commit is off: a crash of the server loses steps that were committed, and they run again",
        "set it to on: ALTER SYSTEM, ALTER DATABASE or ALTER ROLE ... SET synchronous_commit = on",
    ),
    ("synchronous", "0"): (
        Level.PROBLEM,
        "synchronous is OFF: a power failure may damage the file",
        "remove synchronous from the URL",
    ),
    ("synchronous", "1"): (
        Level.WARNING,
        "synchronous is NORMAL: a power failure may lose the last commits, and their steps run again",
        "remove synchronous=NORMAL from the URL",
    ),
    ("innodb_flush_log_at_trx_commit", "0"): (
        Level.PROBLEM,
        "innodb_flush_log_at_trx_commit is 0: a crash of the server loses committed steps, and they run again",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration file",
    ),
    ("innodb_flush_log_at_trx_commit", "2"): (
        Level.PROBLEM,
        "innodb_flush_log_at_trx_commit is 2: a crash of the machine loses committed steps, and they run again",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration file",
    ),
}


def judge_settings(dialect: str, settings: Mapping[str, str]) -> CheckResults:
    """Judge whether a commit survives a crash of the server and of its machine."""
    found = []
    for name, value in settings.items():
        if (name, value) in _CARELESS:
            level, text, remedy = _CARELESS[name, value]
            found.append(CheckResult("durability", level, text, remedy))
    if dialect == "sqlite" and settings.get("journal_mode") not in ("wal", "memory"):
        mode = settings.get("journal_mode")
        found.append(problem("durability", f"journal_mode is {mode}, not wal", "PRAGMA journal_mode = WAL"))
    if settings.get("log_bin") == "1" and settings.get("sync_binlog") != "1":
        found.append(
            warning(
                "durability",
                f"sync_binlog is {settings.get('sync_binlog')}: after a crash, replicas may lack commits",
                "SET GLOBAL sync_binlog = 1, and in the server's configuration file",
            )
        )
    if int(settings.get("max_allowed_packet", _LEAST_PACKET)) < _LEAST_PACKET:
        found.append(
            problem(
                "durability",
                f"max_allowed_packet is {settings['max_allowed_packet']} bytes: large results cannot be stored",
                f"SET GLOBAL max_allowed_packet = {_LEAST_PACKET}, and in the server's configuration file",
            )
        )
    named = ", ".join(f"{name} = {value}" for name, value in sorted(settings.items()))
    return found or ok("durability", f"commits survive a crash: {named}")


def judge_indexes(missing: Sequence[Index]) -> CheckResults:
    """Judge which indexes are there."""
    return _each(
        "indexes",
        missing,
        lambda index: problem(
            "indexes", f"the index {index.name} is missing or not valid, so queries read whole tables", index.statement
        ),
    ) or ok("indexes", "every index of the schema is there")


def judge_invariants(broken: Sequence[BrokenInvariant], checked: int, target: str) -> CheckResults:
    """Judge which rules of a sound database rows break."""

    def describe(one: BrokenInvariant) -> CheckResult:
        promise = one.invariant.promise.rpartition(" (I")[0] or one.invariant.promise
        ids = ", ".join(map(brief, one.run_ids)) or "a row that has changed since"
        more = f" and {one.count - len(one.run_ids)} more" if one.count > len(one.run_ids) > 0 else ""
        first = command("show", target, one.run_ids[0]) if one.run_ids else command("doctor", target)
        return problem(
            "invariants",
            f"the rule that {promise} is broken by {ids}{more}",
            f"the rows were changed by hand, or this is a bug: keep a copy of the database, look at {first}, report it",
        )

    return _each("invariants", broken, describe) or ok("invariants", f"no row breaks one of {checked} rules")


def judge_ready(
    ready: Sequence[ReadyRuns], alive: Sequence[WorkerInfo], pauses: Sequence[Pause], now: int, engine: str = _ENGINE
) -> CheckResults:
    """Find the ready runs that no live worker can claim, nor could if what is paused was resumed."""
    paused = {(one.kind, one.name) for one in pauses}

    def is_served(one: ReadyRuns) -> bool:
        return any(one.type in worker.types and one.queue in worker.queues for worker in alive)

    def pause(one: ReadyRuns) -> str:
        kinds = ((PauseKind.TYPE, one.type), (PauseKind.QUEUE, base_queue(one.queue)))
        found = next((kind for kind, name in kinds if (kind, name) in paused), None)
        return "" if found is None else f", and the {found.value} is paused, too"

    served = {type for worker in alive for type in worker.types}
    return _each(
        "work",
        [one for one in ready if not is_served(one)],
        lambda one: warning(
            "work",
            f"no live worker serves {_count(one.count, 'ready run')} of type {one.type} in queue {one.queue}; "
            f"the oldest has waited for {span(now - one.oldest)}{pause(one)}",
            _worker_for(one, served, engine),
        ),
    )


def _worker_for(ready: ReadyRuns, served: set[str], engine: str) -> str:
    """Advice on runs that no worker serves."""
    queue = ready.queue
    if build := pinned_build(queue):
        return f"they are pinned to the build {build}: start a worker of it, or unpin them"
    near = None if ready.type in served else misspelt(ready.type, served)
    if near is not None:
        return f"did you mean {near}, which is served? Else start a worker whose engine has the type"
    return f"start a worker whose engine has it: {command('worker', engine, '--queue', queue)}"


def judge_held(held: Mapping[str, int], workers: Sequence[WorkerInfo]) -> CheckResults:
    """Find runs of workers that have ended, and workers without a free slot."""
    by_id = {one.id: one for one in workers}
    found = []
    for worker_id, count in held.items():
        worker = by_id.get(worker_id)
        if worker is not None and worker.status is not WorkerStatus.ALIVE:
            found.append(
                warning(
                    "work",
                    f"{_some(count, 'run')} still held by worker {worker_id}, which is {worker.status.value}",
                    "a sweep of any live worker releases them within seconds: start a worker if there is none",
                )
            )
        elif worker is not None and count >= worker.slots > 0:
            found.append(
                warning(
                    "work",
                    f"worker {worker_id} claims nothing: all of its {worker.slots} slots are taken",
                    "start another worker, or give it more --slots",
                )
            )
    return found


def judge_abandoned(run_ids: Sequence[str]) -> CheckResults:
    """Find runs whose own lease has ended, with no worker to release them."""
    if not run_ids:
        return []
    return [
        warning(
            "work",
            f"a lease ended more than a minute ago for {_count(len(run_ids), 'run')}, such as {brief(run_ids[0])}",
            "a sweep of any live worker releases them: start a worker",
        )
    ]


def judge_waitlists(forgotten: Sequence[ForgottenWaitlist], now: int, target: str) -> CheckResults:
    """Find waitlists that no worker looks at."""
    return _each(
        "waitlists",
        forgotten,
        lambda one: warning(
            "waitlists",
            f"no worker has looked at the waitlist of {one.gate} for {span(now - one.due_at)}; "
            f"{_some(one.waiting, 'run or step', 'runs or steps')} waiting there",
            f"start a worker that serves their types; {command('limits', 'list', target)} names the limits",
        ),
    ) or ok("waitlists", "workers look at every waitlist")


def misspelt_messages(found: Sequence[tuple[str, RunWaits]]) -> list[tuple[str, str, str]]:
    """List run, name and probably meant name of unread messages whose names resemble an awaited one."""
    return [
        (run_id, name, meant)
        for run_id, waits in found
        for name in waits.unread
        if (meant := meant_by(name, waits)) is not None
    ]


def judge_messages(near: Sequence[tuple[str, str, str]], values: Sequence[str | None], target: str) -> CheckResults:
    """Find runs that wait for a message while one with a name like it is unread. `values` are those of the first."""

    def describe(one: tuple[tuple[str, str, str], str | None]) -> CheckResult:
        (run_id, name, meant), value = one
        known = value is not None and len(value) <= _LONGEST_VALUE and is_json(value)
        send = command("send", target, run_id, meant, value if value is not None and known else "null")
        return warning(
            "messages",
            f"run {brief(run_id)} waits for the message {brief(meant)}, and a message {brief(name)} is unread",
            f"send it under the right name: {send}{'' if known else ', with its value in place of null'}",
        )

    padded = [*values, *[None] * (len(near) - len(values))]
    return _each("messages", list(zip(near, padded, strict=True)), describe) or ok(
        "messages", "no run waits for a message that was sent under a name like it"
    )


def is_json(text: str) -> bool:
    """Tell whether a stored value is JSON, as it is unless a codec of the user's has stored it."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def judge_deadlocks(found: Sequence[tuple[LimitInfo, Deadlock]], target: str) -> CheckResults:
    """Find limits that admit nothing, because the holders of their permits wait for runs that wait there."""
    return _each(
        "deadlocks",
        found,
        lambda one: problem(
            "deadlocks",
            f"{_some(one[0].waiting, 'run or step', 'runs or steps')} waiting for ever for the limit {one[0].name}: "
            f"{one[1]}",
            advice(one[0], target),
        ),
    ) or ok("deadlocks", "no holder of a permit waits for a run that waits for this permit")


def judge_workers(
    workers: Sequence[WorkerInfo], pauses: Sequence[Pause], target: str, engine: str = _ENGINE
) -> CheckResults:
    """Find workers that are overdue, and workers that cannot claim."""
    alive = [one for one in workers if one.status is WorkerStatus.ALIVE]
    found = [finding for one in alive for finding in _judge_worker(one, pauses, target)]
    if not alive:
        remedy = f"start one: {command('worker', engine)}"
        return [warning("workers", "no worker is alive, so no run begins or continues", remedy)]
    text = f"{_some(len(alive), 'worker')} alive, with {sum(one.slots for one in alive):,} slots"
    return found[:_NAMED] or ok("workers", text)


def _judge_worker(worker: WorkerInfo, pauses: Sequence[Pause], target: str) -> Iterable[CheckResult]:
    named = f"worker {worker.id} ({worker.host}, process {worker.pid})"
    paused = {(one.kind, one.name) for one in pauses}
    late = worker.read_at - worker.heartbeat_at
    if late > worker.lease:
        yield problem(
            "workers",
            f"{named} was last heard of {span(late)} ago, longer than its lease, and no worker has taken over its runs",
            "start a worker, which takes over its runs; find out why its process stopped",
        )
    elif worker.is_late(worker.read_at):
        yield warning(
            "workers",
            f"{named} was last heard of {span(late)} ago; others take over in {span(worker.lease - late)}",
            "look at its log: its event loop may be blocked, or its process cut off from the database",
        )
    if worker.problem:
        yield warning(
            "workers", f"{named} counts {worker.errors} errors, the latest: {worker.problem}", "look at its log"
        )
    if worker.drain is not None:
        yield warning(
            "workers", f"{named} claims nothing: it was ordered to drain", "wait until it ends; start another"
        )
    elif not worker.types:
        yield warning("workers", f"{named} claims nothing: it serves no type", "check its option --types")
    elif resume := _resume(worker, paused, target):
        yield warning("workers", f"{named} claims nothing: all of its queues or types are paused", resume)


def _resume(worker: WorkerInfo, paused: Container[tuple[PauseKind, str]], target: str) -> str:
    """Commands that let a worker claim again, all of whose queues or types are paused; empty if they are not."""
    for kind, names in ((PauseKind.QUEUE, [base_queue(one) for one in worker.queues]), (PauseKind.TYPE, worker.types)):
        if all((kind, name) in paused for name in names):
            first = [resume_command(kind, name, target) for name in dict.fromkeys(names)]
            return " and ".join(first[:_RESUMED]) + (f" and {len(first) - _RESUMED} more" * (len(first) > _RESUMED))
    return ""


def resume_command(kind: PauseKind, name: str, target: str) -> str:
    """Spell the command that resumes a queue or a type."""
    return command("queues", "resume", target, *(["--type", name] if kind is PauseKind.TYPE else [name]))


def judge_limits(limits: Sequence[LimitInfo], target: str) -> CheckResults:
    """Find limits that cannot be read."""
    damaged = [one for one in limits if one.problem]
    return _each(
        "limits",
        damaged,
        lambda one: problem(
            "limits",
            f"the row of the limit {one.name} cannot be read, so it admits nothing: {one.problem}",
            f"clear it, and set it anew if it was set at run time: {command('limits', 'clear', target, one.name)}",
        ),
    )


def judge_breakers(breakers: Sequence[BreakerInfo], target: str) -> CheckResults:
    """Find breakers that cannot be read, and those that were opened by hand."""
    damaged = _each(
        "limits",
        [one for one in breakers if one.problem],
        lambda one: problem(
            "limits",
            f"the row of the breaker {one.name} cannot be read, so it admits nothing: {one.problem}",
            command("breakers", "reset", target, one.name),
        ),
    )
    opened = _each(
        "limits",
        [one for one in breakers if one.circuit is Circuit.OPEN and one.by_hand],
        lambda one: warning(
            "limits",
            f"the breaker {one.name} was opened by hand; {_some(one.waiting, 'run or step', 'runs or steps')} waiting",
            f"{command('breakers', 'reset', target, one.name)}, once its service works again",
        ),
    )
    return damaged + opened


def judge_schedules(schedules: Sequence[Schedule]) -> CheckResults:
    """Find schedules that start no runs because of an error."""
    return _each(
        "schedules",
        [one for one in schedules if one.error],
        lambda one: warning("schedules", f"the schedule {one.id} has an error: {one.error}", "correct it and save it"),
    ) or ok("schedules", "no schedule has an error")


def judge_blocked(blocked: RunGroup, target: str) -> CheckResults:
    """Count the runs that only a person or a deploy can help."""
    if not blocked.count:
        return ok("blocked", "no run is blocked")
    remedy = f"{command('runs', 'list', target, '--status', 'blocked')} names them; deploy a fix, or retry them"
    are = "run is" if blocked.count == 1 else "runs are"
    return [warning("blocked", f"{blocked} {are} blocked and will not continue without help", remedy)]


def judge_pauses(pauses: Sequence[Pause], target: str) -> CheckResults:
    """List what is paused."""

    def describe(one: Pause) -> CheckResult:
        why = f": {one.reason}" if one.reason else ""
        by = f" by {one.actor}" if one.actor else ""
        return warning(
            "pauses",
            f"the {one.kind.value} {one.name} is paused{by}{why}",
            f"{resume_command(one.kind, one.name, target)}, once the reason is gone",
        )

    return _each("pauses", pauses, describe) or ok("pauses", "no queue and no type is paused")


def command(*words: str) -> str:
    """Spell a command so that a shell reads the words as they are, names of runs included, between backquotes."""
    return f"`{shlex.join(['perdure', *words])}`"


def _each(check: str, items: Sequence[T], describe: Callable[[T], CheckResult]) -> CheckResults:
    """Describe the first items one by one, and count the others."""
    found = [describe(one) for one in items[:_NAMED]]
    if len(items) > _NAMED:
        more = max(found, key=lambda one: list(Level).index(one.level)).level
        found.append(CheckResult(check, more, f"there are {len(items) - _NAMED} more of this kind"))
    return found


def _count(count: int, one: str) -> str:
    return f"{count:,} {one}{'s' * (count != 1)}"


def _some(count: int, one: str, many: str = "") -> str:
    """Name a number of things with the verb that fits it."""
    return f"{count:,} {one} is" if count == 1 else f"{count:,} {many or one + 's'} are"


def halves(error: PerdureError) -> tuple[str, str]:
    """Split the message of an error into what happened and what to do."""
    text, _, remedy = str(error).partition("; ")
    return text, remedy or "see the guide to operations"


def _driver(url: str) -> str:
    where = parse(url)
    if isinstance(where, SqliteUrl):
        return f"SQLite {sqlite3.sqlite_version}"
    driver = "asyncpg" if url.startswith("postgres") else "asyncmy"
    return f"driver {driver} {importlib.metadata.version(driver)}"
