"""The files of `examples/deploy` are valid, agree with each other, and their commands do what they are there for."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from perdure import Call, Engine
from perdure.cli.app import cli
from perdure.core.time.duration import seconds
from tests.cli.conftest import parse_command
from tests.frameworks.serving import new_database, pause
from tests.servers.private import free_port

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "deploy"
PERDURE = Path(sys.executable).with_name("perdure")
UNITS = ["perdure-worker@.service", "perdure-dashboard.service"]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def pods() -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in objects() if "template" in one["spec"]}


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((FOLDER / name).read_text())
    return parser


def image_command() -> list[str]:
    [line] = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    command: list[str] = yaml.safe_load(line)
    return command


def commands() -> dict[str, list[str]]:
    """Every command line of Perdure in these files."""
    found = {"Dockerfile": image_command()}
    found |= {f"compose {name}": one["command"] for name, one in compose()["services"].items() if "command" in one}
    found |= {f"pod {name}": pod["spec"]["containers"][0]["command"] for name, pod in pods().items()}
    for name in UNITS:
        words = shlex.split(unit(name)["Service"]["ExecStart"].replace("%H-%i", "web-1"))
        found[name] = ["perdure", *words[1:]]
    [comment] = re.findall(r"docker compose exec dashboard (perdure .*)", (FOLDER / "compose.yaml").read_text())
    found["compose comment"] = shlex.split(comment)
    return found


@pytest.mark.parametrize("name", commands())
def test_a_command_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_URL", "postgresql://localhost/shop")
    words = commands()[name]
    assert words[0] == "perdure"
    parse_command(cli, words)


def grace_of(command: list[str]) -> float:
    return seconds(command[command.index("--grace") + 1])


def test_nothing_kills_a_worker_before_its_grace_is_over() -> None:
    assert grace_of(image_command()) + 10 <= seconds(compose()["services"]["worker"]["stop_grace_period"])
    pod = pods()["shop-worker"]["spec"]
    assert grace_of(pod["containers"][0]["command"]) + 10 <= pod["terminationGracePeriodSeconds"]
    service = unit("perdure-worker@.service")["Service"]
    assert grace_of(service["ExecStart"].split()) + 10 <= float(service["TimeoutStopSec"])


def test_the_image_has_what_its_commands_need() -> None:
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "CMD"}
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert copied == ["requirements.txt", "shop.py"]
    assert all((FOLDER / name).exists() for name in copied)
    extras = re.findall(r"\[(.*)\]", (FOLDER / "requirements.txt").read_text())[0].split(",")
    assert {"postgres", "dashboard", "metrics"} == set(extras)
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)


def test_services_of_compose_wait_for_services_that_exist() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert other in services, name
            assert condition["condition"] in ("service_healthy", "service_completed_successfully")
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[other]
    volumes = {one.partition(":")[0] for one in services["database"]["volumes"]}
    assert volumes == set(compose()["volumes"])


def test_objects_of_kubernetes_select_pods_and_ports_that_exist() -> None:
    labels = {pod["metadata"]["labels"]["app"]: pod for pod in pods().values() if "metadata" in pod}
    for one in objects():
        if one["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert one["spec"]["selector"]["matchLabels"]["app"] in labels
        if one["kind"] == "Service":
            [container] = labels[one["spec"]["selector"]["app"]]["spec"]["containers"]
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= {p["name"] for p in container["ports"]}
    for pod in pods().values():
        [container] = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
                assert container[probe]["httpGet"]["path"] in ("/metrics", "/livez", "/readyz")
        assert all(str(port) in " ".join(container["command"]) for port in ports.values())


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit(name: str, tmp_path: Path) -> None:
    service = unit(name)["Service"]
    assert service["ExecStart"].startswith("/srv/shop/venv/bin/perdure ")
    if (program := shutil.which("systemd-analyze")) is None:
        return
    text = (FOLDER / name).read_text().replace("/srv/shop/venv/bin/perdure", "/bin/true").replace("/srv/shop", "/tmp")
    (tmp_path / name.replace("@", "@1")).write_text(text)
    path = tmp_path / name.replace("@", "@1")
    ran = subprocess.run([program, "verify", "--man=no", path], capture_output=True, text=True, check=False)
    if ran.returncode and re.search("No such file or directory|Operation not permitted", ran.stderr):
        pytest.skip("systemd cannot verify units here")
    assert (ran.returncode, ran.stderr) == (0, "")


def reached(address: str) -> str:
    while True:
        try:
            with urlopen(address, timeout=30) as answer:
                text: str = answer.read().decode()
                return text
        except (URLError, ConnectionError):
            pause()


async def ordered(url: str) -> str:
    async with Engine(url) as engine:
        run = await engine.start(Call.named("shop.order.v1", article="a chair"))
        return str(await run.result())


def test_the_commands_of_compose_run_the_shop() -> None:
    with new_database() as url:
        environment = {**os.environ, "PERDURE_URL": url}
        services = compose()["services"]
        subprocess.run([PERDURE, *services["migrate"]["command"][1:]], env=environment, check=True, cwd=FOLDER)

        metrics, web = free_port(), free_port()
        worker = [word.replace("9464", str(metrics)) for word in image_command()[1:]]
        dashboard = [word.replace("0.0.0.0:8470", f"127.0.0.1:{web}") for word in services["dashboard"]["command"][1:]]
        processes = [subprocess.Popen([PERDURE, *one], env=environment, cwd=FOLDER) for one in (worker, dashboard)]
        try:
            assert asyncio.run(ordered(url)) == "parcel with a chair"
            assert "perdure_workers 1.0" in reached(f"http://127.0.0.1:{metrics}/metrics")
            assert '"ok":true' in reached(f"http://127.0.0.1:{web}/livez").replace(" ", "")
            assert '"ok":true' in reached(f"http://127.0.0.1:{web}/readyz").replace(" ", "")
            for process in processes:
                process.terminate()
            assert processes[0].wait() == 0
            processes[1].wait()
        finally:
            for process in processes:
                process.kill()


def test_gunicorn_knows_the_settings() -> None:
    settings: dict[str, Any] = {}
    exec((FOLDER / "gunicorn.conf.py").read_text(), settings)
    config = import_module("gunicorn.config").Config()
    for name, value in settings.items():
        if not name.startswith("__"):
            config.set(name, value)
    assert config.settings["preload_app"].get() is True
