"""Scrapes: a text read by the parser of `prometheus_client`, and questions about it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {one.name: one for one in text_string_to_metric_families(text)}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of a sample; None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def by(self, name: str, label: str) -> Mapping[str, float]:
        """Sums of the samples of a name by one label."""
        found: dict[str, float] = {}
        for (one, labels), value in self.samples.items():
            if one == name:
                key = dict(labels)[label]
                found[key] = found.get(key, 0.0) + value
        return found


def scrape(port: int) -> Scrape | None:
    """Scrape an end point; None if nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return Scrape(answer.read().decode())
    except (urllib.error.URLError, ConnectionError):
        return None
