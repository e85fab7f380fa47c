"""The documentation is true: every Python snippet runs, every command line parses, every link and every named file
exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.app import cli
from tests.cli.conftest import parse_command

ROOT = Path(__file__).parent.parent
#: Pages that lead a reader through the source.
MAPS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *MAPS, *sorted({*(ROOT / "docs").rglob("*.md")} - {*MAPS})]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: A file or folder in backticks: with a slash, or with the ending of a source file.
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w.-]+\.(?:py|sql|toml|json|yaml))`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")

#: Runs the snippets of one page one after the other in one module, as a reader would; `await` needs no function around
#: it.
RUNNER = """
import ast, asyncio, inspect, logging, pathlib, sys, types
# Some runs fail or expire on purpose.
for name in ("perdure.execution", "perdure.store"):
    logging.getLogger(name).setLevel("CRITICAL")
# A busy machine alone may block a loop.
logging.getLogger("perdure.worker").addFilter(lambda record: "was blocked for" not in record.msg)
page = types.ModuleType("page")
sys.modules["page"] = page
with asyncio.Runner() as runner:
    for number, source in enumerate(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").split("\\x1e")):
        code = compile(source, f"snippet {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, vars(page)))
        else:
            exec(code, vars(page))
"""


def snippets(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


#: Programs of recipes are executed by `tests/site/test_recipes.py`, which compares their output.
RUN = [page for page in PAGES if snippets(page, "python") and page.parent.name != "recipes"]


@pytest.mark.parametrize("page", RUN, ids=named)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    sources = tmp_path / "snippets"
    sources.write_text("\x1e".join(snippets(page, "python")), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, str(sources)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""


@pytest.mark.parametrize("page", [page for page in RUN if page.parent.name != "decisions"], ids=named)
def test_a_page_tells_before_await_stands_outside_of_a_function(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        if fence[1] == "python" and not _is_a_file(fence[2]):
            assert "#await-outside-of-a-function)" in text[: fence.start()], fence[2]


def _is_a_file(source: str) -> bool:
    try:
        compile(source, "a file", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def command_lines() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in snippets(page, "sh"):
            for line in block.splitlines():
                command = line.partition(" #")[0].strip()
                if command:
                    yield named(page), command


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_a_command_line_exists(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(line)
    match program:
        case "perdure":
            _check_perdure(words)
        case "make":
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert words[0] in targets
        case "pip":
            assert words[0] == "install"
        case "python" if words[0] == "manage.py":
            # Commands of Django, and of the app `perdure.django`, which passes them on to the engine of the project.
            monkeypatch.setenv("PERDURE_URL", "perdure.django.target:engine")
            assert words[1] in ("perdure", "migrate", "runserver")
            if words[1] == "perdure":
                _check_perdure(words[2:])
        case "flask":
            # The group of `perdure.flask`, which passes commands on to the engine of the application.
            monkeypatch.setenv("PERDURE_URL", "perdure.flask:current_engine")
            assert words[:3] == ["--app", "shop", "perdure"]
            _check_perdure(words[3:])
        case "python":
            assert words[0] == "-m" or (ROOT / words[0]).exists()
        case _:
            pytest.fail(f"{page} shows {line!r}, which this test does not know")


def _check_perdure(words: list[str]) -> None:
    # Parsing checks options and the number of arguments, and runs nothing.
    parse_command(cli, ["perdure", *words])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", MAPS, ids=named)
def test_every_file_named_on_a_page_exists(page: Path) -> None:
    paths = PATH.findall(page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not any((base / path).exists() for base in (ROOT / "src" / "perdure", ROOT))]
    assert missing == []


def test_the_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= 3500


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    [example] = snippets(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 24
