"""Drawn calls from outside: over HTTP, by an engine on a server, by the blocking facade and by the command line."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import click
import httpx
import msgspec

from perdure import Engine, blocking
from perdure.admin import Role
from perdure.cli.app import COMMANDS, cli, run
from perdure.errors import StoreError
from perdure.http import HttpApp
from perdure.http.routes import PREFIX, ROUTES, Route
from tests.fuzz.calls import (
    FRESH,
    Found,
    arguments_for,
    methods,
    namespaces,
    plausible,
    prepare,
    quiet,
    targets,
    timed,
    timed_async,
)
from tests.fuzz.hostile import Draw, act, anything, failing, flow
from tests.http.serving import served

_CODE = (flow, anything, act, failing)

#: Pieces of JSON that no encoder of Python writes.
_JSON = [
    b"1e999",
    b"1" + b"0" * 5000,
    b"-0",
    b'"\\ud800"',
    b'"\\u0000"',
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"a":1,"a":2}',
    b"nul",
    b"",
    b"\xff",
    b"NaN",
    b'"' + b"a" * 100_000 + b'"',
    b'"2026-01-01T00:00:00Z"',
    b'"9999-12-31T23:59:59-23:59"',
]


async def fuzz_remote(seed: int, count: int) -> Found:
    """Make `count` calls of engines on a server, their namespaces and handles. Server and client are one process."""
    found, draw = Found(), Draw(seed)
    with quiet():
        while found.calls < count:
            engine = Engine("sqlite://", _CODE)
            async with engine, served(engine, work=False) as site:
                await prepare(engine)
                async with Engine(site.url, _CODE, token=site.tokens[Role.ADMIN]) as remote:
                    known = await targets(remote)
                    for _ in range(min(FRESH, count - found.calls)):
                        name, method = draw.random.choice(known)
                        await timed_async(found, name, method, arguments_for(method, draw))
            gc.collect()
    return found


class _Answered(StoreError):
    """A request whose answer no client should get."""


async def fuzz_http(seed: int, count: int) -> Found:
    """Make `count` requests to the routes of the HTTP API."""
    found, draw = Found(), Draw(seed)
    with quiet():
        while found.calls < count:
            async with Engine("sqlite://", _CODE) as engine:
                await prepare(engine)
                await targets(engine)
                token = (await engine.tokens.create("root", Role.ADMIN)).token
                app = HttpApp(engine, rate=1e6, burst=10**6, longest_wait=0.01)
                headers = {"Authorization": f"Bearer {token}", "Host": "localhost"}
                transport = httpx.ASGITransport(app=app)
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://localhost", headers=headers
                ) as client:
                    for _ in range(min(FRESH, count - found.calls)):
                        route = draw.random.choice(ROUTES)
                        request = {"request": _request(route, draw)}
                        await timed_async(found, f"{route.method} {route.path}", _sender(client), request)
                await app.close()
            gc.collect()
    return found


def _sender(client: httpx.AsyncClient) -> Callable[..., Any]:
    async def send(request: dict[str, Any]) -> None:
        answer = await client.request(**request)
        if answer.status_code >= 500:
            raise _Answered(f"{answer.status_code} {answer.text[:200]}")

    return send


def _request(route: Route, draw: Draw) -> dict[str, Any]:
    query, body, _ = route.types()
    path = route.path
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", quote(_word(name, draw)[:2000].encode("utf-8", "replace"), safe="") or "x")
    url = f"{PREFIX}{path}"
    if query is not None:
        drawn = [(field.name, _word(field.name, draw)[:2000]) for field in _some(query, draw)]
        url += "?" + urlencode(drawn, errors="replace")
    request: dict[str, Any] = {"method": route.method, "url": url, "headers": {"Content-Type": "application/json"}}
    if draw.random.random() < 0.3:
        request["headers"]["Request-Id"] = _word("id", draw)[:200].encode("utf-8", "replace").hex()[:200]
    if body is not None:
        request["content"] = _body(body, draw)
    return request


def _some(kind: Any, draw: Draw) -> list[Any]:
    fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
    return [one for one in fields if one.required or draw.random.random() < 0.4]


def _body(kind: Any, draw: Draw) -> bytes:
    if draw.random.random() < 0.05:
        return draw.random.choice(_JSON)
    members = [msgspec.json.encode(one.encode_name) + b":" + _json(one.name, draw) for one in _some(kind, draw)]
    return b"{" + b",".join(members) + b"}"


def _json(name: str, draw: Draw) -> bytes:
    if draw.random.random() < 0.2:
        return draw.random.choice(_JSON)
    try:
        return msgspec.json.encode(_PLAIN[name] if name in _PLAIN and draw.random.random() < 0.6 else draw.any())
    except Exception:
        # Many drawn values have no JSON.
        return msgspec.json.encode(draw.random.choice([1, None, [], {}, {"a": 1}, "x", True, 2**63, 1.5]))


#: Plausible members of bodies.
_PLAIN: dict[str, Any] = {
    "type": "fuzz.any",
    "input": {"value": 1},
    "timing": {"cron": "@daily"},
    "where": {"status": ["failed"]},
    "run_ids": ["r1", "r2"],
    "runs": [{"type": "fuzz.any", "input": [1]}],
}


def _word(name: str, draw: Draw) -> str:
    known = plausible(name)
    if draw.random.random() < 0.5:
        value = draw.random.choice(known) if known else draw.number()
        if isinstance(value, str | int | float) and abs(len(str(value)) if isinstance(value, str) else value) < 2**64:
            return str(value)
    return draw.text()


def fuzz_blocking(seed: int, count: int) -> Found:
    """Make `count` calls of the blocking facade. Calls that wait, wait for a millisecond."""
    found, draw = Found(), Draw(seed)
    with quiet():
        while found.calls < count:
            with blocking.Engine("sqlite://", _CODE) as engine:
                engine.start(anything(1), id="r1", at="1d")
                runs = [engine.start(anything(1), id="r2")]
                parts: list[object] = [engine, *namespaces(engine), *runs]
                known = [pair for part in parts for pair in methods(part) if pair[0] not in _ENDLESS]
                for _ in range(min(FRESH, count - found.calls)):
                    name, method = draw.random.choice(known)
                    given = arguments_for(method, draw)
                    for waiting in {"timeout", "wait"} & inspect.signature(method).parameters.keys():
                        given[waiting] = 0.001
                    if "follow" in inspect.signature(method).parameters:
                        given["follow"] = False
                    timed(found, name, _finishing(method, given))
            gc.collect()
    return found


#: Methods of the facade that work until something ends, and a wait has no bound.
_ENDLESS = {"Runs.bulk", "AuditTrail.follow", "Engine.open", "Engine.close", "Engine.worker", "Runs.bulk_worker"}


def _finishing(method: Callable[..., Any], given: dict[str, Any]) -> Callable[[], None]:
    def call() -> None:
        answer = method(**given)
        if isinstance(answer, Iterator):
            for _ in answer:
                pass

    return call


#: Commands that go on until they are stopped, write into the working directory, or take long on purpose.
_LASTING = {"dev", "demo", "worker", "serve", "init", "stress", "completion", "wait", "lint", "mcp"}
_LASTING |= {"runs stream", "runs execute", "runs bulk", "sql"}
_LASTING_OPTIONS = {"--watch", "--follow", "--wait", "--debug", "--timeout", "--token-file", "--database-timeout"}


def fuzz_commands(seed: int, count: int, url: str) -> Found:
    """Make `count` calls of the command line, on a database file. The bound of time is for the Python API."""
    found, draw = Found(), Draw(seed)
    known = [(words, command) for words, command in _commands(cli, ()) if not _is_lasting(words)]
    with quiet():
        while found.calls < count:
            words, command = draw.random.choice(known)
            arguments = _arguments(words, command, draw, url)
            told = io.StringIO()
            error: BaseException | None = None
            with (
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")),
                contextlib.redirect_stderr(told),
            ):
                try:
                    run(arguments)
                except BaseException as raised:
                    error = raised
            found.calls += 1
            name = f"perdure {' '.join(words)}"
            if "--debug shows the traceback" in told.getvalue():
                found.note(name, "an error that is not documented", f"{told.getvalue()[-300:]} given {arguments!r}")
            found.judge(name, error, arguments)
    return found


def _is_lasting(words: tuple[str, ...]) -> bool:
    return words[0] in _LASTING or " ".join(words) in _LASTING


def _commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command, info_name="perdure")
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and (words or name in {one for part in COMMANDS.values() for one in part}):
            yield from _commands(found, (*words, name))


def _arguments(words: tuple[str, ...], command: click.Command, draw: Draw, url: str) -> list[str]:
    arguments = list(words)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            arguments.append(url if parameter.nargs == -1 else _argument(parameter.name or "", draw))
            if parameter.name == "names" and draw.random.random() < 0.8:
                arguments.append(_argument("id", draw))
        elif isinstance(parameter, click.Option) and _is_drawn(parameter, draw):
            arguments += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], _choice(parameter, draw)]
    return arguments


def _is_drawn(option: click.Option, draw: Draw) -> bool:
    return not _LASTING_OPTIONS & {*option.opts} and (option.required or draw.random.random() < 0.25)


def _choice(option: click.Option, draw: Draw) -> str:
    if isinstance(option.type, click.Choice) and draw.random.random() < 0.8:
        return str(draw.random.choice([*option.type.choices]))
    return _argument(option.name or "", draw)


def _argument(name: str, draw: Draw) -> str:
    """A word as the system hands it to a program: without NUL, of limited length, with bytes that are not UTF-8."""
    known = {"run": "r1", "type": "fuzz.any", "type_": "fuzz.any", "value": "1", "attribute": "a=1"}
    word = known[name] if name in known and draw.random.random() < 0.6 else _word(name, draw)
    made = word.replace("\0", "")[:20_000].encode("utf-8", "replace")
    return (made + b"\xff" if draw.random.random() < 0.05 else made).decode("utf-8", "surrogateescape")
