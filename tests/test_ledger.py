"""The table of features has a row for every line, and names only tests, code, commands, routes and files that exist."""

from __future__ import annotations

import ast
import asyncio
import enum
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import admin, errors, machine, middleware, outbox, push, testing
from perdure.cli.app import cli
from perdure.http.routes import ROUTES
from perdure.push.message import _FOREIGN
from perdure.store.contract import Store
from perdure.store.plain_sql.statements import NAMES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if re.match(r"\| \d{3}-", line)]
MIGRATIONS = "\n".join(
    re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
    for file in (ROOT / "src/perdure/store/migrations/sqlite").glob("*.sql")
)
EVENTS = re.findall(r"^\| `(\w+)`", (ROOT / "docs/guides/audit.md").read_text(encoding="utf-8"), flags=re.MULTILINE)

#: The objects that stand for the variables of an example.
VARIABLES: dict[str, Any] = {
    "engine": perdure.Engine,
    "handle": perdure.Handle,
    "ctx": perdure.Context,
    "call": perdure.Call,
    "lock": perdure.Lock,
    "self": machine.StateMachine,
    "asyncio": asyncio,
    "perdure": perdure,
    "Store": Store,
    "TaskGroup": asyncio.TaskGroup,
}
MODULES = (perdure, admin, errors, machine, middleware, outbox, push, testing)
PUBLIC: dict[str, Any] = {name: getattr(module, name) for module in MODULES for name in dir(module) if name[0] != "_"}
#: Locations, types, patterns and words of SQL, Python and HTTP, which are no names of Perdure's.
SAMPLES = {
    *("charge#2", "fan/a/charge#2", "pages/~17/fetch", "notify.email.v1", ".v1", ".v2", "%", "None", "Retry-After"),
    *("SKIP LOCKED", "FOR NO KEY UPDATE SKIP LOCKED", "async with", "except"),
    *("sqlite://", "mysql://", "postgresql://…?schema=", "?schema=", "?prefix="),
}


def numbered(prefix: str, last: int) -> list[str]:
    return [f"{prefix}{number}" if "G" in prefix else f"{prefix}{number:02}" for number in range(1, last + 1)]


def test_every_line_has_its_row() -> None:
    wanted = [
        *(*numbered("000-", 56), *numbered("000-G", 10)),
        *(*numbered("001-", 57), *numbered("001-G", 17)),
        *(*numbered("002-", 40), *numbered("002-G", 9)),
        *(*numbered("003-", 55), *numbered("003-G", 10)),
        *(*numbered("004-", 26), *numbered("004-G", 18)),
    ]
    assert [row[0] for row in ROWS] == wanted
    assert {len(row) for row in ROWS} == {4}


def test_every_test_that_is_named_exists() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "perdure" / "testing" / "conformance").rglob("*.py")]
    known = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    named = {name for row in ROWS for name in re.findall(r"`(test_\w+)`", row[3])}
    assert named - known == set()


def test_only_a_feature_that_does_not_exist_has_no_test() -> None:
    without = [row for row in ROWS if "`test_" not in row[3]]
    assert {row[3] for row in without} == {"none"}
    assert [row[0] for row in without if "not built yet" not in row[2] and "not planned" not in row[2]] == []


def test_no_row_says_later() -> None:
    assert [row[0] for row in ROWS if re.search(r"\b(comes? later|or later|come soon)\b", row[2])] == []


def quoted() -> Iterator[Any]:
    for row in ROWS:
        for text in re.findall(r"`([^`]+)`", row[2]):
            if text not in SAMPLES:
                yield pytest.param(text, id=f"{row[0]}: {text}")


@pytest.mark.parametrize("text", list(quoted()))
def test_what_a_row_names_exists(text: str) -> None:
    program, _, rest = text.partition(" ")
    if program == "perdure":
        check_command(rest)
    elif program == "make":
        assert f"\n{rest}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif program in ("GET", "POST"):
        assert (program, rest) in {(route.method, route.path) for route in ROUTES}
    elif "/" in text:
        assert (ROOT / text).exists()
    elif text == "perdure.execution":
        assert f'"{text}"' in (ROOT / "src/perdure/worker/commit/attempt_log.py").read_text(encoding="utf-8")
    elif re.fullmatch(r"[a-z_]+=.*", text):
        assert text.partition("=")[0] in words()
    elif re.fullmatch(r"[a-z][A-Za-z_]+", text) and text not in PUBLIC:
        assert text in words()
    else:
        check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        *("Retry.quadratic()", "engine.prune", "Answer.ack", "Handle.fork(step=...)", "@step(exactly_once=True)"),
        *("perdure runs history", "perdure worker --type", "make coffee", "GET /metrics", "examples/none.py"),
        *("colour=", "changed_on", "handle.report().colour", "Breaker(failure)", "class A(StateMachine, kind=...)"),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(text: str) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        test_what_a_row_names_exists(text)


