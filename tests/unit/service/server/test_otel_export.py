"""Metrics that a service sends to a collector of OpenTelemetry: a server that decodes what arrives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from kit.servers.servers import free_ports
from millpond.errors import SetupError
from millpond.service.server.gauges import Gauges
from millpond.service.server.metrics.otel_setup import ENDPOINTS, INTERVAL, exporting
from unit.service.server.test_metrics import Bench


class Collector:
    """A collector; `next` waits for what is sent: the attributes of the process, and the metrics by name."""

    def __init__(self) -> None:
        received = self._received = queue.Queue[Any]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportMetricsServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                received.put(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def next(self) -> tuple[dict[str, str], dict[str, Any]]:
        (sent,) = self._received.get(timeout=60).resource_metrics
        attributes = {one.key: one.value.string_value for one in sent.resource.attributes}
        return attributes, {metric.name: metric for scope in sent.scope_metrics for metric in scope.metrics}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv(ENDPOINTS[1], made.url)
    monkeypatch.setenv(INTERVAL, "50")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,zone=a")
    yield made
    made.server.shutdown()
    made.server.server_close()


def values(metric: Any) -> dict[str, float]:
    """The values of a sum or a gauge by their labels, such as `pond_instance=0`."""
    points = getattr(metric, metric.WhichOneof("data")).data_points
    return {" ".join(sorted(f"{one.key}={one.value.string_value}" for one in point.attributes)): point.as_double
            for point in points}  # fmt: skip


def test_a_collector_gets_the_samples_of_a_scrape(tmp_path: Path, collector: Collector) -> None:
    bench = Bench(tmp_path)
    bench.leads()
    bench.epoch({"*": {"events": 4}, "q0": {"read": 4, "applied": 3, "late": 1}}, seconds=0.3)
    bench.epoch({"*": {"events": 4}, "q0": {"read": 4, "applied": 4}}, seconds=2.0)
    with exporting(bench.metrics.families, "http://me", print):
        attributes, found = collector.next()
        assert attributes.items() >= {"service.name": "shop", "zone": "a", "service.instance.id": "http://me"}.items()
        scraped = {name: value for name, value in bench.samples().items() if not name.startswith("process")}
        for name, metric in found.items():
            if metric.WhichOneof("data") != "histogram" and name.startswith("millpond"):
                end = "_total" if metric.HasField("sum") else ""
                for labels, value in values(metric).items():
                    assert scraped.pop(f"{name.removeprefix('millpond_')}{end} {labels}".strip()) == value or (
                        name == "millpond_last_epoch_age_seconds"
                    )
        left = {name.split(" ")[0] for name in scraped}
        histograms = ("epoch_duration_seconds", "epoch_step_duration_seconds")
        assert left == {f"{name}_{end}" for name in histograms for end in ("bucket", "count", "sum", "created")}
        assert found["millpond_events"].sum.is_monotonic and found["millpond_query_state_bytes"].unit == "By"
        (point,) = found["millpond_epoch_duration_seconds"].histogram.data_points
        counted = dict(zip([*point.explicit_bounds, 9e9], point.bucket_counts, strict=True))
        assert (point.count, counted[0.35], counted[2.5]) == (2, 1, 1) and point.sum == pytest.approx(2.3)
        steps = found["millpond_epoch_step_duration_seconds"].histogram.data_points
        counts = {tuple(sorted(one.value.string_value for one in step.attributes)): step.count for step in steps}
        assert counts[("driver", "job")] == counts[("gather", "gather")] == 2
        begun = found["millpond_events"].sum.data_points[0].start_time_unix_nano
        bench.gauges = Gauges(lambda: 0)  # the process takes the lead again
        while values(found["millpond_events"])[""]:
            _, found = collector.next()
        assert found["millpond_events"].sum.data_points[0].start_time_unix_nano > begun


def test_a_collector_that_is_down_is_reported_once_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said, tries = list[str](), threading.Semaphore(0)
    port = free_ports(1)[0]
    monkeypatch.setenv(ENDPOINTS[1], f"http://me:s3cret@127.0.0.1:{port}/in?key=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")
    monkeypatch.setenv(INTERVAL, "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with exporting(lambda: [tries.release()][:0], "me", said.append):  # type: ignore[func-returns-value]
        assert all(tries.acquire(timeout=60) for _ in range(3))
    assert len(said) == 1 and f"metrics cannot be sent to http://127.0.0.1:{port}. Check" in said[0], said
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry")]


def test_nothing_is_sent_unless_a_collector_is_named() -> None:
    def families() -> Any:
        raise AssertionError("nothing is requested from it")

    for environ in ({}, {ENDPOINTS[0]: "http://a", "OTEL_SDK_DISABLED": "true"}):
        with exporting(families, "me", print, environ):
            assert not [one for one in threading.enumerate() if one.name == "millpond-otel"]
    with pytest.raises(SetupError, match="OTEL_METRIC_EXPORT_INTERVAL is '1 s'"):
        exporting(families, "me", print, {ENDPOINTS[1]: "http://a", INTERVAL: "1 s"})
