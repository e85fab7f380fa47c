"""Database URLs: spellings of other tools are accepted; misspelt ones are refused with the right one."""

from __future__ import annotations

import pytest

from perdure.errors import UsageError
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl, is_in_memory, parse


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
    ],
)
def test_a_misspelt_url_is_refused_with_the_right_spelling(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse(url)


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
