"""The programs of the guide to FastAPI. They need FastAPI 0.121, as the guide says, and `perdure.fastapi` does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.test_docs import ROOT, snippets


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The programs of the guide, as one module in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page")
    # FastAPI reads the annotations of functions in their module.
    monkeypatch.setitem(sys.modules, "page", page)
    for source in snippets(ROOT / "docs" / "guides" / "fastapi.md", "python"):
        exec(compile(source, "fastapi.md", "exec"), vars(page))
    yield page
    page.blocking_sessions.kw["bind"].dispose()


def _logged(app: ASGIApp, log: list[str]) -> ASGIApp:
    """An application that logs what it sends."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            log.append(message["type"])
            await send(message)

        await app(scope, receive, note if scope["type"] == "http" else send)

    return logged


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_the_guides_endpoints_may_be_called_twice_and_commit_before_they_answer(guide: ModuleType) -> None:
    from fastapi.testclient import TestClient
    from sqlalchemy import event

    log: list[str] = []
    for database in (guide.database.sync_engine, guide.blocking_sessions.kw["bind"]):
        event.listen(database, "commit", lambda connection: log.append("commit"))
    with TestClient(_logged(guide.app, log)) as client:
        for number, path in enumerate(("orders", "parcels", "letters")):
            for article, status in (("chair", 200), ("chair", 200), ("table", 409)):
                log.clear()
                assert client.put(f"/{path}/{number}?article={article}").status_code == status
                commits = ["commit"] if status == 200 else []
                assert log == [*commits, "http.response.start", "http.response.body"]
            assert client.get(f"/orders/{number}").json() == "parcel with chair"
        assert client.get("/orders/99").status_code == 404


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_a_session_of_the_usual_scope_commits_after_the_answer(guide: ModuleType) -> None:
    from fastapi import Depends
    from fastapi.testclient import TestClient
    from sqlalchemy import event

    async def put_late(session: object = Depends(guide.get_session)) -> None:
        await session.execute(guide.INSERT, {"number": 1, "article": "chair"})  # type: ignore[attr-defined] # of the page

    guide.app.put("/late")(put_late)
    log: list[str] = []
    with TestClient(_logged(guide.app, log)) as client:
        event.listen(guide.database.sync_engine, "commit", lambda connection: log.append("commit"))
        assert client.put("/late").status_code == 200
    assert log == ["http.response.start", "http.response.body", "commit"]
