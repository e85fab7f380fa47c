"""Encryption, and the proof of a server's identity without which it does not learn the password."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from perdure.errors import StoreRefused, StoreUnavailable, UsageError
from perdure.host import Host
from perdure.store import open_store
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import a_record, commit, held
from tests.descriptors import cancel_store_openings
from tests.helpers import eventually
from tests.servers.certificates import Authority, server_context
from tests.servers.databases import execute
from tests.servers.mariadb import Mariadb
from tests.servers.private import Missing, skip_without

_TLS = 0x800


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Mariadb]:
    try:
        server = Mariadb(durable=False)
    except Missing as missing:
        skip_without("a server that can be set up is needed", missing)
    server.encrypt(*authority.issue("127.0.0.1"))
    server.create()
    yield server
    server.remove()


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    return authority.save(tmp_path)


async def test_a_connection_is_encrypted_as_the_url_asks(server: Mariadb, trusted: Path) -> None:
    for number, (option, encrypted) in enumerate(
        (
            ("", False),
            ("?ssl=prefer", True),
            ("?ssl=require", True),
            ("?ssl=required", True),
            ("?ssl=off", False),
            (f"?ssl=verify&ssl_ca={trusted}", True),
            (f"?ssl_ca={trusted}", True),
        )
    ):
        store = open_store(f"{server.dsn}{option}", Host())
        await store.open()
        [(_, cipher)] = await store.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        assert bool(cipher) == encrypted, option
        lease = await held(store, f"run {number}")
        await commit(store, lease, a_record(0, payload='"' + "x" * 200_000 + '"'))
        assert len(await store.history(lease.run_id)) == 1
        await store.close()


async def test_a_certificate_of_an_unknown_authority_is_refused(server: Mariadb, tmp_path: Path) -> None:
    other = Authority("another authority").save(tmp_path)
    for option in ("ssl=verify", f"ssl=verify&ssl_ca={other}"):
        store = open_store(f"{server.dsn}?{option}", Host())
        with pytest.raises(StoreRefused, match=r"certificate cannot be verified.*ssl_ca"):
            await store.open()
        await store.close()


async def test_a_certificate_for_another_host_is_refused(server: Mariadb, trusted: Path) -> None:
    store = open_store(f"{server.dsn.replace('127.0.0.1', 'localhost')}?ssl=verify&ssl_ca={trusted}", Host())
    with pytest.raises(StoreRefused, match="certificate cannot be verified"):
        await store.open()
    await store.close()


async def test_a_lost_authority_file_is_reported_when_the_store_is_made(server: Mariadb, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ssl_ca"):
        open_store(f"{server.dsn}?ssl_ca={tmp_path}/gone.pem", Host())


async def test_a_user_with_a_tls_requirement_gets_in_through_verified_tls(server: Mariadb, trusted: Path) -> None:
    await execute(
        server.dsn,
        [
            "CREATE OR REPLACE USER strict@'127.0.0.1' IDENTIFIED BY 'secret' REQUIRE SSL",
            "GRANT ALL ON perdure.* TO strict@'127.0.0.1'",
        ],
    )
    url = server.dsn.replace("perdure:perdure@", "strict:secret@")
    with pytest.raises(StoreRefused):
        await open_store(url, Host()).open()
    store = open_store(f"{url}?ssl_ca={trusted}", Host())
    await store.open()
    await store.close()


def url_of(url: str) -> MysqlUrl:
    parsed = parse(url)
    assert isinstance(parsed, MysqlUrl)
    return parsed


def test_another_machine_is_verified_unless_the_url_says_otherwise() -> None:
    for url, wanted in (
        ("mysql://me@db.example/shop", "verify"),
        ("mysql://me@10.0.0.7/shop", "verify"),
        ("mysql://me@[2001:db8::1]/shop", "verify"),
        ("mysql://me@localhost.example/shop", "verify"),
        ("mysql://me@127.0.0.1.example/shop", "verify"),
        ("mysql://me@localhost/shop", "off"),
        ("mysql://me@127.0.0.1:3307/shop", "off"),
        ("mysql://me@127.8.9.1/shop", "off"),
        ("mysql://me@[::1]/shop", "off"),
        ("mysql://me@db.example/shop?socket=/run/mysqld.sock", "off"),
        ("mysql://me@localhost/shop?ssl_ca=/etc/ca.pem", "verify"),
        ("mysql://me@db.example/shop?ssl=off", "off"),
        ("mysql://me@db.example/shop?ssl=preferred", "prefer"),
    ):
        assert url_of(url).ssl == wanted, url
    with pytest.raises(UsageError, match="ssl_ca"):
        parse("mysql://me@db.example/shop?ssl=require&ssl_ca=/etc/ca.pem")
    with pytest.raises(UsageError, match="ssl_ca of a database URL names no file"):
        parse("mysql://me@db.example/shop?ssl_ca=")


class Impostor:
    """A program that poses as a server and asks for the password."""

    def __init__(self, plugin: str, tls: ssl.SSLContext | None, *, at_once: bool) -> None:
        self._plugin = plugin
        self._tls = tls
        #: True: the greeting names the way to log in; otherwise it is named later.
        self._at_once = at_once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def learned(self) -> bool:
        """Tell whether the password was said, in clear text or so that this program can decrypt it."""
        return any(b"s3cret" in said or len(said) == 256 for said in self.heard)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(20)
            with suppress(OSError, EOFError):
                self._converse(peer)

    def _converse(self, peer: socket.socket) -> None:
        with ExitStack() as stack:
            stack.enter_context(peer)
            capabilities = 0x00FF_FFFF & ~_TLS | (_TLS if self._tls else 0) | 0x88200
            salt, first = b"12345678abcdefghijkl", self._plugin if self._at_once else "mysql_native_password"
            greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + salt[:8] + b"\0"
            greeting += struct.pack("<HBHHB", capabilities & 0xFFFF, 0x2D, 2, capabilities >> 16, 21) + bytes(10)
            _send(peer, 0, greeting + salt[8:] + b"\0" + first.encode() + b"\0")
            number, said = self._hear(peer)
            if self._tls is not None and len(said) <= 32:
                peer = stack.enter_context(self._tls.wrap_socket(peer, server_side=True))
                number, said = self._hear(peer)
            if not self._at_once:
                _send(peer, number + 1, b"\xfe" + self._plugin.encode() + b"\0" + salt + b"\0")
                number, said = self._hear(peer)
            while True:
                # Ask for all of the password, and name a key if the other side asks for one.
                wants_key = said in (b"\1", b"\2") or self._plugin == "sha256_password"
                _send(peer, number + 1, b"\x01" + (_public_key() if wants_key else b"\4"))
                number, said = self._hear(peer)

    def _hear(self, peer: socket.socket) -> tuple[int, bytes]:
        header = _read(peer, 4)
        said = _read(peer, header[0] | header[1] << 8 | header[2] << 16)
        self.heard.append(said)
        return header[3], said


@cache
def _public_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _read(peer: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = peer.recv(size - len(got))
        if not piece:
            raise EOFError
        got += piece
    return got


def _send(peer: socket.socket, number: int, payload: bytes) -> None:
    peer.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the loopback address for another machine, where tests cannot put a server."""
    monkeypatch.setattr("perdure.store.url.is_local", lambda host: False)


