"""Connections are encrypted if the server supports it, and the option `ssl` changes that."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from perdure.errors import StoreUnavailable
from perdure.host import Host
from perdure.store import open_store
from perdure.testing.conformance.harness import a_record, commit, held
from tests.servers.mariadb import Mariadb
from tests.servers.private import Missing


def self_signed() -> tuple[bytes, bytes]:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


@pytest.fixture(scope="module")
def server() -> Iterator[Mariadb]:
    try:
        server = Mariadb(durable=False)
    except Missing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a server that can be set up is needed: {missing}")
    server.encrypt(*self_signed())
    server.create()
    yield server
    server.remove()


async def test_what_can_be_encrypted_is(server: Mariadb) -> None:
    for option, encrypted in (("", True), ("?ssl=required", True), ("?ssl=off", False)):
        store = open_store(f"{server.dsn}{option}", Host())
        await store.open()
        [(_, cipher)] = await store.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        assert bool(cipher) == encrypted
        lease = await held(store, f"run with {option or 'nothing'}")
        await commit(store, lease, a_record(0, payload='"' + "x" * 200_000 + '"'))
        assert len(await store.history(lease.run_id)) == 1
        await store.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused_if_it_is_to_be_verified(server: Mariadb) -> None:
    store = open_store(f"{server.dsn}?ssl=verify", Host())
    with pytest.raises(StoreUnavailable, match="certificate"):
        await store.open()
    await store.close()
