"""A small Prometheus for tests: it keeps scrapes, evaluates PromQL, and evaluates alert rules over time.

It knows what the files of `examples/metrics` use: selectors with ranges, rates, quantiles of histograms, aggregations,
arithmetic, comparisons and set operators. Anything else raises `NotImplementedError`.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import promql_parser
from msgspec import Struct, field
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

#: Seconds for which a sample counts as current.
LOOK_BACK = 300.0

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = {
    "sum": math.fsum, "max": max, "min": min, "count": len, "avg": lambda values: math.fsum(values) / len(values),
}  # fmt: skip


class Samples(Struct):
    """The samples of one series in order of time. A series that is missing in a scrape gets NaN, as a stale marker."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, time: float) -> float:
        """The value at a time; NaN: there is none."""
        last = bisect_right(self.times, time) - 1
        return self.values[last] if last >= 0 and self.times[last] > time - LOOK_BACK else math.nan

    def within(self, begin: float, end: float) -> list[tuple[float, float]]:
        """The samples after `begin`, up to `end`."""
        part = slice(bisect_right(self.times, begin), bisect_right(self.times, end))
        pairs = zip(self.times[part], self.values[part], strict=True)
        return [(time, value) for time, value in pairs if not math.isnan(value)]


class Prometheus:
    """Scrapes of some targets, and questions about them."""

    def __init__(self) -> None:
        self.series: dict[str, dict[Labels, Samples]] = {}
        self.help: dict[str, tuple[str, str]] = {}

    def scraped(self, time: float, instance: str, text: str | None) -> None:
        """Keep a scrape of a target; None: it did not answer."""
        target: tuple[str, str] = ("instance", instance)
        found: dict[tuple[str, Labels], float] = {("up", frozenset({target})): 0.0 if text is None else 1.0}
        for family in text_string_to_metric_families(text or ""):
            self.help[family.name] = family.type, family.documentation
            for sample in family.samples:
                found[sample.name, frozenset({*sample.labels.items(), target})] = sample.value
        for (name, labels), value in found.items():
            self._add(self.series.setdefault(name, {}).setdefault(labels, Samples()), time, value)
        for name, known in self.series.items():
            for labels, samples in known.items():
                if target in labels and (name, labels) not in found and not math.isnan(samples.values[-1]):
                    self._add(samples, time, math.nan)

    @staticmethod
    def _add(samples: Samples, time: float, value: float) -> None:
        samples.times.append(time)
        samples.values.append(value)

    def query(self, expression: str, time: float) -> Vector:
        """The instant vector of an expression."""
        found = _Evaluation(self, time).of(promql_parser.parse(expression))
        return found if isinstance(found, dict) else {frozenset(): found}


class _Evaluation:
    """The evaluation of expressions at one time."""

    def __init__(self, data: Prometheus, time: float) -> None:
        self._data = data
        self._time = time

    def of(self, node: Any) -> Vector | float:
        kind = type(node).__name__
        evaluate: Callable[[Any], Vector | float] | None = getattr(self, f"_{kind.lower()}", None)
        if evaluate is None:
            raise NotImplementedError(f"expressions of the kind {kind} are not evaluated")
        return evaluate(node)

    def _vector(self, node: Any) -> Vector:
        found = self.of(node)
        assert isinstance(found, dict)
        return found

    def _numberliteral(self, node: Any) -> float:
        return float(node.val)

    def _parenexpr(self, node: Any) -> Vector | float:
        return self.of(node.expr)

    def _selected(self, node: Any) -> Iterable[tuple[Labels, Samples]]:
        assert node.offset is None
        assert node.at is None
        for labels, samples in self._data.series.get(node.name, {}).items():
            if all(_matches(one, dict(labels).get(one.name, "")) for one in node.matchers.matchers):
                yield labels, samples

    def _vectorselector(self, node: Any) -> Vector:
        values = {labels: samples.at(self._time) for labels, samples in self._selected(node)}
        return {labels: value for labels, value in values.items() if not math.isnan(value)}

    def _call(self, node: Any) -> Vector:
        name, arguments = node.func.name, node.args
        if name in ("rate", "increase"):
            return self._rates(arguments[0], per_second=name == "rate")
        if name == "vector":
            return {frozenset(): float(arguments[0].val)}
        if name == "histogram_quantile":
            return _quantiles(float(arguments[0].val), self._vector(arguments[1]))
        raise NotImplementedError(f"the function {name} is not evaluated")

    def _rates(self, node: Any, *, per_second: bool) -> Vector:
        seconds = node.range.total_seconds()
        found: Vector = {}
        for labels, samples in self._selected(node.vector_selector):
            increase = _increase(samples.within(self._time - seconds, self._time), self._time - seconds, self._time)
            if increase is not None:
                found[labels] = increase / seconds if per_second else increase
        return found

    def _aggregateexpr(self, node: Any) -> Vector:
        groups: dict[Labels, list[float]] = {}
        by = set(node.modifier.labels) if node.modifier is not None else set()
        excludes = node.modifier is not None and "Without" in str(node.modifier.type)
        for labels, value in self._vector(node.expr).items():
            key = frozenset(one for one in labels if (one[0] in by) is not excludes)
            groups.setdefault(key, []).append(value)
        aggregate = _AGGREGATIONS[str(node.op)]
        return {labels: float(aggregate(values)) for labels, values in groups.items()}

    def _binaryexpr(self, node: Any) -> Vector | float:
        if node.modifier is not None and node.modifier.matching is not None:
            raise NotImplementedError("on() and ignoring() are not evaluated")
        left, right, symbol = self.of(node.lhs), self.of(node.rhs), str(node.op)
        if symbol in ("and", "or", "unless"):
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            return _combined(symbol, left, right)
        if not isinstance(left, dict) and not isinstance(right, dict):
            return _arithmetic(symbol, left, right)
        if isinstance(left, dict) and isinstance(right, dict):
            pairs = {labels: (left[labels], right[labels]) for labels in left if labels in right}
        elif isinstance(left, dict):
            assert not isinstance(right, dict)
            pairs = {labels: (value, right) for labels, value in left.items()}
        else:
            assert isinstance(right, dict)
            pairs = {labels: (left, value) for labels, value in right.items()}
        if symbol not in _COMPARISONS:
            return {labels: _arithmetic(symbol, *pair) for labels, pair in pairs.items()}
        kept = {labels: pair for labels, pair in pairs.items() if _COMPARISONS[symbol](*pair)}
        return {labels: pair[0] if isinstance(left, dict) else pair[1] for labels, pair in kept.items()}


