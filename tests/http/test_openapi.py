"""The OpenAPI document and the server agree, and everything that an engine can do has a route or a reason."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import product

import click
import pytest

import perdure.admin
from perdure import Engine, Handle, errors
from perdure.cli.app import cli
from perdure.cli.console.command_groups import CommandGroup
from perdure.http.openapi import errors_of, make_document
from perdure.http.problems import KINDS
from perdure.http.routes import PREFIX, ROUTES, Router
from perdure.outbox import Outbox
from tests.http.serving import Served

#: Verbs of the Python API, by the operations that do the same over HTTP.
VERBS = {
    "Engine.start": ["start"],
    "Engine.start_many": ["start_many"],
    "Engine.get": ["show"],
    "Engine.send": ["send"],
    "Runs.broadcast": ["broadcast"],
    "Engine.cancel": ["cancel"],
    "Engine.check": ["check", "run_deploy_check"],
    "Handle.result": ["result"],
    "Handle.info": ["show"],
    "Handle.status": ["show"],
    "Handle.history": ["history"],
    "Handle.inbox": ["inbox"],
    "Handle.events": ["events"],
    "Handle.report": ["report"],
    "Handle.interruptions": ["interruptions"],
    "Handle.logs": ["logs"],
    "Handle.why": ["why"],
    "Handle.send": ["send"],
    "Handle.set_aside_messages": ["set_aside"],
    "Handle.deliver_again": ["deliver"],
    "Handle.drop_message": ["drop"],
    "Handle.ask": ["ask"],
    "Handle.state": ["state"],
    "Handle.wait_state": ["state"],
    "Handle.states": ["states"],
    "Handle.stream": ["stream_items", "follow_stream"],
    "Handle.cancel": ["cancel"],
    "Handle.terminate": ["terminate"],
    "Handle.pause": ["pause"],
    "Handle.resume": ["resume"],
    "Handle.evict": ["evict"],
    "Handle.wake": ["wake"],
    "Handle.retry": ["retry"],
    "Handle.delete": ["delete", "purge"],
    "Handle.undelete": ["undelete"],
    "Handle.fork": ["fork"],
    "Runs.list": ["list_runs"],
    "Runs.preview_bulk": ["preview_bulk"],
    "Runs.bulk": ["start_bulk", "show_bulk"],
    "Runs.start_bulk": ["start_bulk"],
    "Runs.bulk_progress": ["show_bulk"],
    "Runs.count": ["count_runs"],
    "Runs.count_by": ["count_runs"],
    "Runs.complete": ["complete_activity"],
    "Runs.fail": ["fail_activity"],
    "Runs.heartbeat": ["beat_activity"],
    "Runs.why": ["why"],
    "Runs.unserved": ["unserved"],
    "Runs.updated_at": ["updated"],
    "Runs.terminate": ["terminate"],
    "Runs.pause": ["pause"],
    "Runs.resume": ["resume"],
    "Runs.evict": ["evict"],
    "Runs.unpin": ["unpin"],
    "Handle.unpin": ["unpin"],
    "Workers.builds": ["list_workers", "count_runs"],
    "Runs.wake": ["wake"],
    "Runs.retry": ["retry"],
    "Runs.delete": ["delete", "purge"],
    "Runs.undelete": ["undelete"],
    "Runs.prune": ["prune"],
    "Schedules.create": ["create_schedule"],
    "Schedules.change": ["change_schedule"],
    "Schedules.pause": ["pause_schedule"],
    "Schedules.resume": ["resume_schedule"],
    "Schedules.delete": ["delete_schedule"],
    "Schedules.trigger": ["trigger_schedule"],
    "Schedules.backfill": ["backfill_schedule"],
    "Schedules.get": ["show_schedule"],
    "Schedules.list": ["list_schedules"],
    "Schedules.next": ["next_fire_times"],
    "Schedules.events": ["schedule_events"],
    "Limits.set": ["set_limit"],
    "Limits.clear": ["clear_limit"],
    "Limits.list": ["list_limits"],
    "Limits.holders": ["list_permits"],
    "Breakers.open": ["open_breaker"],
    "Breakers.close": ["close_breaker"],
    "Breakers.reset": ["reset_breaker"],
    "Breakers.list": ["list_breakers"],
    "Locks.list": ["list_locks"],
    "Locks.get": ["show_lock"],
    "Locks.force_release": ["release_lock"],
    "DeadLetters.list": ["list_dead_letters"],
    "DeadLetters.get": ["show_dead_letter"],
    "DeadLetters.retry": ["retry_dead_letters"],
    "DeadLetters.discard": ["discard_dead_letters"],
    "DeadLetters.prune": ["prune_dead_letters"],
    "AuditTrail.list": ["list_events"],
    "AuditTrail.follow": ["live"],
    "AuditTrail.prune": ["prune_events"],
    "Workers.list": ["list_workers", "fleet_load"],
    "Queues.pause": ["pause_queue", "pause_type"],
    "Queues.resume": ["resume_queue", "resume_type"],
    "Queues.paused": ["list_pauses"],
    "Queues.types": ["list_types"],
    "Queues.sources": ["list_sources"],
    "Workers.drain": ["drain_worker"],
    "Runs.set_priority": ["set_priority"],
    "Handle.set_priority": ["set_priority"],
    "Schedules.preview_backfill": ["preview_backfill"],
    "Schedules.fires": ["list_fires"],
    "Schedules.runs": ["list_schedule_runs"],
    "AuditTrail.deploy_checks": ["list_deploy_checks"],
    "Watermarks.set": ["set_queue_watermark", "set_type_watermark"],
    "Watermarks.remove": ["remove_queue_watermark", "remove_type_watermark"],
    "Watermarks.list": ["list_watermarks"],
    "Watermarks.depth": ["queue_depth", "type_depth"],
    "Outbox.publish": ["publish_event"],
    "Outbox.list": ["list_published_events"],
    "Outbox.get": ["show_published_event"],
    "Outbox.deliveries": ["show_published_event"],
    "Outbox.replay": ["replay_published_event"],
    "Events.emit": ["emit_sticky_event"],
    "Events.get": ["sticky_event"],
    "Events.wait": ["sticky_event"],
    "Events.list": ["list_sticky_events"],
    "Events.delete": ["delete_sticky_event"],
    "Tokens.create": ["create_token"],
    "Tokens.list": ["list_tokens"],
    "Tokens.get": ["show_token"],
    "Tokens.revoke": ["revoke_token"],
}
#: Verbs without a route, and why.
WITHOUT_ROUTE = {
    "Engine.url": "the address of the database is for the server alone",
    "Engine.workflows": "`list_types` has the types that workers serve",
    "Engine.open": "the server opens its engine",
    "Engine.close": "the server closes its engine",
    "Locks.hold": "a lock is held by a process that runs code",
    "Engine.worker": "a worker runs code; it needs the database",
    "Engine.blocking": "a facade for Python",
    "Runs.export": "a history is read with the seed of its run, which no answer has; it needs the database",
    "Runs.replay": "it compares a file with the code of this process",
    "Runs.bulk_worker": "the server runs one when it is needed",
    "Handle.id": "part of every answer",
    "Locks.acquire": "a lock is held by a process that runs code; the answer to a lost request would leave it taken",
    "AuditTrail.level": "each writing process chooses its own level",
}
#: Namespaces of an engine and values with verbs.
CLASSES = [Engine, Handle, Outbox, *(getattr(perdure.admin, name) for name in (
    "Runs", "Schedules", "Limits", "Breakers", "Locks", "DeadLetters", "AuditTrail", "Workers", "Queues", "Watermarks",
    "Tokens",
))]  # fmt: skip

#: Commands, by the operations that do the same over HTTP.
COMMANDS = {
    "start": "start",
    "wait": "result",
    "send": "send",
    "ask": "ask",
    "broadcast": "broadcast",
    "activities complete": "complete_activity",
    "activities fail": "fail_activity",
    "activities heartbeat": "beat_activity",
    "cancel": "cancel",
    "terminate": "terminate",
    "check": "check",
    "show": "show",
    "why": "why",
    "logs": "logs",
    "retry": "retry",
    "runs list": "list_runs",
    "runs bulk": "start_bulk",
    "runs count": "count_runs",
    "runs show": "show",
    "runs why": "why",
    "runs logs": "logs",
    "runs retry": "retry",
    "runs states": "states",
    "runs stream": "follow_stream",
    "runs pause": "pause",
    "runs resume": "resume",
    "runs wake": "wake",
    "runs evict": "evict",
    "runs unpin": "unpin",
    "runs set-priority": "set_priority",
    "runs fork": "fork",
    "runs delete": "delete",
    "runs undelete": "undelete",
    "runs prune": "prune",
    "runs cancel": "cancel",
    "runs terminate": "terminate",
    "dead-letters list": "list_dead_letters",
    "dead-letters show": "show_dead_letter",
    "dead-letters retry": "retry_dead_letters",
    "dead-letters discard": "discard_dead_letters",
    "dead-letters prune": "prune_dead_letters",
    "messages list": "set_aside",
    "messages deliver": "deliver",
    "messages drop": "drop",
    "schedules create": "create_schedule",
    "schedules change": "change_schedule",
    "schedules list": "list_schedules",
    "schedules show": "show_schedule",
    "schedules next": "next_fire_times",
    "schedules pause": "pause_schedule",
    "schedules resume": "resume_schedule",
    "schedules trigger": "trigger_schedule",
    "schedules backfill": "backfill_schedule",
    "schedules delete": "delete_schedule",
    "queues list": "list_pauses",
    "queues pause": "pause_queue",
    "queues resume": "resume_queue",
    "queues types": "list_types",
    "workers list": "list_workers",
    "workers builds": "count_runs",
    "limits list": "list_limits",
    "limits holders": "list_permits",
    "limits set": "set_limit",
    "limits clear": "clear_limit",
    "breakers list": "list_breakers",
    "breakers open": "open_breaker",
    "breakers close": "close_breaker",
    "breakers reset": "reset_breaker",
    "locks list": "list_locks",
    "locks release": "release_lock",
    "outbox list": "list_published_events",
    "outbox show": "show_published_event",
    "outbox publish": "publish_event",
    "outbox replay": "replay_published_event",
    "watermarks list": "list_watermarks",
    "watermarks set": "set_queue_watermark",
    "watermarks remove": "remove_queue_watermark",
    "watermarks depth": "queue_depth",
    "events list": "list_sticky_events",
    "events emit": "emit_sticky_event",
    "events get": "sticky_event",
    "events delete": "delete_sticky_event",
    "audit list": "list_events",
    "audit checks": "list_deploy_checks",
    "workers drain": "drain_worker",
    "queues source": "list_sources",
    "schedules fires": "list_fires",
    "schedules runs": "list_schedule_runs",
    "audit prune": "prune_events",
    "tokens list": "list_tokens",
    "tokens create": "create_token",
    "tokens revoke": "revoke_token",
}
#: Commands without a route, and why.
LOCAL_COMMANDS = {
    "dev": "runs processes on this machine",
    "demo": "a demonstration on this machine",
    "init": "writes files on this machine",
    "worker": "runs code; it needs the database",
    "export": "a history is read with the seed of its run, which no answer has; it needs the database",
    "replay": "compares a file with the code of this machine",
    "debug": "runs code in a debugger on this machine",
    "lint": "reads source files of this machine",
    "mcp": "a server that calls these routes",
    "serve": "the server itself",
    "migrate": "changes tables; it needs the database and is no part of a running service",
    "top": "a view of the database; over HTTP it shows what the routes of workers, queues and runs do",
    "doctor": "examines the database itself; over HTTP it checks what the routes of workers, limits and queues show",
    "sql": "prints statements for other languages",
    "stress": "a test of this machine",
    "completion": "prints a script for the shell of this machine",
    "runs due": "for pushers, which need the database",
    "runs bulk-worker": "needs the database; a server works on its bulk actions by itself",
    "runs execute": "runs code; it needs the database",
}


def verbs() -> Iterator[str]:
    for cls in CLASSES:
        names = [*vars(cls), *inspect.get_annotations(cls)]
        for name in names:
            member = inspect.getattr_static(cls, name, None)
            is_namespace = isinstance(member, property) and (cls is Engine or name == "watermarks")
            if not name.startswith("_") and not is_namespace:
                yield f"{cls.__name__}.{name}"


def commands(group: CommandGroup, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, CommandGroup):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_every_verb_has_a_route_or_a_reason() -> None:
    known = {route.name for route in ROUTES}
    missing = [verb for verb in verbs() if verb not in VERBS and verb not in WITHOUT_ROUTE]
    assert missing == []
    assert [name for names in VERBS.values() for name in names if name not in known] == []


def test_every_command_has_a_route_or_a_reason() -> None:
    known = {route.name for route in ROUTES}
    missing = [one for one in commands(cli) if one not in COMMANDS and one not in LOCAL_COMMANDS]
    assert missing == []
    assert [name for name in COMMANDS.values() if name not in known] == []


def test_every_error_has_a_status() -> None:
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.UsageError | errors.StoreError | errors.Overloaded):
            assert any(one in KINDS for one in error.__mro__), name
    assert {kind.status for kind in KINDS.values() if kind.status >= 500} == {503}
    names = [(kind.name, kind.status) for kind in KINDS.values()]
    assert len({name for name, _ in names}) == len(set(names))


def test_every_operation_has_one_name_and_a_sentence() -> None:
    names = [route.name for route in ROUTES]
    assert len(names) == len(set(names))
    for route in ROUTES:
        assert re.fullmatch(r"[A-Z].*\.", route.summary), route.name


def test_no_fixed_part_of_a_path_hides_an_id() -> None:
    """Only a fixed part of another path can be taken for an id, so these are all ids that could be hidden."""
    router = Router()
    fixed = sorted({part for route in ROUTES for part in route.path.split("/")[1:] if not part.startswith("{")})
    for route in ROUTES:
        for ids in product(fixed, repeat=len(route.parameters)):
            given = dict(zip(route.parameters, ids, strict=True))
            found, parts = router.find(route.method, route.path.format(**given))
            assert (found.name, parts) == (route.name, given)


async def test_the_document_is_what_the_server_answers_by(local: Served) -> None:
    document = await local.viewer.get("/openapi.json")
    assert document == make_document()
    assert document["openapi"].startswith("3.1")
    assert {PREFIX + route.path for route in ROUTES} == set(document["paths"])
    for route in ROUTES:
        operation = document["paths"][PREFIX + route.path][route.method.lower()]
        statuses = {int(status) for status in operation["responses"]}
        assert statuses == {*route.statuses, *errors_of(route)}
    text = str(document)
    assert all(f"#/components/schemas/{name}" in text for name in document["components"]["schemas"])


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE"])
async def test_a_wrong_method_names_the_right_ones(local: Served, method: str) -> None:
    answer = await local.admin.call(method, "/runs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
