"""`sslmode` and `sslrootcert` of the URL decide whether a server has to prove its identity."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.errors import StoreRefused, UsageError
from perdure.host import Host
from perdure.store import open_store
from perdure.store.url import PostgresUrl, parse
from perdure.testing.conformance.harness import a_worker
from tests.descriptors import cancel_store_openings
from tests.servers.certificates import Authority
from tests.servers.postgres import Postgres
from tests.servers.private import Missing, skip_without

_ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Postgres]:
    try:
        server = Postgres(durable=False)
    except Missing as missing:
        skip_without("a server that can be set up is needed", missing)
    server.encrypt(*authority.issue("127.0.0.1"))
    server.create()
    yield server
    server.remove()


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    return authority.save(tmp_path)


async def test_the_right_certificate_is_accepted(server: Postgres, trusted: Path) -> None:
    for mode, encrypted in (("verify-full", True), ("verify-ca", True), ("require", True), ("disable", False)):
        root = f"&sslrootcert={trusted}" if "verify" in mode else ""
        store = open_store(f"{server.dsn}?sslmode={mode}{root}", Host())
        await store.open()
        assert await store.query(_ENCRYPTED) == [(encrypted,)]
        await store.close()


async def test_a_connection_for_notifications_is_verified_too(server: Postgres, trusted: Path) -> None:
    url = parse(f"{server.dsn}?notify=on&sslmode=verify-full&sslrootcert={trusted}")
    assert isinstance(url, PostgresUrl)
    assert url.listen is not None
    assert f"sslmode=verify-full&sslrootcert={str(trusted).replace('/', '%2F')}" in url.listen


async def test_a_certificate_of_an_unknown_authority_is_refused(server: Postgres, tmp_path: Path) -> None:
    other = Authority("another authority").save(tmp_path)
    for mode in ("verify-full", "verify-ca"):
        store = open_store(f"{server.dsn}?sslmode={mode}&sslrootcert={other}", Host())
        with pytest.raises(StoreRefused, match=r"certificate cannot be verified.*sslrootcert"):
            await store.open()
        await store.close()


async def test_a_certificate_for_another_host_is_refused_by_verify_full_alone(server: Postgres, trusted: Path) -> None:
    elsewhere = server.dsn.replace("127.0.0.1", "localhost")
    store = open_store(f"{elsewhere}?sslmode=verify-full&sslrootcert={trusted}", Host())
    with pytest.raises(StoreRefused, match="certificate cannot be verified"):
        await store.open()
    await store.close()
    store = open_store(f"{elsewhere}?sslmode=verify-ca&sslrootcert={trusted}", Host())
    await store.open()
    await store.close()


async def test_a_missing_authority_file_is_reported_when_the_store_is_made(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"sslrootcert.*gone\.pem"):
        open_store(f"{server.dsn}?sslmode=verify-full&sslrootcert={tmp_path}/gone.pem", Host())
    # The usual file is not there either.
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store(f"{server.dsn}?sslmode=verify-full", Host())
    with pytest.raises(StoreRefused, match=r"root\.crt"):
        await store.open()
    await store.close()


def test_only_a_server_on_another_machine_counts_as_unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    for url, unverified in (
        ("postgresql://me@db.example/shop", True),
        ("postgresql://me@db.example:5432/shop?sslmode=require", True),
        ("postgresql://me@localhost,db.example/shop", True),
        ("postgresql:///shop?host=db.example", True),
        ("postgresql://me@[2001:db8::1]:5432/shop", True),
        ("postgresql://me@db.example/shop?sslmode=verify-full", False),
        ("postgresql://me@db.example/shop?sslmode=verify-ca", False),
        ("postgresql://me@localhost:5433/shop", False),
        ("postgresql://me@127.0.0.1,localhost/shop", False),
        ("postgresql://me@[::1]:5432/shop", False),
        ("postgresql:///shop", False),
        ("postgresql:///shop?host=/run/postgresql", False),
    ):
        parsed = parse(url)
        assert isinstance(parsed, PostgresUrl)
        assert parsed.is_unverified == unverified, url
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    parsed = parse("postgresql://me@db.example/shop")
    assert isinstance(parsed, PostgresUrl)
    assert not parsed.is_unverified


async def test_a_worker_warns_once_of_a_server_that_is_not_verified(
    server: Postgres, trusted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.store.url.is_local", lambda host: False)
    for option, warnings in (("", 1), (f"?sslmode=verify-full&sslrootcert={trusted}", 0)):
        caplog.clear()
        store = open_store(f"{server.dsn}{option}", Host())
        await store.open()
        with caplog.at_level(logging.WARNING, "perdure.store"):
            await store.register(a_worker(f"w1{warnings}"))
            await store.register(a_worker(f"w2{warnings}"))
        await store.close()
        assert sum("sslmode=verify-full" in record.getMessage() for record in caplog.records) == warnings
        assert "postgres@" not in caplog.text


async def test_a_cancelled_opening_leaves_no_encrypted_connection(server: Postgres, trusted: Path) -> None:
    await cancel_store_openings(f"{server.dsn}?sslmode=verify-full&sslrootcert={trusted}")
