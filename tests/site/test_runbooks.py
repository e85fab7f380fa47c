"""Each alert has a runbook, and no runbook is left of an alert that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent


def test_each_alert_has_a_runbook() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "metrics" / "alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    page = (ROOT / "docs" / "operations" / "runbooks.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, flags=re.MULTILINE) == alerts
