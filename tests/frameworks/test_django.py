"""`perdure.django` with the real framework: servers and workers that are killed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.frameworks.serving import EXAMPLES, new_database, pause, processes

EXAMPLE = EXAMPLES / "django"
WORKER = ("manage.py", "perdure", "worker", "--settings", "shop.settings", "--lease", "2s")
LIBRARIES = ("django.contrib.admin.sites", "django.db.backends.postgresql.base", "asyncpg", "perdure.cli.workers")
LOG_IN = """
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
user = User.objects.create_user("ann", is_staff=True, is_superuser=True)
session = SessionStore()
session.update({"_auth_user_id": str(user.pk), "_auth_user_hash": user.get_session_auth_hash()})
session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
session.save()
print(f"session: {session.session_key}.")
"""
GUNICORN = ("-m", "gunicorn", "shop.wsgi", "--workers", "2", "--preload", "--timeout", "90", "--bind", "127.0.0.1:0")
SERVERS = {
    "runserver": (("manage.py", "runserver", "--noreload", "0"), r"server at (http://\S+)/"),
    "gunicorn": (GUNICORN, r"Listening at: (http://\S+)"),
    "uvicorn": (("-m", "uvicorn", "shop.asgi:application", "--port", "0"), r"running on (http://\S+)"),
}


@pytest.mark.parametrize("server", SERVERS if os.environ.get("PERDURE_PROVE") else ["runserver"])
def test_the_example_survives_the_loss_of_its_worker(tmp_path: Path, server: str) -> None:
    command, until = SERVERS[server]
    settings = {"DASHBOARD": "/perdure/", "DJANGO_SETTINGS_MODULE": "shop.settings"}
    with new_database() as url, processes(EXAMPLE, tmp_path, *LIBRARIES, DATABASE_URL=url, **settings) as made:
        made.run("manage.py", "migrate")
        session = re.findall(r"session: (\w+)\.", made.run("manage.py", "shell", "-c", LOG_IN))[0]
        serving, found = made.start(*command, until=until)
        with httpx.Client(base_url=found[1], timeout=90) as client:
            assert client.put("/orders/1").status_code == 422
            for _ in range(2):
                assert client.put("/orders/1?article=chair").json() == {"run": "order-1"}
            assert client.put("/orders/1?article=table").status_code == 409
            first, _ = made.start(*WORKER, until="has started")
            assert client.get("/orders/1/greeting").text == "hello buyer of chair"
            assert client.get("/orders/1/stage").text == "packing"
            first.kill()
            second, _ = made.start(*WORKER)
            assert client.post("/orders/1/payment?cents=900").text == "parcel with chair for 900 cents"
            client.cookies.set("sessionid", session)
            assert "/admin/perdure/dashboardlink/" in client.get("/admin/").text
            assert client.get("/admin/perdure/dashboardlink/").headers["location"] == "/perdure/"
            if server == "uvicorn":
                assert "parcel with chair" in client.get("/perdure/runs/order-1").text
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT * FROM shop_order").fetchall() == [(1, "chair", 1, True)]
        serving.stop()
        _check_connections(url)
        assert second.stop() == 0
        assert "Traceback" not in made.noise()


def run_tests_of_the_example(tmp_path: Path, *command: str, **environment: str) -> None:
    folder = tmp_path / "django"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.db*"))
    (folder / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = shop.settings\npython_files = tests.py\n")
    given = {**os.environ, **environment}
    ran = subprocess.run([sys.executable, *command], cwd=folder, env=given, capture_output=True, text=True, check=False)
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told
    assert re.search(r"Ran 3 tests|3 passed", told), told


def test_the_tests_of_the_example_pass_with_pytest_django(tmp_path: Path) -> None:
    run_tests_of_the_example(tmp_path, "-m", "pytest", "-p", "pytest_django", "-n", "0")


def test_the_tests_of_the_example_leave_no_connection_to_their_database(tmp_path: Path) -> None:
    with new_database() as url:
        # Django fails to drop a database to which a connection is open.
        run_tests_of_the_example(tmp_path, "manage.py", "test", "shop", DATABASE_URL=url)


def _check_connections(url: str) -> None:
    """Check that the worker has closed its connections, before its threads end by themselves after 30 s."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop-django'"
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + 10
        while (left := connection.execute(query).fetchall()) != [(0,)]:
            assert time.monotonic() < deadline, left
            pause()


