"""`perdure.flask` with the real framework: in this process, and as servers and workers that are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from perdure import Context, workflow
from perdure.errors import UsageError
from tests.frameworks.serving import EXAMPLES, new_database, processes

EXAMPLE = EXAMPLES / "flask"
WORKER = ("-m", "flask", "perdure", "worker", "--lease", "2s")
GUNICORN = ("-m", "gunicorn", "app:app", "--workers", "2", "--preload", "--timeout", "90", "--bind", "127.0.0.1:0")


LIBRARIES = ("flask.cli", "gunicorn.app.wsgiapp", "sqlalchemy.orm", "psycopg", "asyncpg", "perdure.cli.workers")


def test_the_example_survives_the_loss_of_its_worker(tmp_path: Path) -> None:
    with new_database() as url:
        address = url.replace("://", "+psycopg://")
        with processes(EXAMPLE, tmp_path, *LIBRARIES, DATABASE_URL=address) as made:
            server, found = made.start(*GUNICORN, until=r"Listening at: (http://\S+)[^\0]*Booting[^\0]*Booting")
            with httpx.Client(base_url=found[1], timeout=90) as client:
                assert client.put("/orders/1?article=").status_code == 422
                for _ in range(2):
                    assert client.put("/orders/1?article=chair").json() == {"run": "order-1"}
                assert client.put("/orders/1?article=table").status_code == 409
                first, _ = made.start(*WORKER, until="has started")
                assert client.get("/orders/1/stage").json() == {"stage": "packing"}
                first.kill()
                second, _ = made.start(*WORKER)
                assert client.post("/orders/1/payment?cents=900").text == "parcel with chair for 900 cents"
            assert (second.stop(), server.stop()) == (0, 0)
            assert "Traceback" not in made.noise()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT * FROM orders").fetchall() == [(1, "chair", 1)]


def read_name() -> str:
    from flask import current_app, g

    g.seen = True
    return current_app.name


async def read_name_async() -> str:
    return read_name()


@workflow("frameworks.names.v1")
async def names(ctx: Context) -> list[str]:
    return [await ctx.step(read_name), await ctx.step(read_name_async)]


def test_steps_run_in_the_context_of_their_application(tmp_path: Path) -> None:
    from flask import Flask, g

    from perdure.flask import Perdure

    durable = Perdure([names])
    ended: list[Any] = []
    apps = [Flask("shop"), Flask("bank")]
    for app in apps:
        app.config["PERDURE_URL"] = f"sqlite:///{tmp_path}/{app.name}.db"
        durable.init_app(app)
        app.teardown_appcontext(lambda error: ended.append(g.get("seen")))
    for app in apps:
        with app.app_context(), durable.engine.worker():
            run = durable.engine.start(names(), id="names")
            assert run.result() == [app.name, app.name]
            assert ended.count(True) == 2
            ended.clear()
            shown = app.test_cli_runner().invoke(args=["perdure", "runs", "show", "names", "--json"])
            assert (shown.exit_code, '"completed"' in shown.output) == (0, True)
            assert app.test_cli_runner().invoke(args=["perdure", "runs", "show", "other"]).exit_code == 1
        with app.app_context():
            durable.engine.close()
    with pytest.raises(UsageError, match="in a request"):
        durable.engine  # noqa: B018
    with Flask("other").app_context(), pytest.raises(UsageError, match="'other' has no engine; call init_app"):
        durable.engine  # noqa: B018
    with pytest.raises(UsageError, match="PERDURE_URL.*is None"):
        Perdure(app=Flask("other"))
    with pytest.raises(UsageError, match=r"<Flask 'other'> is no list of workflows.*Perdure\(\[checkout\], app=app\)"):
        Perdure(Flask("other"))  # type: ignore[arg-type] # on purpose