CLEAR = ("mysql_clear_password", "dialog")
FULL = ("caching_sha2_password", "sha256_password")


@pytest.mark.usefixtures("far_away")
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("plugin", [*CLEAR, *FULL])
@pytest.mark.parametrize("option", ["", "?ssl=require", "?ssl=prefer", "?ssl=off", "?ssl=verify"])
@pytest.mark.parametrize("encrypts", [True, False])
async def test_an_impostor_on_the_network_does_not_learn_the_password(
    authority: Authority, plugin: str, option: str, *, at_once: bool, encrypts: bool
) -> None:
    tls = server_context(*authority.issue("127.0.0.1")) if encrypts else None
    impostor = Impostor(plugin, tls, at_once=at_once)
    with impostor:
        store = open_store(f"mysql://joe:s3cret@127.0.0.1:{impostor.port}/db{option}", Host())
        with pytest.raises(StoreUnavailable) as refused:
            await store.open()
        await store.close()
    assert not impostor.learned()
    assert "s3cret" not in str(refused.value)
    if option in ("", "?ssl=verify") or (option == "?ssl=require" and not encrypts):
        # It did not even get a name.
        assert isinstance(refused.value, StoreRefused)
        assert not any(b"joe" in said for said in impostor.heard)


@pytest.mark.parametrize("option", ["", "?ssl=require", "?ssl=prefer", "?ssl=off"])
@pytest.mark.parametrize("encrypts", [True, False])
@pytest.mark.parametrize("plugin", CLEAR)
async def test_a_program_on_this_machine_does_not_get_the_password_in_clear_text(
    authority: Authority, plugin: str, option: str, *, encrypts: bool
) -> None:
    impostor = Impostor(plugin, server_context(*authority.issue("127.0.0.1")) if encrypts else None, at_once=False)
    with impostor:
        store = open_store(f"mysql://joe:s3cret@127.0.0.1:{impostor.port}/db{option}", Host())
        with pytest.raises(StoreRefused, match=r"does not support TLS|ssl=verify"):
            await store.open()
        await store.close()
    assert not impostor.learned()


@pytest.mark.parametrize("plugin", FULL)
@pytest.mark.parametrize("option", ["ssl=verify&ssl_ca=", "ssl=off"])
async def test_a_server_that_is_trusted_gets_the_password_that_it_asks_for(
    authority: Authority, trusted: Path, plugin: str, option: str
) -> None:
    """Verified, in clear text inside the encryption; on this machine without TLS, encrypted with the server's key."""
    verified = option.endswith("=") and "verify" in option
    impostor = Impostor(plugin, server_context(*authority.issue("127.0.0.1")) if verified else None, at_once=True)
    with impostor:
        url = f"mysql://joe:s3cret@127.0.0.1:{impostor.port}/db?{option}{trusted if verified else ''}"
        store = open_store(url, Host())
        opening = asyncio.create_task(store.open())
        await eventually(impostor.learned)
        opening.cancel()
        await asyncio.wait([opening])
        await store.close()
    assert any(b"s3cret" in said for said in impostor.heard) == verified


async def test_a_cancelled_opening_leaves_no_encrypted_connection(server: Mariadb, trusted: Path) -> None:
    await cancel_store_openings(f"{server.dsn}?ssl_ca={trusted}")
