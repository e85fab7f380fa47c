"""Files that a code host shows to people who report something."""

from __future__ import annotations

from pathlib import Path

import yaml
from click.testing import CliRunner

from perdure.cli.app import cli

ROOT = Path(__file__).parent.parent.parent
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def test_the_forms_for_issues_are_complete() -> None:
    assert {path.stem for path in FORMS} == {"bug", "documentation", "feature"}
    for path in FORMS:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        fields = [one for one in form["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in fields}) == len(fields)
        assert {one["type"] for one in fields} <= {"textarea", "input", "checkboxes"}
        assert any(one.get("validations", {}).get("required") for one in fields)


def test_the_policies_exist_and_the_command_of_the_form_works() -> None:
    assert (ROOT / "SECURITY.md").exists()
    assert (ROOT / "docs" / "versioning.md").exists()
    answer = CliRunner().invoke(cli, ["--version"])
    assert answer.exit_code == 0
