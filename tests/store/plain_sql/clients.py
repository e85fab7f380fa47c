"""Command-line clients of the databases, as producers without a driver use them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from urllib.parse import urlsplit

import pytest

from tests.servers.schemas import postgres_dsn

Rows = list[dict[str, str]]
Params = Mapping[str, str | int | None]


def _quoted(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


class Client(ABC):
    """A program that reads SQL and prints rows."""

    program: str

    def __init__(self, url: str) -> None:
        if shutil.which(self.program) is None:
            pytest.skip(f"the client {self.program} is not installed")
        self.url = url

    @abstractmethod
    def script(self, sql: str, params: Params) -> str:
        """Return the input of the program."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line."""

    def run(self, sql: str, **params: str | int | None) -> Rows:
        """Run a statement of `perdure sql`; return its rows."""
        script = self.script(sql, params)
        ran = subprocess.run(self.command(), input=script, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
        return self.rows(ran.stdout)

    @abstractmethod
    def rows(self, printed: str) -> Rows:
        """Parse the output into rows."""


class Sqlite(Client):
    """The client `sqlite3`."""

    program = "sqlite3"

    def script(self, sql: str, params: Params) -> str:
        given = "".join(
            f".parameter set :{name} {json.dumps(_quoted(value), ensure_ascii=False)}\n"
            for name, value in params.items()
            if value is not None
        )
        return f".timeout 10000\n.mode json\n.parameter init\n{given}{sql}\n"

    def command(self) -> list[str]:
        return [self.program, "-batch", "-bail", self.url.removeprefix("sqlite:///").partition("?")[0]]

    def rows(self, printed: str) -> Rows:
        return json.loads(printed) if printed.strip() else []


class Psql(Client):
    """The client `psql`."""

    program = "psql"

    def script(self, sql: str, params: Params) -> str:
        values = ", ".join(_quoted(value) for value in params.values())
        return f"PREPARE perdure AS\n{sql}\nEXECUTE perdure ({values});\n"

    def command(self) -> list[str]:
        return [self.program, "--no-psqlrc", "--quiet", "--csv", "--set", "ON_ERROR_STOP=1", postgres_dsn()]

    def rows(self, printed: str) -> Rows:
        return list(csv.DictReader(io.StringIO(printed)))


class Mariadb(Client):
    """The client `mariadb`."""

    program = "mariadb"

    def script(self, sql: str, params: Params) -> str:
        given = ", ".join(f"@{name} = {_quoted(value)}" for name, value in params.items())
        return f"SET {given};\n{sql}\n"

    def command(self) -> list[str]:
        url = urlsplit(self.url)
        login = [f"--host={url.hostname}", f"--port={url.port}", f"--user={url.username}", f"--password={url.password}"]
        charset = "--default-character-set=utf8mb4"
        return [
            self.program,
            "--no-defaults",
            "--protocol=tcp",
            charset,
            "--batch",
            "--raw",
            *login,
            url.path.lstrip("/"),
        ]

    def rows(self, printed: str) -> Rows:
        return list(csv.DictReader(io.StringIO(printed), delimiter="\t", quoting=csv.QUOTE_NONE))


CLIENTS: dict[str, type[Client]] = {"sqlite": Sqlite, "postgres": Psql, "mysql": Mariadb}
