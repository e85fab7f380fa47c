"""`perdure serve` in a process of its own: it serves, refuses a public bind, and stops in order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import URL, Perdure
from tests.servers.private import free_port


def patient_client() -> httpx.Client:
    """A client that waits for a server that has just begun, on a busy machine, too."""
    return httpx.Client(transport=httpx.HTTPTransport(retries=20, verify=False), trust_env=False, timeout=60)


@contextmanager
def serving(place: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "perdure.cli", "serve", "--port", f"{free_port()}", "--json", *options]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()
            yield process, json.loads(line)["url"]
        finally:
            process.kill()


def test_it_serves_a_database_and_stops_at_a_signal(perdure: Perdure, tmp_path: Path) -> None:
    token = perdure("tokens", "create", URL, "ci", "--role", "operator").out.strip()
    with serving(tmp_path, URL) as (process, url), patient_client() as client:
        assert client.get(f"{url}/runs").status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        started = client.post(f"{url}/runs", json={"type": "checkout", "id": "a"}, headers=headers)
        assert started.status_code == 201
        root = url.removesuffix("/api/v1")
        assert client.get(f"{root}/livez").status_code == 200
        assert client.get(f"{root}/readyz").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert (process.wait(timeout=60), process.communicate()) == (0, ("", ""))
    [run] = perdure("runs", "list", URL, "--json").json["runs"]
    assert run["id"] == "a"
    [event] = perdure("audit", "list", URL, "--run", "a", "--json").json["events"]
    assert event["actor"] == "token:ci"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_open_streams_and_the_process_without_an_error(
    perdure: Perdure, tmp_path: Path, number: signal.Signals
) -> None:
    perdure("migrate", URL)
    perdure("start", URL, "checkout", "--id", "a")
    with (
        serving(tmp_path, URL, "--anonymous", "viewer") as (process, url),
        patient_client() as client,
        client.stream("GET", f"{url}/live") as live,
        client.stream("GET", f"{url}/runs/a/streams/numbers/live") as items,
    ):
        assert (live.status_code, items.status_code) == (200, 200)
        process.send_signal(number)
        # The streams end, and are not cut off: their bodies are complete.
        assert "event: end" not in items.read().decode()
        live.read()
        assert (process.wait(timeout=60), process.communicate()) == (0, ("", ""))


def test_an_engine_checks_arguments_by_its_code(perdure: Perdure, tmp_path: Path) -> None:
    token = perdure("tokens", "create", URL, "ci", "--role", "operator").out.strip()
    with serving(tmp_path, "shop:engine") as (_, url), patient_client() as client:
        headers = {"Authorization": f"Bearer {token}"}
        wrong = client.post(f"{url}/runs", json={"type": "checkout", "input": {"order": 7}}, headers=headers)
        assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:perdure:problem:bad-arguments")
        unknown = client.post(f"{url}/runs", json={"type": "chekout"}, headers=headers)
        assert (unknown.status_code, unknown.json()["type"]) == (422, "urn:perdure:problem:unknown-workflow")


def test_anonymous_callers_on_loopback_have_the_role_that_is_given(perdure: Perdure, tmp_path: Path) -> None:
    perdure("migrate", URL)
    options = (URL, "--anonymous", "viewer")
    with serving(tmp_path, *options) as (_, url), patient_client() as client:
        assert client.get(f"{url}/runs").json()["items"] == []
        assert client.post(f"{url}/runs", json={"type": "checkout"}).status_code == 403
        rebound = client.get(f"{url}/runs", headers={"Host": "evil.example"})
        assert rebound.status_code == 421


def test_several_engines_are_served_side_by_side(perdure: Perdure, tmp_path: Path) -> None:
    perdure("migrate", URL)
    other = "sqlite:///other.db"
    perdure("migrate", other)
    options = (URL, "--name", "shop", "--beside", f"other={other}", "--anonymous", "operator", "--no-workers")
    with serving(tmp_path, *options) as (_, url), patient_client() as client:
        assert url.endswith("/shop/api/v1")
        root = url.removesuffix("/shop/api/v1")
        headers = {"X-CSRF-Token": client.get(f"{root}/other/api/v1/session").json()["csrf"]}
        started = client.post(f"{root}/other/api/v1/runs", json={"type": "checkout", "id": "a"}, headers=headers)
        assert started.status_code == 201, started.text
        assert client.get(f"{root}/shop/api/v1/runs").json()["items"] == []
        page = client.get(f"{root}/other/runs/a")
        assert (page.status_code, 'href="/shop/"' in page.text, 'href="/other/runs"' in page.text) == (200, True, True)
        assert client.get(root).headers["location"] == "/shop/"
        assert client.get(f"{root}/other").headers["location"] == "/other/"
        assert [client.get(f"{root}{path}").status_code for path in ("/readyz", "/other/livez", "/else/")] == [
            200, 200, 404,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--beside", "main=sqlite:///other.db"), "needs a name of its own"),
        (("--bind", "0.0.0.0:0", "--host", "ops"), "create a token first"),
        (("--bind", "0.0.0.0:0", "--anonymous", "viewer"), "anonymous callers would be viewer"),
        (("--bind", "nonsense:x"), "is not an address to listen on"),
        (("--bind", ""), "is not an address to listen on"),
        (("--bind", "127.0.0.1:0", "--port", "0"), "give one of the two"),
        (("--user-header", "X-User"), "needs proxies"),
        (("--redact-text", "("), "not a regular expression"),
        (("--proxy", "somewhere"), "give addresses or networks"),
    ],
)
def test_what_would_be_unsafe_or_wrong_is_refused(perdure: Perdure, options: tuple[str, ...], reason: str) -> None:
    perdure("migrate", URL)
    answer = perdure("serve", URL, *options)
    assert (answer.code, reason in answer.err) == (1, True), answer.err