def _matches(matcher: Any, value: str) -> bool:
    kind = str(matcher.op).rpartition(".")[2]
    if kind in ("Equal", "NotEqual"):
        return (value == matcher.value) is (kind == "Equal")
    return (re.fullmatch(matcher.value, value) is not None) is (kind == "Re")


def _arithmetic(symbol: str, left: float, right: float) -> float:
    if symbol == "/" and not right:
        return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)
    return _OPERATIONS[symbol](left, right)


def _combined(symbol: str, left: Vector, right: Vector) -> Vector:
    if symbol == "or":
        return right | left
    return {labels: value for labels, value in left.items() if (labels in right) is (symbol == "and")}


def _increase(samples: list[tuple[float, float]], begin: float, end: float) -> float | None:
    """Increase of a counter between two times, extrapolated to both as Prometheus does."""
    if len(samples) < 2:
        return None
    (first_time, first), (last_time, last) = samples[0], samples[-1]
    resets = sum(before for (_, before), (_, after) in pairwise(samples) if after < before)
    increase = last - first + resets
    covered, mean = last_time - first_time, (last_time - first_time) / (len(samples) - 1)
    to_begin, to_end = first_time - begin, end - last_time
    if to_begin > 1.1 * mean:
        to_begin = mean / 2
    if increase > 0 and first >= 0:
        # A counter does not become less than zero.
        to_begin = min(to_begin, covered * first / increase)
    if to_end > 1.1 * mean:
        to_end = mean / 2
    return increase * (covered + to_begin + to_end) / covered


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        histograms.setdefault(frozenset(one for one in labels if one[0] != "le"), []).append((bound, count))
    return {labels: _quantile(quantile, sorted(pairs)) for labels, pairs in histograms.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total or math.isnan(total):
        return math.nan
    rank = quantile * total
    place = min(bisect_left([count for _, count in buckets], rank), len(buckets) - 1)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    lower, below = buckets[place - 1] if place else (0.0, 0.0)
    upper, count = buckets[place]
    return lower + (upper - lower) * (rank - below) / (count - below)


class Change(Struct, frozen=True):
    """A change of the state of one alert."""

    time: float
    state: str
    alert: str
    severity: str
    labels: dict[str, str]
    value: float
    summary: str
    action: str


class _Active(Struct):
    since: float
    firing: bool = False


class Alerts:
    """The state of alert rules. Evaluate them in order of time."""

    def __init__(self, rules: Iterable[Mapping[str, Any]]) -> None:
        self._rules = list(rules)
        self._active: dict[tuple[str, Labels], _Active] = {}
        self.changes: list[Change] = []

    @property
    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {name for (name, _), one in self._active.items() if one.firing}

    def evaluate(self, data: Prometheus, time: float) -> None:
        """Evaluate all rules at a time."""
        for rule in self._rules:
            name, found = rule["alert"], data.query(rule["expr"], time)
            for labels, value in found.items():
                active = self._active.setdefault((name, labels), _Active(time))
                if not active.firing and time - active.since >= duration(rule.get("for", "0s")):
                    active.firing = True
                    self._note(time, "firing", rule, labels, value)
            for key in [key for key in self._active if key[0] == name and key[1] not in found]:
                if self._active.pop(key).firing:
                    self._note(time, "resolved", rule, key[1], math.nan)

    def _note(self, time: float, state: str, rule: Mapping[str, Any], labels: Labels, value: float) -> None:
        known = dict(labels)

        def filled(text: str) -> str:
            text = re.sub(r"\{\{ *\$labels\.(\w+) *\}\}", lambda one: known.get(one[1], ""), text)
            return re.sub(r"\{\{ *\$value *\}\}", f"{value:g}", text)

        notes = {key: filled(text) for key, text in rule["annotations"].items()}
        self.changes.append(Change(time, state, rule["alert"], rule["labels"]["severity"], known, value, **notes))


def duration(text: str) -> float:
    """Seconds of a duration such as `1m30s`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))
