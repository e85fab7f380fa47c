"""A shop on Flask: an order and its run are committed together.

    python examples/flask/app.py

serves http://127.0.0.1:5000 on SQLite, with a worker in the same process. With PostgreSQL in DATABASE_URL, run
`gunicorn app:app`, workers by `flask perdure worker`, and the dashboard by `flask perdure serve`.
"""

import os
import time

from flask import Flask, current_app, request
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from perdure import Context, RunExists, workflow
from perdure.flask import Perdure

DATABASE = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
database = create_engine(DATABASE)
sessions = sessionmaker(database)
if DATABASE.startswith("sqlite"):  # before SQLite 3.51.3: Perdure alone writes checkpoints
    event.listen(database, "connect", lambda connection, _: connection.execute("PRAGMA wal_autocheckpoint = 0"))


def reserve(session: Session, number: int) -> None:
    session.execute(text("UPDATE orders SET reserved = reserved + 1 WHERE number = :n"), {"n": number})


def pack(article: str) -> str:
    time.sleep(1)
    return f"{current_app.config['PARCEL']} with {article}"


@workflow("shop.order.v1")
async def order(ctx: Context, number: int, article: str) -> str:
    await ctx.options(using=sessions).transaction(reserve, number)  # exactly once
    ctx.publish("stage", "packing")
    parcel = await ctx.step(pack, article)
    cents = await ctx.receive("paid", int)
    return f"{parcel} for {cents} cents"


durable = Perdure([order])
INSERT = text("INSERT INTO orders VALUES (:number, :article, 0) ON CONFLICT DO NOTHING")


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.update(PERDURE_URL=DATABASE, PARCEL="parcel")
    durable.init_app(app)

    @app.put("/orders/<int:number>")
    def put_order(number: int) -> dict[str, str]:
        article = request.args["article"]
        with sessions.begin() as session:
            # A repeated request finds the run and the row. One with another article raises RunExists.
            run = durable.engine.start(order(number, article), id=f"order-{number}", connection=session)
            session.execute(INSERT, {"number": number, "article": article})
            if not article:
                raise ValueError("an order needs an article")  # neither the order nor the run remains
        return {"run": run.id}

    @app.get("/orders/<int:number>/stage")
    def stage(number: int) -> dict[str, str]:
        return {"stage": durable.engine.get(f"order-{number}").wait_state("stage", type=str, timeout="60s")}

    @app.post("/orders/<int:number>/payment")
    def pay(number: int) -> str:
        run = durable.engine.get(f"order-{number}", order)
        run.send("paid", int(request.args["cents"]), key="payment")
        return run.result(timeout="60s")

    @app.errorhandler(ValueError)
    def refuse(error: ValueError) -> tuple[str, int]:
        return str(error), 422

    @app.errorhandler(RunExists)
    def conflict(error: RunExists) -> tuple[str, int]:
        return "the order exists with another article", 409

    return app


def create_tables(app: Flask) -> None:
    with database.begin() as connection:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, article TEXT, reserved INTEGER)")
        )
    with app.app_context():
        durable.engine.open()


app = create_app()
create_tables(app)

if __name__ == "__main__":
    with app.app_context(), durable.engine.worker():
        app.run()
