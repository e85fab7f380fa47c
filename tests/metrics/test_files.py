"""Dashboard, alerts and autoscaling: every series that they name exists, with the labels that they use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from perdure.metrics import INSTRUMENTS
from perdure.metrics.instruments import Kind

FOLDER = Path(__file__).parent.parent.parent / "examples" / "metrics"
#: Labels that Prometheus itself adds.
ADDED = {"instance", "job"}


def samples() -> dict[str, set[str]]:
    """Names of all samples, and their labels."""
    found: dict[str, set[str]] = {}
    for one in INSTRUMENTS.values():
        if one.kind is Kind.HISTOGRAM:
            found[f"{one.name}_bucket"] = {*one.labels, "le"}
            found[f"{one.name}_sum"] = found[f"{one.name}_count"] = set(one.labels)
        else:
            found[one.name] = set(one.labels)
    return found


def expressions(name: str) -> Iterator[str]:
    text = (FOLDER / name).read_text()
    if name == "grafana.json":
        dashboard = json.loads(text)
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"].replace("$__rate_interval", "5m").replace("$type", ".*")
    elif name == "alerts.yml":
        for group in yaml.safe_load(text)["groups"]:
            for rule in group["rules"]:
                yield rule["expr"]
    else:
        for document in yaml.safe_load_all(text):
            for trigger in document["spec"].get("triggers", ()):
                yield trigger["metadata"]["query"]


def selectors(node: Any) -> Iterator[Any]:
    """The selectors of series in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(node, name, None)
        if inner is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for inner in getattr(node, "args", ()):
        yield from selectors(inner)


def grouped(node: Any) -> Iterator[tuple[set[str], set[str]]]:
    """Labels by which the expression groups, and those of the series below."""
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        below: set[str] = set().union(*(samples()[one.name] for one in selectors(node.expr)))
        yield set(node.modifier.labels), below
    for name in ("expr", "lhs", "rhs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from grouped(inner)
    for inner in getattr(node, "args", ()):
        yield from grouped(inner)


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml", "keda.yml"])
def test_every_series_that_a_file_names_exists_with_its_labels(name: str) -> None:
    known, found = samples(), 0
    for expression in expressions(name):
        tree = promql_parser.parse(expression)
        for selector in selectors(tree):
            found += 1
            assert selector.name in known, expression
            assert {one.name for one in selector.matchers.matchers} <= known[selector.name] | ADDED, expression
        for by, below in grouped(tree):
            assert by <= below | ADDED, expression
    assert found


def test_the_dashboard_shows_every_instrument() -> None:
    shown = {
        one.name for expression in expressions("grafana.json") for one in selectors(promql_parser.parse(expression))
    }
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown}
    assert names == INSTRUMENTS.keys()


def test_every_alert_says_what_to_do_and_has_a_name_of_its_own() -> None:
    rules = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_configuration_of_prometheus_reads_the_alerts() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert all((FOLDER / name).exists() for name in configuration["rule_files"])
