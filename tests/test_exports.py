"""The public modules are what the reference documents, no more and no less, and all of it says what it is."""

from __future__ import annotations

import enum
import inspect
import re
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
import perdure.admin
import perdure.blocking
import perdure.errors
import perdure.http
import perdure.logs
import perdure.machine
import perdure.metrics
import perdure.middleware
import perdure.outbox
import perdure.push
import perdure.tracing
from perdure.client import blocking
from perdure.client.facade import Facade
from perdure.workflow import blocking as workflow_blocking
from tests.typing.blocking_stub import (
    CLASSES,
    HIDDEN,
    STUB,
    WORKFLOW_CLASSES,
    WORKFLOW_STUB,
    stub,
    workflow_stub,
)

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
CHAPTERS = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
ERRORS = {
    name: one
    for name, one in vars(perdure.errors).items()
    if inspect.isclass(one) and one.__module__ == "perdure.errors" and not name.startswith("_")
}
MODULES = {"perdure": perdure, "perdure.admin": perdure.admin, "perdure.machine": perdure.machine}
MODULES["perdure.push"] = perdure.push
MODULES["perdure.http"] = perdure.http
MODULES["perdure.outbox"] = perdure.outbox
MODULES["perdure.metrics"] = perdure.metrics
MODULES["perdure.middleware"] = perdure.middleware
MODULES["perdure.tracing"] = perdure.tracing
MODULES["perdure.logs"] = perdure.logs
PUBLIC: dict[str, Any] = ERRORS | {
    name: getattr(module, name) for module in MODULES.values() for name in module.__all__
}
CLASSES_OF_USERS = [name for name, value in PUBLIC.items() if inspect.isclass(value)]
TABLES = [name for name, text in SECTIONS.items() if re.search(r"^\| `", text, flags=re.MULTILINE)]


def test_the_main_namespace_is_small() -> None:
    assert len(perdure.__all__) <= 65
    assert len([name for name in dir(perdure.Engine("sqlite://")) if not name.startswith("_")]) <= 24


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_what_the_reference_documents(module: str) -> None:
    documented = set(re.findall(r"^### `(\w+)`", CHAPTERS[module], flags=re.MULTILINE))
    assert documented == set(MODULES[module].__all__) - ERRORS.keys()


def test_every_error_is_documented() -> None:
    assert set(re.findall(r"^### `(\w+)`", CHAPTERS["perdure.errors"], flags=re.MULTILINE)) == ERRORS.keys()


@pytest.mark.parametrize("module", [*MODULES.values(), perdure.blocking], ids=lambda module: module.__name__)
def test_a_module_has_nothing_besides(module: types.ModuleType) -> None:
    names = {name for name, one in vars(module).items() if not name.startswith("_") and not inspect.ismodule(one)}
    # What a package that loads its names late needs for that.
    assert set(module.__all__) == names - {"TYPE_CHECKING", "annotations"}


def test_no_name_is_in_two_modules() -> None:
    names = [name for module in MODULES.values() for name in module.__all__]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_a_class_has_its_public_members(name: str) -> None:
    documented = set(re.findall(r"^\| `(\w+)", SECTIONS[name], flags=re.MULTILINE))
    assert documented == set(_members(PUBLIC[name]))


@pytest.mark.parametrize("name", [name for name in CLASSES_OF_USERS if issubclass(PUBLIC[name], msgspec.Struct)])
def test_every_field_of_a_value_is_documented(name: str) -> None:
    fields = [field for field in PUBLIC[name].__struct_fields__ if not field.startswith("_")]
    missing = [field for field in fields if not re.search(rf"\b{field}\b", SECTIONS[name])]
    assert missing == []


@pytest.mark.parametrize("name", [name for name in CLASSES_OF_USERS if issubclass(PUBLIC[name], enum.Enum)])
def test_every_value_of_an_enumeration_is_documented(name: str) -> None:
    assert set(re.findall(r"`(\w+)`", SECTIONS[name])) == {str(member) for member in PUBLIC[name]}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "Duration"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = PUBLIC[name]
    assert inspect.getdoc(value)
    if inspect.isclass(value) and value.__module__.startswith("perdure"):
        assert "__doc__" in vars(value)
        silent = [member for member in _members(value) if _is_silent(inspect.getattr_static(value, member, None))]
        assert silent == []


# the blocking client