def check_command(rest: str) -> None:
    names, options = (
        [word for word in rest.split() if word[0] != "-"],
        [word for word in rest.split() if word[0] == "-"],
    )
    found: Any = cli
    for name in names:
        found = found.get_command(None, name)
        assert found is not None, name
    assert set(options) <= {option for parameter in found.params for option in parameter.opts}


def check_expression(text: str) -> None:
    """Resolve every name of an expression, and every option of its calls."""
    if text.startswith("class "):
        [made] = ast.parse(f"{text}: ...").body
        assert isinstance(made, ast.ClassDef)
        assert {keyword.arg for keyword in made.keywords} <= options_of(resolve(made.bases[0]))
        return
    plain = re.sub(r"(\w+)=(?=[,)])", r"\1=...", text.removeprefix("@").removeprefix("await ").replace(", ...)", ")"))
    resolve(ast.parse(plain, mode="eval").body)


def resolve(node: ast.expr) -> Any:
    match node:
        case ast.Name(name):
            return VARIABLES[name] if name in VARIABLES else PUBLIC[name]
        case ast.Attribute(value, name):
            holder = resolve(value)
            return member(holder, name)
        case ast.Subscript(value):
            return resolve(value)
        case ast.Call(function, arguments, keywords):
            found = resolve(function)
            known = options_of(found)
            assert {keyword.arg for keyword in keywords} <= known, ast.unparse(node)
            assert len(arguments) <= len(known), ast.unparse(node)
            # A class lists its options by name.
            assert not inspect.isclass(found) or {one.id for one in arguments if isinstance(one, ast.Name)} <= known
            return answer_of(found)
        case _:
            raise AssertionError(ast.unparse(node))


def member(holder: Any, name: str) -> Any:
    """An attribute of a class or module; of a property, what it returns."""
    if isinstance(holder, types.ModuleType):
        return getattr(holder, name, None) or importlib.import_module(f"{holder.__name__}.{name}")
    found = inspect.getattr_static(holder, name, None)
    if found is None:
        return plain_type(typing.get_type_hints(holder)[name])
    if isinstance(found, property):
        assert found.fget is not None
        return plain_type(typing.get_type_hints(found.fget)["return"])
    return plain_type(hints[name]) if name in (hints := hints_of(holder)) else getattr(holder, name)


def hints_of(holder: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(holder)
    except (NameError, TypeError):
        return {}


def plain_type(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def answer_of(found: Any) -> Any:
    if inspect.isclass(found):
        return found
    hint = hints_of(found).get("return")
    return None if hint is None else plain_type(hint)


def options_of(found: Any) -> set[str]:
    """Names of the parameters of a callable, those of an unpacked TypedDict included."""
    callables: list[Any] = [found, found.__init__, found.__init_subclass__] if inspect.isclass(found) else [found]
    names: set[str] = set()
    for one in callables:
        try:
            parameters = inspect.signature(one).parameters
        except ValueError:  # a method of a class written in C
            continue
        names |= parameters.keys()
        for name, parameter in parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                hint = typing.get_type_hints(one, include_extras=True).get(name)
                names |= set().union(*(getattr(each, "__annotations__", {}) for each in typing.get_args(hint)))
    return names


@cache
def words() -> set[str]:
    """Names of attributes, parameters, columns, statements, statuses and kinds of events."""
    known = {*NAMES, *EVENTS, *_FOREIGN, *re.findall(r"\w+", MIGRATIONS)}
    for value in PUBLIC.values():
        if inspect.isclass(value):
            known |= {name for name in dir(value) if name[0] != "_"} | set(hints_of(value))
            members = [getattr(value, name) for name in dir(value) if name[0] != "_"]
            known |= {one.value for one in members if isinstance(one, enum.Enum)}
        else:
            members = []
        for one in (value, *members):
            if callable(one):
                try:
                    known |= options_of(one)
                except (TypeError, ValueError, NameError):
                    continue
    return known
