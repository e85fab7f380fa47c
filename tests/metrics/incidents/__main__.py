"""Record incidents: `python -m tests.servers python -m tests.metrics.incidents FOLDER --key FILE`.

Four shops run at the same time, each with two worker processes on a PostgreSQL of their own schema. After some healthy
minutes, something different happens to each. Metrics are scraped every 15 seconds and the rules of
`examples/metrics/alerts.yml` are evaluated, as Prometheus does. In the end the folder has a numbered folder for each
incident, in random order; the key says which is which. A reader who has only one of the folders should find the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlencode, urlsplit, urlunsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] # it has none
import click
import yaml

from tests.metrics.incidents.render import write
from tests.metrics.promql import Alerts, Prometheus
from tests.servers.private import free_port

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "metrics"

#: Seconds between two scrapes, and between two evaluations of the alerts.
INTERVAL = 15.0
#: Orders a second, on average.
ORDERS = 1.0
#: Share of the calls that the payment service refuses on a usual day.
REFUSED = 0.01
#: Seconds that each write to the database takes when it is slow.
SLOW = 1.2


class Payments:
    """The service that the shop calls. It answers in 30 to 100 ms, or not at all."""

    def __init__(self) -> None:
        self.hangs = False
        self._hanging: list[asyncio.StreamWriter] = []
        self.port = 0

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if self.hangs:
            # Until the recording ends.
            self._hanging.append(writer)
            return
        await asyncio.sleep(random.uniform(0.03, 0.1))
        writer.write(b"refused\n" if random.random() < REFUSED else b"ok\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


class Shop:
    """One shop: its schema, its processes and what is recorded of it."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.schema = f"shop_{os.urandom(4).hex()}"
        self.role = f"{self.schema}_worker"
        self.dsn = dsn
        self.folder = folder
        self.payments = Payments()
        self.data = Prometheus()
        rules = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
        self.alerts = Alerts([rule for group in rules for rule in group["rules"]])
        self._stack = AsyncExitStack()
        self._ports = {f"worker-{number}:9464": free_port() for number in (1, 2)}

    def url(self, user: str | None = None) -> str:
        """URL of the database, for the administrator or another role."""
        parts = urlsplit(self.dsn)
        place = parts.netloc.rpartition("@")[2]
        netloc = parts.netloc if user is None else f"{user}@{place}"
        query = f"{parts.query}&schema={self.schema}" if parts.query else urlencode({"schema": self.schema})
        return urlunsplit(parts._replace(netloc=netloc, query=query))

    async def execute(self, *statements: str) -> None:
        """Execute statements as the administrator of the database."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(f"SET search_path = {self.schema}")
            for one in statements:
                await connection.execute(one)
        finally:
            await connection.close()

    async def open(self) -> None:
        """Start the shop."""
        await self._stack.enter_async_context(await self.payments.serve())
        await self.command("migrate", self.url())
        await self.execute(
            f"CREATE ROLE {self.role} LOGIN",
            f"GRANT USAGE ON SCHEMA {self.schema} TO {self.role}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self.schema} TO {self.role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {self.schema} TO {self.role}",
        )
        for instance, port in self._ports.items():
            name = instance.partition(":")[0]
            command = ["-m", "perdure.cli", "worker", "tests.metrics.incidents.shop:engine", "--slots", "20"]
            await self._start(name, *command, "--grace", "1s", "--metrics", f"127.0.0.1:{port}")
        await self._start("checkout-1", "-m", "tests.metrics.incidents.producer", str(ORDERS))

    async def _start(self, instance: str, *arguments: str) -> None:
        process = await self._process(instance, *arguments)
        self._stack.push_async_callback(_end, process)

    async def command(self, *arguments: str) -> None:
        """Run a command of Perdure."""
        process = await self._process(arguments[0], "-m", "perdure.cli", *arguments)
        if await process.wait():
            raise RuntimeError(f"perdure {' '.join(arguments)} has failed: {self.folder / arguments[0]}.log")

    async def _process(self, instance: str, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "SHOP_URL": self.url(self.role if instance == "worker-2" else None),
            "SHOP_PAYMENTS": str(self.payments.port),
            "SHOP_SPANS": str(self.folder / "spans.jsonl"),
            "SHOP_INSTANCE": instance,
        }
        with (self.folder / f"{instance}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *arguments, cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    async def close(self) -> None:
        """End the shop, and drop its schema."""
        await self._stack.aclose()
        await self.execute(f"DROP SCHEMA {self.schema} CASCADE", f"DROP ROLE {self.role}")

    async def look(self) -> None:
        """Scrape both workers and evaluate the alerts."""
        texts = await asyncio.gather(*(asyncio.to_thread(_scrape, port) for port in self._ports.values()))
        now = time.time()
        for instance, text in zip(self._ports, texts, strict=True):
            self.data.scraped(now, instance, text)
        self.alerts.evaluate(self.data, now)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()


def _scrape(port: int) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return None


async def a_dependency_that_hangs(shop: Shop) -> None:
    """The payment service accepts connections and answers no more."""
    shop.payments.hangs = True


async def a_limit_set_too_low(shop: Shop) -> None:
    """The limit of the mail server is set to 1 instead of 8."""
    await shop.command("limits", "set", shop.url(), "mail-server", "--concurrency", "1")


async def a_worker_that_cannot_claim(shop: Shop) -> None:
    """The role of worker-2 loses the right to read a table that claims need."""
    await shop.execute(f"REVOKE ALL ON {shop.schema}.perdure_pauses FROM {shop.role}")


async def a_slow_database(shop: Shop) -> None:
    """Each statement that writes runs or their history takes more than a second."""
    await shop.execute(
        f"CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_sleep({SLOW}); RETURN NULL; END $$",
        "CREATE TRIGGER take_time BEFORE INSERT OR UPDATE ON perdure_runs EXECUTE FUNCTION take_time()",
    )


INCIDENTS: tuple[Callable[[Shop], Awaitable[None]], ...] = (
    a_dependency_that_hangs, a_limit_set_too_low, a_worker_that_cannot_claim, a_slow_database,
)  # fmt: skip


async def record(
    incident: Callable[[Shop], Awaitable[None]] | None, shop: Shop, *, healthy: float, seconds: float
) -> tuple[float, float]:
    """Record a shop; the incident begins after the healthy seconds. Returns the times of beginning and end."""
    begin = time.time()
    happened = incident is None
    await shop.open()
    try:
        while time.time() < begin + seconds:
            if not happened and incident is not None and time.time() >= begin + healthy:
                happened = True
                await incident(shop)
            await shop.look()
            await asyncio.sleep(INTERVAL - (time.time() - begin) % INTERVAL)
        end = time.time()
    finally:
        await shop.close()
    return begin, end


async def record_all(folder: Path, *, healthy: float, seconds: float, keep: Path | None) -> str:
    """Record all incidents at the same time, and write them in random order; returns the key."""
    dsn = os.environ["PERDURE_TEST_POSTGRES"]
    panels = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    order = random.sample(INCIDENTS, len(INCIDENTS))
    with tempfile.TemporaryDirectory(prefix="perdure-incidents-") as work:
        logs = keep or Path(work)
        shops = [Shop(dsn, logs / str(number)) for number in range(1, len(order) + 1)]
        for shop in shops:
            shop.folder.mkdir(parents=True, exist_ok=True)
        spans = await asyncio.gather(
            *(record(incident, shop, healthy=healthy, seconds=seconds)
              for incident, shop in zip(order, shops, strict=True))
        )  # fmt: skip
        for number, (shop, (begin, end)) in enumerate(zip(shops, spans, strict=True), 1):
            target = folder / str(number)
            target.mkdir(parents=True, exist_ok=True)
            (target / "spans.jsonl").write_bytes((shop.folder / "spans.jsonl").read_bytes())
            write(target, shop.data, shop.alerts, panels, begin, end)
    lines = [f"{number}. {one.__name__.replace('_', ' ')}: {one.__doc__}" for number, one in enumerate(order, 1)]
    return f"The incidents began after {healthy / 60:g} minutes.\n\n" + "\n".join(lines) + "\n"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), required=True, help="File that says which folder is which.")
@click.option("--healthy", type=float, default=5.0, show_default=True, help="Minutes before the incidents.")
@click.option("--minutes", type=float, default=22.0, show_default=True, help="Minutes in all.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder in which the logs of the processes stay.")
def main(folder: Path, key: Path, healthy: float, minutes: float, keep: Path | None) -> None:
    """Record the incidents."""
    key.write_text(asyncio.run(record_all(folder, healthy=healthy * 60, seconds=minutes * 60, keep=keep)))


if __name__ == "__main__":
    main()