def test_every_class_of_the_client_has_a_blocking_view() -> None:
    views = {name for names in CLASSES.values() for name in names}
    assert set(perdure.blocking.__all__) == views | set(WORKFLOW_CLASSES.values())
    assert all(f"`{name}`" in CHAPTERS["perdure.blocking"] for name in perdure.blocking.__all__)
    assert all(issubclass(vars(perdure.blocking)[name], Facade) for name in views)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in CLASSES.items() for name in names], ids=str
)
def test_a_blocking_view_has_the_members_and_signatures_of_its_class(module: str, name: str) -> None:
    target = vars(__import__(f"perdure.client.{module}", fromlist=[name]))[name]
    view = vars(blocking)[name]
    fields = {field for field in inspect.get_annotations(target) if not field.startswith("_")}
    wanted = {member for member in _members(target) if member not in HIDDEN.get(name, ())} | fields
    assert {member for member in dir(view) if not member.startswith("_")} == wanted
    for member in wanted - fields:
        ours, theirs = inspect.getattr_static(target, member), inspect.getattr_static(view, member)
        assert isinstance(ours, property) == isinstance(theirs, property)
        if isinstance(ours, property):
            assert (ours.__doc__, ours.fset is None) == (theirs.__doc__, theirs.fset is None)
        else:
            assert list(inspect.signature(ours).parameters.values()) == list(
                inspect.signature(theirs).parameters.values()
            )


def test_the_types_of_the_blocking_client_are_current() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "run python -m tests.typing.blocking_stub"


# blocking workflow code

#: Members of a blocking context that an async workflow has from asyncio.
OF_ASYNCIO = {"gather", "timeout", "wait", "enter"}
#: Members that take functions where the async context takes awaitables.
CONVERTED = {"branch", "join", "race", "map", "loop", "outcome", "shield"}
#: Annotations of parameters that are awaited, or called with the context.
AWAITED = re.compile(r"Awaitable|Coroutine|Operation|Branch|Body|\bContext\b")


@pytest.mark.parametrize(("module", "name"), WORKFLOW_CLASSES.items(), ids=str)
def test_blocking_workflow_code_has_the_members_and_signatures_of_async_code(module: str, name: str) -> None:
    target = vars(__import__(f"perdure.workflow.{module}", fromlist=[name]))[name]
    view = vars(workflow_blocking)[name]
    wanted = {member for member in dir(target) if not member.startswith("_")}
    own = {member for member in dir(view) if not member.startswith("_")} - wanted
    assert own == (OF_ASYNCIO if name == "Context" else set())
    for member in wanted:
        ours, theirs = inspect.getattr_static(target, member), inspect.getattr_static(view, member)
        assert isinstance(ours, property) == isinstance(theirs, property)
        if isinstance(ours, property):
            assert ours.__doc__ == theirs.__doc__
            continue
        given, taken = inspect.signature(ours).parameters.values(), inspect.signature(theirs).parameters.values()
        assert [(one.kind, one.default) for one in given] == [(one.kind, one.default) for one in taken]
        if member not in CONVERTED:
            assert [one.name for one in given] == [one.name for one in taken]


def test_no_member_passes_on_what_blocking_code_cannot_give() -> None:
    """A new member that takes awaitables, or functions of the context, has to be defined by the view."""
    steps = {"step", "transaction", "undo", "options"}
    found = {
        name
        for name, member in vars(perdure.Context).items()
        if inspect.isfunction(member) and not name.startswith("_") and name not in steps
        for one in list(inspect.signature(member).parameters.values())[1:]
        if AWAITED.search(str(one.annotation))
    }
    # A function of `map` is a step, or takes the context; `join` takes any object with branches.
    assert found | {"map", "join"} == CONVERTED
    assert vars(workflow_blocking.Context.__base__).keys() >= CONVERTED


def test_what_async_workflow_code_gets_has_a_blocking_view() -> None:
    """An object that has something to await, and that a member returns, would be of no use in blocking code."""
    views = set(WORKFLOW_CLASSES.values())
    for module, name in WORKFLOW_CLASSES.items():
        target = vars(__import__(f"perdure.workflow.{module}", fromlist=[name]))[name]
        for member in vars(target).values():
            returned = str(getattr(member, "__annotations__", {}).get("return", "")).partition("[")[0]
            known = vars(perdure).get(returned) or vars(perdure.admin).get(returned)
            if inspect.isclass(known) and known.__module__.startswith("perdure") and _is_awaited(known):
                assert returned in views, f"{name} returns {returned}, which {WORKFLOW_STUB.name} lacks"


def _is_awaited(cls: type) -> bool:
    special = {"__await__", "__aenter__", "__aiter__"}
    return bool(special & set(dir(cls))) or any(
        inspect.iscoroutinefunction(one) or "Operation" in str(getattr(one, "__annotations__", {}).get("return", ""))
        for one in vars(cls).values()
    )


def test_the_types_of_blocking_workflow_code_are_current() -> None:
    assert WORKFLOW_STUB.read_text(encoding="utf-8") == workflow_stub(), "run python -m tests.typing.blocking_stub"


def _members(cls: type) -> list[str]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("perdure")]
    names = {name: None for base in ours for name in vars(base)}
    return [name for name in names if not name.startswith("_") and _is_member(cls, name)]


def _is_member(cls: type, name: str) -> bool:
    if issubclass(cls, msgspec.Struct):
        return name not in cls.__struct_fields__
    return name not in getattr(cls, "__dataclass_fields__", {})


def _is_silent(member: object) -> bool:
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    return isinstance(member, types.FunctionType | property) and not member.__doc__
