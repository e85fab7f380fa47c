"""A shop on FastAPI: an order and its run are committed together, and a browser follows the run.

    python examples/fastapi/app.py

serves http://127.0.0.1:8000 on SQLite, with a worker in the same process. With PostgreSQL in DATABASE_URL, run
workers by `perdure worker orders:engine`. The dashboard is at /perdure/, for the user `ann` with the password `secret`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import compare_digest
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from orders import DATABASE, database, engine, order, sessions
from sqlalchemy import text
from starlette.requests import HTTPConnection

from perdure import RunExists, RunNotFound
from perdure.admin import Role
from perdure.dashboard import Dashboard
from perdure.fastapi import CurrentEngine, engine_lifespan, stream_response
from perdure.http import Access, HttpApp, Principal


@asynccontextmanager
async def tables(app: FastAPI) -> AsyncGenerator[None]:
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, article TEXT)"))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS reserved (number INTEGER)"))
    yield
    await database.dispose()


app = FastAPI(lifespan=engine_lifespan(engine, worker=DATABASE.startswith("sqlite"), lifespan=tables))


INSERT = text("INSERT INTO orders VALUES (:number, :article) ON CONFLICT DO NOTHING")


@app.put("/orders/{number}")
async def put_order(number: int, article: str, engine: CurrentEngine) -> dict[str, str]:
    async with sessions.begin() as session:
        # A repeated request finds the run and the row. One with another article raises RunExists.
        run = await engine.start(order(number, article), id=f"order-{number}", connection=session)
        await session.execute(INSERT, {"number": number, "article": article})
        if not article:
            raise HTTPException(422, "an order needs an article")  # neither the order nor the run remains
    return {"run": run.id}


@app.post("/orders/{number}/payment")
async def pay(number: int, cents: int, engine: CurrentEngine) -> str:
    run = await engine.get(f"order-{number}", order)
    await run.send("paid", cents, key="payment")
    return await run.result(timeout="60s")


@app.get("/orders/{number}/progress")
async def progress(number: int, request: Request, engine: CurrentEngine) -> StreamingResponse:
    return stream_response(request, await engine.get(f"order-{number}"), "progress")


@app.exception_handler(RunExists)
async def conflict(request: Request, error: RunExists) -> JSONResponse:
    return JSONResponse({"detail": "the order exists with another article"}, status_code=409)


@app.exception_handler(RunNotFound)
async def not_found(request: Request, error: RunNotFound) -> JSONResponse:
    return JSONResponse({"detail": "there is no such order"}, status_code=404)


# The dashboard, for users of this application.


def user_of(credentials: HTTPBasicCredentials | None) -> str | None:
    known = credentials is not None and compare_digest(credentials.password.encode(), b"secret")
    return credentials.username if credentials is not None and known and credentials.username == "ann" else None


async def principal(connection: HTTPConnection) -> Principal | None:
    user = user_of(await HTTPBasic(auto_error=False)(Request(connection.scope)))
    return None if user is None else Principal(name=f"user:{user}", role=Role.ADMIN)


@app.get("/login")
async def login(credentials: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())], next: str) -> RedirectResponse:
    if user_of(credentials) is None or not next.startswith("/perdure/"):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
    return RedirectResponse(next)


app.mount("/perdure", HttpApp(engine, access=Access(authenticate=principal), pages=Dashboard(login="/login")))

if __name__ == "__main__":
    uvicorn.run(app)
