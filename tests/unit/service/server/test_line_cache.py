"""The text of metrics with lines of earlier scrapes, compared with prometheus-client's own rendering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from millpond.service.server.metrics.line_cache import LineCache

Scrape = Sequence[tuple[str, str, float]]

FORMATS = ("", "text/plain; version=1.0.0; escaping=allow-utf-8", "application/openmetrics-text; version=1.0.0")
LABEL = st.text(st.sampled_from('a",\\\n\u2028 {}='), max_size=3)
SCRAPES = st.lists(
    st.lists(st.tuples(LABEL, LABEL, st.floats()), unique_by=lambda row: row[:2], max_size=5), min_size=1, max_size=4
)


class Families(NamedTuple):
    """What prometheus-client renders."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


def families(rows: Scrape) -> list[Metric]:
    """Families of all types that the service has; two of them have the same labels."""
    gauge = GaugeMetricFamily("heat", "How warm\nit is.", labels=("place", "kind"), unit="celsius")
    counter = CounterMetricFamily("seen", 'What was "seen".', labels=("kind", "place"))
    for place, kind, value in rows:
        gauge.add_metric([place, kind], value)
        counter.add_metric([place, kind], value)
    histogram = Histogram("took", "Time.", ("place",), registry=None)
    for place, _, value in rows:
        histogram.labels(place).observe(value)
    return [gauge, InfoMetricFamily("it", "What it is.", {"version": "1"}), counter, *histogram.collect()]


@given(SCRAPES, st.sampled_from(FORMATS))
def test_the_text_is_that_of_prometheus_client(scrapes: Sequence[Scrape], accept: str) -> None:
    encode, _ = choose_encoder(accept)
    lines = LineCache(encode)
    for rows in scrapes:
        found = families(rows)
        assert lines.exposition(found) == encode(Families(found))


@pytest.mark.parametrize("accept", FORMATS)
def test_labels_are_rendered_once_and_dropped_with_their_query(accept: str) -> None:
    rendered = list[int]()

    def counting(encode: Callable[[Families], bytes]) -> Callable[[Families], bytes]:
        def counted(given: Families) -> bytes:
            rendered.append(sum(len(family.samples) for family in given.collect()))
            return encode(given)

        return counted

    lines = LineCache(counting(choose_encoder(accept)[0]))
    counts = list[int]()
    for names in ("abc", "abc", "abcd", "d", "abc"):
        gauge = GaugeMetricFamily("keys", "Keys.", labels=("query",))
        for value, name in enumerate(names):
            gauge.add_metric([name], value)
        rendered.clear()
        lines.exposition([gauge])
        counts.append(sum(rendered))
    assert counts == [3, 0, 1, 0, 3]
