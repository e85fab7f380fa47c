"""Passwords of URLs: in no error, no log line, no repr and no output, whatever is wrong with the URL."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perdure import Engine, StoreUnavailable, UsageError
from perdure.cli.app import run
from perdure.errors import StoreRefused
from perdure.push import RedisQueue
from perdure.store.url import connecting, is_in_memory, masked, parse, secrets_of, shown
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

WHOLE = bool(os.environ.get("PERDURE_PROVE"))

#: The password is these with a character between them, so that a parser may take them apart.
FIRST, SECOND = "s3cretQQ", "t0pZZ"
SECRET = f"{FIRST}/{SECOND}"

SCHEMES = [
    "postgresql", "postgres", "mysql", "mariadb", "sqlite", "postgre", "POSTGRESQL", "postgresql+asyncpg",
    "mysql+pymysql", "redis", "jdbc:postgresql", "",
]  # fmt: skip
FORMS = [
    "{scheme}://joe:{password}@{host}{port}{path}{query}", "{scheme}://:{password}@{host}{port}{path}{query}",
    "{scheme}://joe:{password}", "{scheme}://joe:{password}@", "{scheme}://joe:{password}{path}{query}",
    "{scheme}:joe:{password}@{host}{path}", "{scheme}:/joe:{password}@{host}{path}",
    "joe:{password}@{host}{path}{query}",
    "{scheme}://{host}{port}{path}?user=joe&password={password}&pool=x{fragment}",
    "{scheme}://{host}{path}?pass%77ord={password}", "{scheme}://joe:x@{host}{path}?sslpassword={password}",
    "{scheme}://joe:{password}@{host}{port}{path}{query}{fragment}", " {scheme}://joe:{password}@{host}{path} ",
]  # fmt: skip

BETWEEN = [*"/?#@&=:;%[],+ \\'\"\n\t\x00\u2100", "%2F", "%zz", "://", "@@", "[::1]", ""]
QUERIES = ["", "?pool=x", "?x=1", "?schema=a;b", "?audit=no", "?prefix=A", "?listen=h,", "?%zz", "?ssl=7"]


@st.composite
def urls(draw: st.DrawFn) -> str:
    form, between, encoded = draw(st.sampled_from(FORMS)), draw(st.sampled_from(BETWEEN)), draw(st.booleans())
    # What follows an @ is a host if there is no other.
    assume("@" not in between or encoded or "@{host}" in form or "password=" in form)
    password = FIRST + between + SECOND
    parts = {
        "scheme": SCHEMES,
        "host": ["h", "", "[::1]", "[::1", "h1,h2:3", "h\u2100", "127.0.0.1", "a b", "%41"],
        "port": ["", ":5432", ":99999", ":x", ":-1", ":", ":1:2"],
        "path": ["/db", "", "/", "/a/b", "//db", "/%00"],
        "query": QUERIES,
        "fragment": ["", "#", "#f"],
    }
    drawn = {name: draw(st.sampled_from(choices)) for name, choices in parts.items()}
    # The name of a file.
    assume(drawn["scheme"] != "sqlite" or "{scheme}://" in form)
    return form.format(password=quote(password, safe="") if encoded else password, **drawn)


def tells(text: str) -> bool:
    """Whether a text has a part of the password."""
    return FIRST in text or SECOND in text


def attempt(act: Callable[[str], object], url: str) -> str:
    """Everything that a call shows: what it returns or raises, in every form."""
    try:
        result = act(url)
    except UsageError as error:
        return f"{error} {error!r} {''.join(traceback.format_exception(error))} {error.__context__!r}"
    return f"{result} {result!r}"


@given(urls())
@settings(max_examples=20_000 if WHOLE else 400, deadline=None)
def test_no_error_about_a_url_tells_its_password(url: str) -> None:
    for act in (shown, parse, is_in_memory, Engine):
        assert not tells(attempt(act, url)), act


@given(urls())
@settings(max_examples=2_000 if WHOLE else 100, deadline=None)
def test_no_error_about_the_url_of_a_redis_server_tells_its_password(url: str) -> None:
    pytest.importorskip("redis")
    assert not tells(attempt(RedisQueue.at, url))


@given(urls())
@settings(max_examples=2_000 if WHOLE else 60, deadline=None)
def test_no_output_of_the_command_line_tells_the_password(url: str) -> None:
    # Malformed or not understood, so that no server is asked.
    for arguments in ([url], ["show", "sqlite:///nowhere.db", "r1", url], ["show", url], ["runs", f"--store={url}"]):
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            assert run(arguments)
        assert not tells(output.getvalue()), (arguments, output.getvalue())


@contextmanager
def everything_logged() -> Iterator[io.StringIO]:
    """All log records of the process, with their tracebacks."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def with_password(url: str, password: str) -> str:
    """The URL of a test's database, for a user that the server does not know."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"joe:{quote(password, safe='')}@{host}").geturl()


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
@pytest.mark.parametrize("password", [FIRST, SECRET, f"{FIRST}\u20ac\xfc", f"{FIRST}@:{SECOND}"])
async def test_a_server_that_refuses_a_password_does_not_repeat_it(
    kind: str, password: str, schemas: Schemas, databases: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (schemas if kind == "postgres" else databases).one() as real:
        url = with_password(real, password)
        with everything_logged() as log:
            with pytest.raises(StoreUnavailable) as refused:
                async with Engine(url, database_timeout=0.1):
                    pass
            told = "".join(traceback.format_exception(refused.value)) + repr(refused.value)
            assert not tells(told), told
            assert await asyncio.to_thread(run, ["runs", url, "--database-timeout", "100ms"]) == 1
            assert await asyncio.to_thread(run, ["runs", url, "--database-timeout", "100ms", "--debug"]) == 1
        assert not tells(log.getvalue())
        said = capsys.readouterr()
        assert "perdure: " in said.err
        assert not tells(said.out + said.err)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
async def test_a_server_that_is_not_there_leads_to_no_password(scheme: str) -> None:
    url = f"{scheme}://joe:{quote(SECRET, safe='')}@127.0.0.1:1/db"
    with everything_logged() as log, pytest.raises(StoreUnavailable) as refused:
        async with Engine(url, database_timeout=0.1):
            pass
    assert not tells("".join(traceback.format_exception(refused.value)) + log.getvalue())


async def test_an_error_of_a_driver_that_tells_the_password_does_so_no_longer() -> None:
    url = "postgresql://joe:s3cretQQ@h/db"

    async def fail(error: Exception) -> None:
        raise error

    for error, raised in {
        ValueError(f"invalid DSN: {url}"): ValueError,
        OSError(111, f"{FIRST} did not answer"): OSError,
        UnicodeEncodeError("ascii", FIRST, 0, 1, "no"): StoreRefused,
        ExceptionGroup("several", [OSError(FIRST)]): ExceptionGroup,
        _caused(LookupError(FIRST)): OSError,
    }.items():
        with pytest.raises(raised) as refused:
            await connecting(fail(error), "the database", lambda: secrets_of(url))
        assert not tells("".join(traceback.format_exception(refused.value)) + repr(refused.value.__context__))
    kept = OSError("no route to host")
    with pytest.raises(OSError, match="no route") as same:
        await connecting(fail(kept), "the database", lambda: secrets_of(url))
    assert same.value is kept


def _caused(cause: Exception) -> Exception:
    error = OSError("it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://me:s3/cret@host/shop", "postgresql://***"),
        ("mysql://me:s3cret/shop", "mysql://***"),
        ("mysql://me:s3cret", "mysql://***"),
        ("mysql://host/shop?password=a&b=c&pool=3", "mysql://host/shop?password=***&***&pool=3"),
        (
            "postgresql://one,two:5432/shop?target_session_attrs=any",
            "postgresql://one,two:5432/shop?target_session_attrs=any",
        ),
        ("postgresql://me@[::1]:5432/shop", "postgresql://me@[::1]:5432/shop"),
        ("sqlite:////home/me@host/a:b.db", "sqlite:////home/me@host/a:b.db"),
        ("C:\\shop.db", "C:\\shop.db"),
        ("shop.db", "shop.db"),
        ("me:s3cret@host/shop", "me:***"),
    ],
)
def test_a_url_is_shown_as_far_as_its_parts_are_certain(url: str, seen: str) -> None:
    assert shown(url) == seen


def test_a_password_that_is_the_name_of_the_user_hides_nothing_else() -> None:
    assert masked("user 'shop' is not known", secrets_of("mysql://shop:shop@host/shop")) == "user 'shop' is not known"


@pytest.mark.parametrize("value", [parse("postgresql://me:s3cretQQ@h/db?notify=on"), parse("mysql://me:s3cretQQ@h/db")])
def test_a_parsed_url_does_not_show_its_password(value: Any) -> None:
    assert not tells(repr(value) + str(value) + f"{value}" + str(list(value.__rich_repr__())))
    assert "h" in repr(value)
