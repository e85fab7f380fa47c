"""The small Prometheus of the tests, held against values that Prometheus itself gives or documents."""

from __future__ import annotations

import math

import pytest

from tests.metrics.promql import Alerts, Prometheus, duration


def scraped(*texts: str | None, every: float = 15.0, instance: str = "one") -> Prometheus:
    """Scrapes of one target, from the time 0 on."""
    found = Prometheus()
    for number, text in enumerate(texts):
        found.scraped(number * every, instance, text)
    return found


def value(data: Prometheus, expression: str, time: float) -> float | None:
    found = data.query(expression, time)
    assert len(found) <= 1
    return next(iter(found.values()), None)


def counters(*values: float) -> list[str]:
    return [f"# TYPE calls counter\ncalls_total {one}\n" for one in values]


def test_rates_are_extrapolated_to_the_ends_of_the_range_and_see_resets() -> None:
    data = scraped(*counters(0, 15, 30, 45, 60))
    assert value(data, "rate(calls_total[1m])", 60) == pytest.approx(1.0)
    assert value(data, "increase(calls_total[1m])", 60) == pytest.approx(60.0)
    # A restart counts as an increase from zero; the sample at the very beginning is not in the range.
    assert value(scraped(*counters(100, 115, 30)), "increase(calls_total[30s])", 30) == pytest.approx(30.0 * 2)
    assert value(data, "rate(calls_total[10s])", 60) is None


def test_a_counter_is_not_extrapolated_to_less_than_zero() -> None:
    data = scraped(*counters(1, 2), every=10.0)
    assert value(data, "increase(calls_total[1m])", 10) == pytest.approx(1 + 1 * 0.5)


def test_a_series_that_is_missing_in_a_scrape_has_no_value() -> None:
    data = scraped("up_or_down 1\n", "other 1\n", None)
    assert value(data, "up_or_down", 14) == 1
    assert value(data, "up_or_down", 15) is None
    assert value(data, "up", 15) == 1
    assert value(data, "up", 30) == 0


def test_a_quantile_is_between_the_bounds_of_its_bucket() -> None:
    text = 'took_bucket{le="0.1"} 10\ntook_bucket{le="0.5"} 30\ntook_bucket{le="+Inf"} 40\n'
    data = scraped(f"# TYPE took histogram\n{text}took_count 40\ntook_sum 1\n")
    assert value(data, "histogram_quantile(0.5, took_bucket)", 0) == pytest.approx(0.3)
    assert value(data, "histogram_quantile(0.99, took_bucket)", 0) == 0.5
    assert value(data, "histogram_quantile(0.5, sum by (le) (took_bucket))", 0) == pytest.approx(0.3)


def test_aggregations_comparisons_and_sets_are_those_of_prometheus() -> None:
    data = scraped('depth{queue="a"} 1\ndepth{queue="b"} 5\nbound{queue="a"} 1\nbound{queue="b"} 9\n')
    assert value(data, "sum(depth)", 0) == 6
    assert value(data, 'max by (queue) (depth{queue=~"b|c"})', 0) == 5
    assert value(data, 'depth{queue!="b"} + 1', 0) == 2
    assert value(data, "depth > 1", 0) == 5
    assert value(data, "depth == 1 and bound == 1", 0) == 1
    assert value(data, "depth / bound > 0.9", 0) == 1
    assert value(data, "(sum(missing) or vector(0)) == 0", 0) == 0
    assert math.isnan(value(data, "(sum(depth) - 6) / (sum(depth) - 6)", 0) or 0.0)


def test_what_is_not_evaluated_is_refused() -> None:
    for expression in ("deriv(depth[5m])", "depth * on (queue) depth", "-depth"):
        with pytest.raises(NotImplementedError, match="not evaluated"):
            scraped("depth 1\n").query(expression, 0)


def test_an_alert_fires_after_its_time_and_is_resolved() -> None:
    rule = {
        "alert": "Deep",
        "expr": "max by (queue) (depth) > 2",
        "for": "30s",
        "labels": {"severity": "page"},
        "annotations": {"summary": "{{ $labels.queue }} has {{ $value }}", "action": "none"},
    }
    alerts, data = Alerts([rule]), Prometheus()
    for number, depth in enumerate((1, 3, 3, 4, 1, 3)):
        data.scraped(number * 15.0, "one", f'depth{{queue="a"}} {depth}\n')
        alerts.evaluate(data, number * 15.0)
    assert [(one.time, one.state, one.summary) for one in alerts.changes] == [
        (45.0, "firing", "a has 4"),
        (60.0, "resolved", "a has nan"),
    ]
    assert alerts.firing == set()


def test_durations_have_units() -> None:
    assert duration("1m30s") == 90
