"""`perdure lint`: output, exit codes and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.cli.app import run

WRONG = """
import time
from perdure import Context, workflow

@workflow("shop.v1")
async def flow(ctx: Context) -> float:
    return time.time()
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(WRONG)
    return tmp_path


def test_findings_are_lines_and_exit_code_1(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "app.py:7:12: PD001 time.time() reads the clock; a replay reads another time; use ctx.now()",
        "1 file checked, 1 finding.",
    ]


def test_clean_code_is_exit_code_0(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (app / "app.py").write_text(WRONG.replace("time.time()", "ctx.now().timestamp()"))
    assert run(["lint", "app.py"]) == 0
    assert capsys.readouterr().out == "1 file checked, no findings.\n"


@pytest.mark.parametrize("rule", ["PD001", "clock"])
def test_a_rule_can_be_left_out(rule: str, app: Path) -> None:
    assert run(["lint", ".", "--ignore", rule]) == 0


@pytest.mark.parametrize("arguments", [["nowhere.py"], ["--ignore", "PD999"], ["empty"], ["--unknown"]])
def test_misuse_is_exit_code_2(arguments: list[str], app: Path) -> None:
    (app / "empty").mkdir()
    assert run(["lint", *arguments]) == 2


def test_hidden_and_installed_folders_are_skipped(app: Path) -> None:
    for name in (".venv", "node_modules", "build"):
        (app / name).mkdir()
        (app / name / "bad.py").write_text("def f(:\n")
    assert run(["lint", "--ignore", "clock"]) == 0


def test_json_is_one_document(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "ok": False,
        "files": 1,
        "findings": [
            {
                "path": "app.py",
                "line": 7,
                "column": 12,
                "code": "PD001",
                "rule": "clock",
                "message": "time.time() reads the clock; a replay reads another time",
                "remedy": "use ctx.now()",
            }
        ],
    }
