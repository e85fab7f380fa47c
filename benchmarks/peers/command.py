"""`python -m benchmarks peers`: other systems and this one, in turns, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from benchmarks.peers.catalog import MISSING, OURS, PEERS, Missing, Peer
from benchmarks.peers.environments import ROOT, Environment, Unavailable
from benchmarks.peers.measure import PeerSizes, Void, sample, settings_of
from benchmarks.peers.table import Comparison, System, render, write
from tests.servers.postgres import Postgres

PAGE = ROOT / "docs" / "benchmarks.md"
RESULT = ROOT / "benchmarks" / "peers" / "last.json"
DEFAULTS = PeerSizes()
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


def _chosen(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = [name.strip().lower() for name in value.split(",") if name.strip()]
    known = list(OURS.shares) if parameter.name == "workloads" else [peer.name.lower() for peer in PEERS]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"there is no {unknown[0]!r}; choose from {', '.join(known)}")
    return names


@click.command(context_settings={"show_default": True})
@click.option("--store", metavar="DSN", help="A PostgreSQL with durable settings. By default one is started.")
@click.option("--only", callback=_chosen, default="", help="Peers to measure, by name, with commas between them.")
@click.option("--workloads", callback=_chosen, default=",".join(OURS.shares), help="Workloads to measure.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where the peers are installed.")
@click.option("--install-timeout", default=600.0, help="Seconds that one installation may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", "writes", is_flag=True, help="Write the table into docs/benchmarks.md.")
@click.option("--rounds", default=DEFAULTS.rounds, help="How often to measure; medians are reported.")
@click.option("--runs", default=DEFAULTS.runs, help="Runs of w2; five times as many in w1 and w5.")
@click.option("--steps", default=DEFAULTS.steps, help="Parallel steps of w4, records of w6.")
@click.option("--sleep", default=DEFAULTS.sleep, help="Seconds that the runs of w5 sleep.")
@click.option("--slots", default=DEFAULTS.slots, help="Runs that a worker holds at a time.")
@click.option("--timeout", default=DEFAULTS.timeout, help="Seconds that one sample may take.")
def peers(
    store: str | None,
    only: list[str],
    workloads: list[str],
    cache: Path | None,
    install_timeout: float,
    *,
    as_json: bool,
    writes: bool,
    **sizes: float,
) -> None:
    """Measure other systems and this one in turns, and check in their tables that they did the work."""
    chosen = [peer for peer in PEERS if not only or peer.name.lower() in only]
    with _server(store) as dsn:
        server = asyncio.run(settings_of(dsn))
        if careless := [name for name in DURABLE if server[name] != "on"]:
            raise click.ClickException(f"{', '.join(careless)} must be on: without it the server loses commits")
        python = platform.python_version()
        result = Comparison(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {python}",
            server=server,
            command="python -m benchmarks peers",
            systems=[],
            missing=[],
        )
        environments = _install(result, [OURS, *chosen], cache or _cache(), install_timeout)
        result.missing.extend(() if only else MISSING)
        measured = msgspec.convert(sizes, PeerSizes, strict=False)
        asyncio.run(_measure(result, environments, workloads, measured, dsn))
    result.rounds, result.load = measured.rounds, round(os.getloadavg()[2], 1)
    if writes:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        write(PAGE, result)
    click.echo(msgspec.json.encode(result).decode() if as_json else render(result))


def _install(result: Comparison, chosen: list[Peer], cache: Path, timeout: float) -> list[Environment]:
    """Install the peers; what cannot be had goes to the missing ones."""
    environments: list[Environment] = []
    for peer in chosen:
        environment = Environment(peer, cache)
        try:
            version = environment.install(timeout)
        except Unavailable as unavailable:
            result.missing.append(Missing(peer.name, str(unavailable)))
        else:
            environments.append(environment)
            result.systems.append(System(name=peer.name, version=version, note=peer.note, figures={}))
    return environments


async def _measure(
    result: Comparison, environments: list[Environment], workloads: list[str], sizes: PeerSizes, dsn: str
) -> None:
    for number in range(sizes.rounds):
        for workload in workloads:
            for environment, system in zip(environments, result.systems, strict=True):
                if workload not in environment.peer.shares:
                    continue
                figures: dict[str, float] = {}
                try:
                    figures = (await sample(environment, workload, dsn, sizes)).figures
                except Void as void:
                    click.echo(f"void: {void}", err=True)
                for name in ("start", workload) if workload == "w1" else (workload,):
                    system.figures.setdefault(name, []).append(figures.get(name))
                shown = ", ".join(f"{name} {figure:,.1f}" for name, figure in figures.items())
                click.echo(f"round {number + 1}: {system.name} {shown}", err=True)


@contextmanager
def _server(store: str | None) -> Iterator[str]:
    if store is not None:
        yield store
        return
    server = Postgres(durable=True)
    server.create()
    try:
        yield server.dsn
    finally:
        server.remove()


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "perdure-peers"
