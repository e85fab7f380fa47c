"""One use of each extra, in a process that can import nothing but that extra: `python -m tests.release.probes redis`.

An import of any other package fails, as it would in an environment where only this extra was installed.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.metadata
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

#: Modules of the project itself, and the one that this file needs.
OWN = {"perdure", "perdure_pytest", "tests", "packaging"}


def packages_of(extra: str) -> set[str]:
    """The names of the packages that an installation with one extra has."""
    # Not at the top: the environments of `--installed` do not have it.
    from packaging.markers import default_environment
    from packaging.requirements import Requirement

    found: set[str] = set()
    todo = [("perdure", frozenset({extra} if extra else ()))]
    seen = set(todo)
    while todo:
        package, extras = todo.pop()
        found.add(canonicalize_name(package))
        try:
            needs = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            marks: Any = default_environment()
            if need.marker is None or any(need.marker.evaluate({**marks, "extra": one}) for one in ("", *extras)):
                more = (need.name, frozenset(need.extras))
                if more not in seen:
                    seen.add(more)
                    todo.append(more)
    return found


def canonicalize_name(name: str) -> str:
    """The form of a package's name in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


class OnlyThese(importlib.abc.MetaPathFinder):
    """Refuses imports of packages that are not installed with the extra."""

    def __init__(self, packages: set[str]) -> None:
        self.modules = OWN | set(sys.stdlib_module_names)
        for module, owners in importlib.metadata.packages_distributions().items():
            if {canonicalize_name(owner) for owner in owners} & packages:
                self.modules.add(module)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        top = fullname.partition(".")[0]
        if top not in self.modules and not top.startswith(("__editable__", "_sysconfigdata")):
            raise ModuleNotFoundError(f"no module named {top!r} with this extra alone", name=top)


async def _run(**options: Any) -> None:
    from perdure import Context, Engine, workflow

    @workflow("release.probe.v1")
    async def probe(ctx: Context, number: int) -> int:
        return await ctx.step(abs, -number)

    async with Engine("sqlite://", [probe], **options) as engine, engine.worker():
        assert await (await engine.start(probe(2))).result() == 2


def base() -> None:
    for module in ("blocking", "errors", "machine", "middleware", "outbox", "push", "testing"):
        import_module(f"perdure.{module}")
    from perdure.cli.app import cli

    asyncio.run(_run())
    cli.main(["--help"], standalone_mode=False)


def _unreachable(url: str) -> None:
    from perdure import Engine
    from perdure.errors import StoreUnavailable

    async def connect() -> None:
        engine = Engine(url, database_timeout="100ms")
        try:
            await engine.open()
        except StoreUnavailable:
            return
        raise AssertionError

    asyncio.run(connect())


def postgres() -> None:
    _unreachable("postgresql://127.0.0.1:1/none")


def mysql() -> None:
    _unreachable("mysql://user@127.0.0.1:1/none")


def with_pydantic() -> None:
    from pydantic import BaseModel

    from perdure import Context, Engine, workflow

    class Item(BaseModel):
        name: str

    async def rename(item: Item) -> Item:
        return Item(name=item.name.upper())

    @workflow("release.item.v1")
    async def items(ctx: Context, item: Item) -> Item:
        return await ctx.step(rename, item)

    async def run() -> None:
        async with Engine("sqlite://", [items]) as engine, engine.worker():
            assert (await (await engine.start(items(Item(name="a")))).result()).name == "A"

    asyncio.run(run())


def fast() -> None:
    import_module("uvloop").run(_run())


def redis() -> None:
    from perdure.push import RedisQueue

    RedisQueue.at("redis://127.0.0.1:1")


def sync() -> None:
    from perdure import Engine, workflow
    from perdure.blocking import Context

    @workflow("release.sync.v1")
    def probe(ctx: Context, number: int) -> int:
        return ctx.step(abs, -number)

    async def run() -> None:
        async with Engine("sqlite://", [probe]) as engine, engine.worker():
            assert await (await engine.start(probe(2))).result() == 2

    asyncio.run(run())


def otel() -> None:
    from perdure.tracing import Tracing

    asyncio.run(_run(tracing=Tracing()))


def dashboard() -> None:
    import_module("perdure.starlette")
    from perdure import Engine
    from perdure.dashboard import Dashboard
    from perdure.http import HttpApp

    HttpApp(Engine("sqlite://"), pages=Dashboard())


def fastapi() -> None:
    from fastapi import FastAPI

    from perdure import Engine
    from perdure.fastapi import engine_lifespan

    FastAPI(lifespan=engine_lifespan(Engine("sqlite://")))


def django() -> None:
    import django as framework
    from django.conf import settings

    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "probe.db"}}
    settings.configure(DATABASES=databases, INSTALLED_APPS=["perdure.django"], PERDURE={"WORKFLOWS": []})
    framework.setup()
    import perdure.django

    assert perdure.django.engine() is not None


def flask() -> None:
    from flask import Flask

    from perdure.flask import Perdure

    app = Flask("probe")
    app.config["PERDURE_URL"] = "sqlite://"
    Perdure([]).init_app(app)


def langgraph() -> None:
    from perdure import Engine
    from perdure.langgraph import PerdureSaver

    PerdureSaver(Engine("sqlite://"))


def mcp() -> None:
    from perdure.cli.app import cli

    import_module("perdure.mcp")
    cli.main(["mcp", "--help"], standalone_mode=False)


def pydantic_ai() -> None:
    from perdure.pydantic_ai import PerdureDurability

    PerdureDurability()


def openai_agents() -> None:
    import_module("perdure.openai_agents")


def metrics() -> None:
    from perdure import Engine
    from perdure.metrics import Metrics

    Metrics(Engine("sqlite://")).close()


def dev() -> None:
    from perdure.cli.app import cli

    dashboard()
    import_module("watchfiles")
    cli.main(["dev", "--help"], standalone_mode=False)


def client() -> None:
    from perdure import Engine

    Engine("http://127.0.0.1:1", token="none")


def conformance() -> None:
    import_module("perdure.testing.conformance")


PROBES: dict[str, Callable[[], None]] = {
    "": base,
    "postgres": postgres,
    "mysql": mysql,
    "pydantic": with_pydantic,
    "fast": fast,
    "redis": redis,
    "sync": sync,
    "otel": otel,
    "dashboard": dashboard,
    "fastapi": fastapi,
    "django": django,
    "flask": flask,
    "langgraph": langgraph,
    "mcp": mcp,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "metrics": metrics,
    "dev": dev,
    "client": client,
    "conformance": conformance,
}


def main() -> None:
    extra = sys.argv[1]
    if "--installed" not in sys.argv:
        sys.meta_path.insert(0, OnlyThese(packages_of(extra)))
    PROBES[extra]()


if __name__ == "__main__":
    main()
