"""The private servers of the tests: a failure says why, and a folder that only we may write to is enough."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.servers import private
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.private import PrivateServer, programs, reachable


class Broken(PrivateServer):
    name = "Broken"

    def _making(self) -> list[str]:
        return ["/bin/sh", "-c", "echo to stdout; echo the disk is full >&2; exit 3"]

    def _starting(self) -> list[str]:
        return ["/bin/sh", "-c", "echo the port is taken; exit 4"]

    def _ready(self) -> bool:
        return False


def test_an_installer_that_fails_is_quoted() -> None:
    server = Broken()
    try:
        with pytest.raises(RuntimeError, match=r"Broken failed with exit code 3:\nto stdout\nthe disk is full$"):
            server.create()
    finally:
        server.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="packages are installed by root only")
def test_packages_that_cannot_be_installed_leave_what_the_installer_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    installer = tmp_path / "apt-get"
    installer.write_text('#!/bin/sh\necho "no network for $1"\nexit 100\n')
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert programs(("no-such-program",), (), "no-such-package") == {}
    said = capfd.readouterr().err
    assert "no network for update" in said
    assert "$ apt-get install -y --no-install-recommends " in said
    assert " no-such-package\nno network for install" in said
    assert "*** no-such-package could not be installed; see above. ***" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="servers run as another user only if we are root")
@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize("kind", [Postgres, Mariadb])
def test_a_temporary_folder_that_only_we_may_write_to_is_enough(
    mode: int, kind: type[Postgres | Mariadb], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is Mariadb and not private.found(("mariadb-install-db", "mariadbd"), ("/usr/sbin",)):
        pytest.skip("there is no MariaDB")
    if kind is Postgres and not private.found(("initdb", "postgres"), ("/usr/lib/postgresql/*/bin",)):
        pytest.skip("there is no PostgreSQL")
    with tempfile.TemporaryDirectory() as ours:
        Path(ours).chmod(mode)
        monkeypatch.setattr(tempfile, "tempdir", ours)
        monkeypatch.setenv("TMPDIR", ours)
        server = kind(durable=False)
        try:
            server.create()
            assert server._ready()
            assert list(Path(ours).iterdir()) == ([server._folder] if mode == 0o755 else [])
        finally:
            server.remove()


def test_without_another_user_the_usual_folder_is_used() -> None:
    no_other_user: dict[str, Any] = {}
    assert reachable(no_other_user) == Path(tempfile.gettempdir())
