"""What a reader of an incident gets: dashboard, alerts, metrics and traces, as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.metrics.promql import Alerts, Labels, Prometheus

#: Seconds between two columns of a table, and of `$__rate_interval`.
COLUMN = 60.0
RATES = "1m"
#: Traces that are printed as trees, spread over the time.
TREES = 24

ABOUT = """\
A shop runs on Perdure, a durable execution engine for Python, with PostgreSQL.
Two worker processes, worker-1:9464 and worker-2:9464, execute its runs; a producer starts about one order a second.
All was well at first. These files are what monitoring has recorded since then.

Times are minutes and seconds since the beginning.

alerts.txt     alerts that fired, with the time, and those that fire at the end
dashboard.txt  the panels of the Grafana dashboard, with a value for each minute; "." means no data
metrics.txt    all series of both workers without the buckets of histograms, with their help texts
traces.txt     a selection of recorded traces; one trace in ten is recorded
spans.jsonl    all recorded spans
"""


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def number(value: float) -> str:
    """A number in a table."""
    return "." if math.isnan(value) else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def write(folder: Path, data: Prometheus, alerts: Alerts, panels: Sequence[Any], begin: float, end: float) -> None:
    """Write what a reader gets; spans are in `spans.jsonl` already, with the times of the clock."""
    times = [begin + COLUMN * place for place in range(1, int((end - begin) / COLUMN) + 1)]
    (folder / "README.txt").write_text(ABOUT)
    (folder / "alerts.txt").write_text("\n".join(_alerts(alerts, begin)) + "\n")
    (folder / "dashboard.txt").write_text("\n".join(_dashboard(data, panels, times, begin)) + "\n")
    (folder / "metrics.txt").write_text("\n".join(_metrics(data, times, begin)) + "\n")
    spans = _relative_spans(folder / "spans.jsonl", begin)
    (folder / "spans.jsonl").write_text("".join(json.dumps(one) + "\n" for one in spans))
    (folder / "traces.txt").write_text("\n".join(_traces(spans)) + "\n")


def _alerts(alerts: Alerts, begin: float) -> Iterator[str]:
    yield "Changes:"
    for one in alerts.changes:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
        yield f"{clock(one.time - begin)}  {one.state:<8} {one.alert} ({one.severity}) {labels}".rstrip()
        if one.state == "firing":
            yield f"                 {one.summary}"
            yield f"                 {one.action}"
    yield ""
    yield f"Firing at the end: {', '.join(sorted(alerts.firing)) or 'none'}"


def _table(rows: Iterable[tuple[str, list[float]]]) -> Iterator[str]:
    shown = [(name, [number(value) for value in values]) for name, values in rows]
    width = max((len(name) for name, _ in shown), default=0)
    for name, values in shown:
        yield f"  {name:<{width}} " + " ".join(f"{value:>6}" for value in values)


def _dashboard(data: Prometheus, panels: Sequence[Any], times: list[float], begin: float) -> Iterator[str]:
    heads = " ".join(f"{clock(time - begin):>6}" for time in times)
    for panel in panels:
        if panel["type"] == "row":
            yield f"\n==== {panel['title']} ===="
            continue
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        unit = {"s": "seconds", "ops": "per second"}.get(unit, "")
        yield f"\n{panel['title']}{f' ({unit})' if unit else ''}. {panel.get('description', '')}".rstrip()
        rows: dict[str, dict[float, float]] = {}
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", RATES).replace("$type", ".*")
            for time in times:
                for labels, value in data.query(expression, time).items():
                    name = target["legendFormat"]
                    for label, text in labels:
                        name = name.replace("{{" + label + "}}", text)
                    rows.setdefault(name, {})[time] = value
        lines = list(_table((name, [found.get(time, math.nan) for time in times]) for name, found in rows.items()))
        if lines:
            yield f"  {'':<{len(lines[0]) - len(heads) - 3}} {heads}"
        yield from lines or ["  no data"]


def _metrics(data: Prometheus, times: list[float], begin: float) -> Iterator[str]:
    yield f"Columns: {' '.join(clock(time - begin) for time in times)}"
    for family, (kind, text) in sorted(data.help.items()):
        yield f"\n{family} ({kind}): {text}"
        endings = {"counter": ("_total",), "histogram": ("_count", "_sum")}.get(kind, ("",))
        for ending in endings:
            found = data.series.get(f"{family}{ending}", {})
            rows = ((ending + _shown(labels), found[labels]) for labels in sorted(found, key=sorted))
            yield from _table((name, [samples.at(time) for time in times]) for name, samples in rows)


def _shown(labels: Labels) -> str:
    return "{" + ", ".join(f"{name}={value}" for name, value in sorted(labels)) + "}"


def _relative_spans(path: Path, begin: float) -> list[dict[str, Any]]:
    """Return the spans in order, with times since the beginning."""
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    for one in spans:
        one["start"] = round(datetime.fromisoformat(one["start"]).timestamp() - begin, 3)
    return sorted(spans, key=lambda one: float(one["start"]))


def _traces(spans: Sequence[dict[str, Any]]) -> Iterator[str]:
    traces: dict[str, list[dict[str, Any]]] = {}
    for one in spans:
        traces.setdefault(one["trace_id"], []).append(one)
    yield f"{len(traces)} traces were recorded; this is a part of them."
    yield "Each line: start, duration in seconds, name, process, attributes. A span is exported when it has ended."
    whole = list(traces.values())
    for found in whole[:: max(1, math.ceil(len(whole) / TREES))]:
        yield f"\ntrace {found[0]['trace_id']}"
        ids = {one["span_id"] for one in found}
        for root in found:
            if root["parent_id"] not in ids:
                if root["parent_id"] is not None:
                    yield f"  (the parent {root['parent_id']} of the next span was not exported)"
                yield from _tree(root, found, "  ")


def _tree(span: dict[str, Any], spans: Sequence[dict[str, Any]], indent: str) -> Iterator[str]:
    attributes = " ".join(f"{name}={value}" for name, value in span["attributes"].items())
    status = f" ERROR {span['description'] or ''}" if span["status"] == "error" else ""
    minutes, seconds = divmod(span["start"], 60)
    start = f"{int(minutes):02}:{seconds:06.3f}"
    yield f"{start} {span['seconds']:>9.3f}s{indent}{span['name']} [{span['instance']}]{status} {attributes}"
    for one in spans:
        if one["parent_id"] == span["span_id"]:
            yield from _tree(one, spans, indent + "  ")
