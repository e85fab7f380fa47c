"""Database URLs: spellings of other tools are accepted; misspelt ones are refused with the right one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.errors import StoreError, UsageError
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl, is_in_memory, parse
from tests.fuzz.hostile import Rude


def test_drivers_in_the_spelling_of_sqlalchemy_are_left_out() -> None:
    assert parse("sqlite+aiosqlite:///a.db") == parse("sqlite:///a.db") == SqliteUrl(path="a.db")
    for driver in ("asyncpg", "psycopg", "psycopg2", "psycopg_async"):
        there = parse(f"postgresql+{driver}://u:p@h/d?pool=3")
        assert isinstance(there, PostgresUrl)
        assert (there.dsn, there.pool) == ("postgresql://u:p@h/d", 3)
    there = parse("mysql+aiomysql://u:p@h/d")
    assert isinstance(there, MysqlUrl)
    assert there == parse("mariadb+pymysql://u:p@h/d")


def test_only_a_database_of_sqlite_without_a_path_is_in_memory() -> None:
    urls = ("sqlite://", "sqlite:///x.db", "postgresql://h/d")
    assert [is_in_memory(url) for url in urls] == [True, False, False]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:/x.db", "write sqlite:///x.db"),
        ("sqlite:x.db", "write sqlite:///x.db"),
        ("sqlite://x.db", "write sqlite:///x.db"),
        ("sqlite://folder/x.db", "write sqlite:///folder/x.db"),
        ("x.db", "for a file write sqlite:///x.db"),
        ("/var/x.db", "for a file write sqlite:////var/x.db"),
        ("", "use sqlite:///relative.db"),
        ("sqllite:///x.db", r"did you mean sqlite://\?"),
        ("postgress://h/d", r"did you mean postgresql://\?"),
        ("mongodb://h/d", "use sqlite:///relative.db"),
        ("postgresql://[::1/d", "cannot be read"),
        ("sqlite:///x%00.db", "a control character"),
        ("sqlite:///x.db#y", "write %23"),
        ("sqlite:///:memory:\ud800", "a lone surrogate"),
        ("postgresql://h\udcff/d", "a lone surrogate"),
        ("mysql://h/d\ud800", "a lone surrogate"),
    ],
)
def test_a_misspelt_url_is_refused_with_the_right_spelling(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse(url)


def test_a_file_whose_name_is_not_utf8_is_a_database(tmp_path: Path) -> None:
    assert parse("sqlite:///a\udcff.db") == SqliteUrl(path="a\udcff.db")
    assert isinstance(Engine(f"sqlite:///{tmp_path}/a\udcff.db"), Engine)


def test_a_file_that_is_a_link_to_itself_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")
    with pytest.raises(StoreError, match=r"loop\.db"):
        asyncio.run(Engine(f"sqlite:///{tmp_path}/loop.db").open())


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("url", [None, b"postgresql://me:hidden@h/d", 3, ["sqlite://"], Rude()])
def test_a_url_that_is_no_text_is_refused_and_not_shown(url: Any, token: str | None) -> None:
    with pytest.raises(UsageError, match="a database URL is text, not") as refused:
        Engine(url, token=token)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@db.example/shop?ssl=verify&ssl=off",
        "postgresql://me:secret@db.example/shop?sslmode=verify-full&sslmode=disable",
        "postgresql://me:secret@db.example/shop?schema=a&schema=b",
        "sqlite:///shop.db?synchronous=full&synchronous=off",
    ],
)
def test_an_option_that_is_there_twice_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="twice; leave one out") as refused:
        parse(url)
    assert "secret" not in str(refused.value)
