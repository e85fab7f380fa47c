"""What a command prints when it is a terminal that listens."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.conftest import URL, Perdure


def on_a_terminal(*arguments: str, **environment: str) -> str:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *arguments],
        stdout=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(follower)
    said = b""
    try:
        while part := os.read(leader, 65536):
            said += part
    except OSError:
        # Linux reports the closed other end as an error.
        pass
    finally:
        os.close(leader)
    assert process.wait(timeout=90) == 0
    return said.decode()


@pytest.fixture
def shop(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert perdure("start", URL, "[red]checkout", "--id", "o-1").code == 0
    assert perdure("cancel", URL, "o-1").code == 0


@pytest.mark.usefixtures("shop")
def test_a_terminal_gets_colours_and_markup_in_data_stays_text() -> None:
    for arguments in (("runs", URL), ("show", URL, "o-1")):
        text = on_a_terminal(*arguments)
        assert "\x1b[35m" in text
        assert "[red]checkout" in text


@pytest.mark.usefixtures("shop")
def test_colours_can_be_declined() -> None:
    assert "\x1b[3" not in on_a_terminal("runs", URL, NO_COLOR="1")


@pytest.mark.usefixtures("shop")
def test_json_is_the_same_on_a_terminal() -> None:
    assert on_a_terminal("runs", URL, "--json").startswith('{"runs": [{"id": "o-1"')
