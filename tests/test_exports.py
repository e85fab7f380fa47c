"""The public namespace is what the reference documents, no more and no less, and all of it says what it is."""

from __future__ import annotations

import enum
import inspect
import re
import types
from pathlib import Path

import msgspec
import pytest

import perdure

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
PUBLIC = sorted(
    name for name in vars(perdure) if not name.startswith("_") and not inspect.ismodule(vars(perdure)[name])
)
CLASSES = [name for name in PUBLIC if inspect.isclass(vars(perdure)[name])]
TABLES = [name for name, text in SECTIONS.items() if re.search(r"^\| `", text, flags=re.MULTILINE)]


def test_the_namespace_is_what_the_reference_documents() -> None:
    assert sorted(SECTIONS) == sorted(perdure.__all__)


def test_the_namespace_has_nothing_besides() -> None:
    assert sorted(perdure.__all__) == PUBLIC


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_a_class_has_its_public_members(name: str) -> None:
    documented = set(re.findall(r"^\| `(\w+)", SECTIONS[name], flags=re.MULTILINE))
    assert documented == set(_members(vars(perdure)[name]))


@pytest.mark.parametrize("name", [name for name in CLASSES if issubclass(vars(perdure)[name], msgspec.Struct)])
def test_every_field_of_a_value_is_documented(name: str) -> None:
    fields = [field for field in vars(perdure)[name].__struct_fields__ if not field.startswith("_")]
    missing = [field for field in fields if not re.search(rf"\b{field}\b", SECTIONS[name])]
    assert missing == []


@pytest.mark.parametrize("name", [name for name in CLASSES if issubclass(vars(perdure)[name], enum.Enum)])
def test_every_value_of_an_enumeration_is_documented(name: str) -> None:
    assert set(re.findall(r"`(\w+)`", SECTIONS[name])) == {str(member) for member in vars(perdure)[name]}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "Duration"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = vars(perdure)[name]
    assert inspect.getdoc(value)
    if inspect.isclass(value) and value.__module__.startswith("perdure"):
        assert "__doc__" in vars(value)
        silent = [member for member in _members(value) if _is_silent(inspect.getattr_static(value, member, None))]
        assert silent == []


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