def configure() -> None:
    """Give Django settings, unless another test did."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    settings.SECRET_KEY = "secret"


@contextmanager
def project(**given: Any) -> Iterator[None]:
    """A project in this process, beside the databases of other tests."""
    from django.test import override_settings

    configure()
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "perdure.django"]
    with override_settings(INSTALLED_APPS=apps, **given):
        yield


@contextmanager
def database(**options: Any) -> Iterator[str]:
    """The alias of one more database."""
    from django.db import connections

    configure()
    alias = f"frameworks-{len(connections.settings)}"
    known = dict(connections.settings)
    connections.settings.update(connections.configure_settings({"default": known["default"], alias: options}))
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/shop/a b.db")}, "sqlite:////shop/a%20b.db"),
        (
            {
                "ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ann", "PASSWORD": "a/b@c",
                "HOST": "db", "PORT": "5433", "OPTIONS": {"sslmode": "require", "pool": True},
            },
            "postgresql://ann:a%2Fb%40c@db:5433/shop?sslmode=require",
        ),
        (
            {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "/run/pg"},
            "postgresql:///shop?host=%2Frun%2Fpg",
        ),
    ],
)  # fmt: skip
def test_the_engine_is_on_the_database_of_the_settings(options: dict[str, Any], url: str) -> None:
    from perdure.django.project_settings import database_url
    from perdure.store.url import parse

    with database(**options) as alias, project(PERDURE={"DATABASE": alias}):
        assert database_url() == url
        where: Any = parse(url)
        assert not hasattr(where, "path") or where.path == str(options["NAME"])


def test_wrong_settings_are_reported() -> None:
    from django.core.exceptions import ImproperlyConfigured

    from perdure.django import start
    from perdure.django.project_settings import database_url
    from tests.frameworks.flows import count

    unknown = pytest.raises(ImproperlyConfigured, match="DATABSE.*its keys are DATABASE, URL")
    with project(PERDURE={"DATABSE": "default"}), unknown:
        database_url()
    with project(), pytest.raises(ImproperlyConfigured, match="in memory, and workers could not see it"):
        database_url()
    with project(PERDURE={"URL": "sqlite:///shop.db"}), pytest.raises(ImproperlyConfigured, match="start_on_commit"):
        start(count(1))


def test_starts_and_messages_belong_to_the_transaction(tmp_path: Path) -> None:
    from django.db import transaction

    from perdure.django import engine, send, start, start_on_commit
    from tests.frameworks.flows import approval, count

    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "shop.db"}
    with database(**options) as alias, project(PERDURE={"DATABASE": alias, "WORKFLOWS": ["tests.frameworks.flows"]}):
        shop = engine()
        assert shop is engine()
        shop.open()
        with pytest.raises(ValueError, match="no"), transaction.atomic(using=alias):
            start(approval(), id="rolled-back")
            start_on_commit(count(1), using=alias, id="never")
            raise ValueError("no")
        with transaction.atomic(using=alias):
            start(approval(), id="committed")
            send("committed", "approval", "yes")
            start_on_commit(count(2), using=alias, id="later")
            transaction.on_commit(lambda: seen.extend(run.id for run in shop.runs.list().runs), using=alias)
            seen: list[str] = []
        run = start(count(3), id="alone")
        send_later = start(approval(), id="sent-to")
        send("sent-to", "approval", "no")
        with shop.worker():
            assert (run.result(), shop.get("later").result(), send_later.result()) == (3, 2, "no")
            assert shop.get("committed").result() == "yes"
        assert set(seen) == {"committed", "later"}
        assert {one.id for one in shop.runs.list().runs} == {"committed", "later", "alone", "sent-to"}
        shop.close()


@contextmanager
def django_tests() -> Iterator[None]:
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment()
    try:
        yield
    finally:
        teardown_test_environment()


def test_outside_of_tests_neither_a_flush_nor_its_signal_deletes_a_run(tmp_path: Path) -> None:
    """Migrations of projects send the signal to create permissions."""
    from django.core.management import call_command
    from django.core.management.sql import emit_post_migrate_signal

    from perdure.django import engine, start
    from tests.frameworks.flows import count

    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "shop.db"}
    with database(**options) as alias, project(PERDURE={"DATABASE": alias, "WORKFLOWS": ["tests.frameworks.flows"]}):
        call_command("migrate", database=alias, verbosity=0)
        start(count(1), id="kept")
        emit_post_migrate_signal(verbosity=0, interactive=False, db=alias)
        call_command("flush", database=alias, verbosity=0, interactive=False)
        assert engine().runs.count().count == 1
        engine().close()


def test_in_tests_a_flush_deletes_runs_so_that_tests_do_not_find_those_of_others(tmp_path: Path) -> None:
    from django.core.management import call_command

    from perdure.django import engine, start
    from tests.frameworks.flows import count

    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "shop.db"}
    with (
        database(**options) as alias,
        project(PERDURE={"DATABASE": alias, "WORKFLOWS": ["tests.frameworks.flows"]}),
        django_tests(),
    ):
        call_command("migrate", database=alias, verbosity=0)
        for upto in (2, 3):
            # `TransactionTestCase` flushes after each test. A run of an earlier test would make this a RunExists.
            run = start(count(upto), id="same")
            with engine().worker():
                assert run.result() == upto
            call_command("migrate", database=alias, verbosity=0)
            assert engine().runs.count().count == 1
            call_command("flush", database=alias, verbosity=0, interactive=False)
            assert engine().runs.count().count == 0
        engine().close()


def test_a_worker_closes_the_connections_of_steps(tmp_path: Path) -> None:
    from asgiref.sync import sync_to_async
    from django.db import connections, transaction

    from perdure.django.connections import CloseConnections

    def connect(_: object) -> bool:
        connections[alias].ensure_connection()
        return is_open()

    def connect_and_fail(_: object) -> None:
        connect(None)
        raise ValueError

    def is_open() -> bool:
        return connections[alias].connection is not None

    def check() -> None:
        assert step(call, connect)
        assert not is_open()
        with pytest.raises(ValueError):
            step(call, connect_and_fail)
        assert not is_open()
        with transaction.atomic(using=alias):
            step(call, connect)
            assert is_open()

    async def check_async() -> None:
        assert await step(call, sync_to_async(connect))
        assert not await sync_to_async(is_open)()

    call: Any = None
    step = CloseConnections().step
    with database(ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "shop.db") as alias:
        check()
        asyncio.run(check_async())


class Backend:
    """Users without a table: permissions by name."""

    def get_user(self, name: int) -> User:
        return User(str(name))


class User:
    """A user of Django, as far as permissions go."""

    def __init__(self, name: str) -> None:
        self.name = name

    def has_perm(self, permission: str) -> bool:
        return permission == {"1": "perdure.view_runs", "2": "perdure.operate_runs"}.get(self.name)

    def get_username(self) -> str:
        return f"user {self.name}"


async def test_the_dashboard_knows_the_users_of_django(tmp_path: Path) -> None:
    from django.contrib.sessions.backends.signed_cookies import SessionStore

    backend = f"{__name__}.Backend"
    given: dict[str, Any] = {
        "PERDURE": {"URL": f"sqlite:///{tmp_path}/shop.db", "WORKFLOWS": ["tests.frameworks.flows"]},
        "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
        "AUTHENTICATION_BACKENDS": [backend],
        "ALLOWED_HOSTS": [".shop.example"],
        "ROOT_URLCONF": __name__,
        "LOGIN_URL": "/login/",
    }
    with project(**given):
        from perdure.django import async_engine
        from perdure.django.asgi import mount_dashboard
        from tests.frameworks.flows import count

        assert async_engine() is async_engine()
        async with async_engine() as engine:
            await engine.start(count(1), id="by-async-code")

        async def rest(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        application = mount_dashboard(rest)

        async def get(path: str, user: str | None = None, host: str = "www.shop.example") -> httpx.Response:
            session = SessionStore()
            session.update({"_auth_user_id": user, "_auth_user_backend": backend})
            session.save()
            cookies = None if user is None else {"sessionid": session.session_key or ""}
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}", cookies=cookies) as client:
                return await client.get(path)

        assert (await get("/other")).status_code == 204
        assert (await get("/perdure")).headers["location"] == "/perdure/"
        assert (await get("/perdure/runs")).headers["location"] == "/login/?next=%2Fperdure%2Fruns"
        assert "by-async-code" in (await get("/perdure/runs", "1")).text
        assert (await get("/perdure/runs", "3")).status_code == 303
        assert (await get("/perdure/runs", "1", host="shop.invalid")).status_code == 421
        for user, role in (("1", "viewer"), ("2", "operator")):
            session = (await get("/perdure/api/v1/session", user)).json()
            assert (session["name"], session["role"]) == (f"user:user {user}", role)
        messages = iter(["lifespan.startup", "lifespan.shutdown"])
        sent: list[str] = []

        async def receive() -> dict[str, str]:
            return {"type": next(messages)}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await application({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


urlpatterns: list[Any] = []
