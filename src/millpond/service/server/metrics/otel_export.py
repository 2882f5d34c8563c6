"""Converts the samples of `/metrics` to metrics of OpenTelemetry, and sends them to a collector."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from millpond.clock import Clock, now_us
from millpond.version import VERSION

_UNITS = {"seconds": "s", "bytes": "By"}


@contextmanager
def running(
    families: Callable[[], Iterable[Family]], instance: str, seconds: float, endpoint: str, say: Callable[[str], None]
) -> Iterator[None]:
    """Sends the families at an interval of `seconds`, in a thread; `say` is called when sending begins to fail.

    The SDK logs each failure, and headers with their values; these lines are left out.
    """
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    host = urlsplit(endpoint)._replace(path="", query="", fragment="")
    shown = host._replace(netloc=host.netloc.rpartition("@")[2]).geturl()
    exporter, batches, ended = OTLPMetricExporter(), Batches(families, instance), threading.Event()

    def send() -> None:
        fails = False
        while not ended.wait(seconds):
            why = ""
            try:
                sent = exporter.export(batches.batch()) is MetricExportResult.SUCCESS
            except Exception as error:  # the pond does not depend on its metrics
                sent, why = False, f" ({type(error).__name__})"
            if not sent and not fails and not ended.is_set():
                say(
                    f"Warning: metrics cannot be sent to {shown}{why}. Check the address and "
                    f"OTEL_EXPORTER_OTLP_HEADERS. The next try is in {seconds:g} seconds."
                )
            fails = not sent

    thread = threading.Thread(target=send, name="millpond-otel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        exporter.shutdown()
        thread.join(5)


class Batches:
    """Converts families of Prometheus to what an exporter of OpenTelemetry sends."""

    def __init__(self, families: Callable[[], Iterable[Family]], instance: str, clock: Clock = now_us) -> None:
        self._families, self._clock = families, clock
        own = {"service.name": "millpond", "service.version": VERSION, "service.instance.id": instance}
        given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if "OTEL_SERVICE_NAME" in os.environ:
            given += "service.name="
        self._resource = Resource.create({name: value for name, value in own.items() if f"{name}=" not in given})
        self._begun = self._clock() * 1000
        self._last: dict[str, float] = {}

    def batch(self) -> MetricsData:
        """The current values. Sums begin anew when one of them has decreased, because a process took the lead."""
        now, families = self._clock() * 1000, [*self._families()]
        totals = {one.name: one.value for family in families if family.type == "counter"
                  for one in family.samples if not one.labels}  # fmt: skip
        if any(value < self._last.get(name, 0.0) for name, value in totals.items()):
            self._begun = now
        self._last = totals
        metrics = [_metric(family, self._begun, now) for family in families if family.samples]
        scope = ScopeMetrics(InstrumentationScope("millpond", VERSION), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def _metric(family: Family, begun: int, now: int) -> Metric:
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    if family.type == "histogram":
        return Metric(family.name, family.documentation, unit, _histogram(family.samples, begun, now))
    points = [NumberDataPoint(one.labels, begun, now, float(one.value)) for one in family.samples]
    cumulative = AggregationTemporality.CUMULATIVE
    data = Sum(points, cumulative, is_monotonic=True) if family.type == "counter" else Gauge(points)
    name = family.name + ("_info" if family.type == "info" else "")
    return Metric(name, family.documentation, unit, data)


def _histogram(samples: Sequence[Sample], begun: int, now: int) -> Histogram:
    """The histogram of a family: one point for each set of labels."""
    labelled: dict[frozenset[tuple[str, str]], list[Sample]] = defaultdict(list)
    for one in samples:
        labelled[frozenset((name, value) for name, value in one.labels.items() if name != "le")].append(one)
    points = [_point(dict(labels), found, begun, now) for labels, found in labelled.items()]
    return Histogram(points, AggregationTemporality.CUMULATIVE)


def _point(labels: Mapping[str, str], samples: Sequence[Sample], begun: int, now: int) -> HistogramDataPoint:
    """The counts of one set of labels. `min` and `max` are unknown: infinite, as the SDK sends them."""
    found = {one.name.rpartition("_")[2]: one.value for one in samples}
    limits = [(float(one.labels["le"]), int(one.value)) for one in samples if "le" in one.labels]
    counts = [until - before for before, until in pairwise([0, *(count for _, count in limits)])]
    return HistogramDataPoint(
        labels, round(found["created"] * 1e9) if "created" in found else begun, now, int(found["count"]), found["sum"],
        counts, [limit for limit, _ in limits[:-1]], math.inf, -math.inf,
    )  # fmt: skip
