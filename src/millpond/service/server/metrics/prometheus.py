"""Exposes the metrics of a pond to Prometheus: what `status`, `list` and the newest epoch's record say, as numbers.

Names follow the conventions of Prometheus (https://prometheus.io/docs/practices/naming): base units, and `_total` for
numbers that only increase while a process leads. Labels are names of queries, streams, partitions, instances, hosts,
sinks and error codes only. Their number is bounded by what is declared, except that of hosts: only those of the newest
epoch are shown, but a pod that is replaced is a new host, and so a new time series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from millpond.model.endpoints import READ
from millpond.model.stream import source_names
from millpond.runtime.epoch import ROWS_READ, watermarks
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.task.counters import FATES, stream_counts
from millpond.service.api.messages import QueryShown, SourceShown, Status
from millpond.service.server.gauges import Gauges
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader, labelled_streams
from millpond.service.server.metrics.line_cache import LineCache
from millpond.version import VERSION

MOST_TYPES = 4
"""Of how many types of text the lines are kept: clients name the version of the format, so they could be many."""

Labelled = Iterable[tuple[tuple[object, ...], float]]


class Metrics:
    """The metrics of one process of the service, computed at each scrape.

    A standby reports what is in the log. `gauges`: returns the metrics of the pond that the process runs now.
    """

    def __init__(self, verbs: HostedPond, reader: LogReader, gauges: Callable[[], Gauges]) -> None:
        self._verbs, self._reader, self._gauges = verbs, reader, gauges
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self._lines: dict[str, LineCache] = {}

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text and the type of the text, chosen by the header `Accept` of the request.

        Raises:
            CorruptError, PlaceError: the log cannot be read.
        """
        encode, content_type = choose_encoder(accept)
        lines = self._lines.get(content_type)
        if lines is None:
            if len(self._lines) >= MOST_TYPES:
                self._lines = {}
            lines = self._lines[content_type] = LineCache(encode)
        return lines.exposition(self.families()), content_type

    def families(self) -> Iterable[Metric]:
        """All metrics, with those of the process; errors as `exposition`."""
        return self._registry.collect()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not call `collect` to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics, except those of the process; called by the registry."""
        gauges, status = self._gauges(), self._verbs.status()
        yield from _pond(status)
        yield from _epochs(status, gauges)
        yield from _instances(gauges)
        yield from _sources(status.sources)
        yield from self._streams(gauges)
        yield from _queries(self._verbs.queries())
        yield from _followers(status)

    def _streams(self, gauges: Gauges) -> Iterator[Metric]:
        found = self._reader.now()
        if found is None:
            return
        manifest, streams = found[0].manifest, [(one.name, label) for one, label in labelled_streams(found[1])]
        sources = source_names(found[1].streams)
        marks = watermarks(manifest)
        yield _gauge(
            "stream_event_time_seconds", "The event time that all partitions of a stream have reached, since 1970.",
            ("stream",), (((label,), reached_us / 1e6) for name, label in streams
                          if name in marks and (reached_us := marks[name].at(0)) is not None),
        )  # fmt: skip
        yield _gauge(
            "partition_event_time_seconds", "The newest event time of a source partition, since 1970.",
            ("stream", "partition"), (((label, partition), newest / 1e6) for name, label in streams
                                      for partition, newest in manifest.max_time.get(name, {}).items()
                                      if partition not in (ANY_PARTITION, ROWS_READ)),
        )  # fmt: skip
        yield _gauge(
            "partition_idle", "1 for a source partition that the watermark does not wait for.", ("stream", "partition"),
            (((label, partition), 1) for name, label in streams
             if manifest.max_time.get(name, {}).keys() - {ANY_PARTITION, ROWS_READ}  # others have no event time
             for partition in manifest.idle.get(name, ())),
        )  # fmt: skip
        totals = {name: gauges.totals(stream_counts(name)) for name in sources}
        yield _counter(
            "stream_malformed_records", "Records that do not parse.", ("stream",),
            (((name,), total.malformed) for name, total in totals.items()),
        )  # fmt: skip
        yield _counter(
            "stream_dead_letters", "Dead letters that were written.", ("stream",),
            (((name,), total.dead_letters) for name, total in totals.items()),
        )  # fmt: skip


def _gauge(name: str, what: str, labels: tuple[str, ...] = (), values: Labelled = ()) -> Metric:
    family = GaugeMetricFamily(f"millpond_{name}", what, labels=labels)
    family.samples = _samples(family.name, labels, values)
    return family


def _counter(name: str, what: str, labels: tuple[str, ...] = (), values: Labelled = ()) -> Metric:
    family = CounterMetricFamily(f"millpond_{name}", what, labels=labels)
    family.samples = _samples(f"{family.name}_total", labels, values)
    return family


def _samples(name: str, labels: tuple[str, ...], values: Labelled) -> list[Sample]:
    """The samples of a family; `add_metric` takes twice as long, which shows with thousands."""
    return [Sample(name, dict(zip(labels, map(str, given), strict=True)), value) for given, value in values]


def _one(value: float | None) -> Labelled:
    return () if value is None else (((), value),)


def _pond(status: Status) -> Iterator[Metric]:
    yield InfoMetricFamily("millpond", "The version of Millpond.", {"version": VERSION})
    yield _gauge("leader", "1 if this process leads.", (), _one(status.role == "leader"))
    yield _gauge("log_record", "The number of the newest record of the log.", (), _one(status.record))
    yield _gauge("log_epoch", "The number of the newest epoch in the log.", (), _one(status.epoch))
    yield _gauge("queries", "Queries in force.", (), _one(status.queries))
    yield _gauge("instances", "Instances of the pond.", (), _one(status.instances))
    yield _gauge("buckets_moving", "Buckets whose state is on its way.", (), _one(status.buckets_moving))
    failures = 0 if status.failure is None else status.failure.failures
    yield _gauge("failures", "Failures in a row that stop epochs; 0 while epochs run.", (), _one(failures))
    yield _gauge(
        "takeover_seconds", "From the discovery that the previous leader failed to the claim.", (),
        _one(status.took_over_s),
    )  # fmt: skip
    codes = Counter(problem.partition("]")[0].lstrip("[") for problem in status.problems)
    yield _gauge(
        "problems", "Causes of incomplete results, by error code.", ("code",),
        (((code,), number) for code, number in codes.items()),
    )  # fmt: skip


def _epochs(status: Status, gauges: Gauges) -> Iterator[Metric]:
    total = gauges.totals()
    yield _counter("epochs", "Epochs that were committed.", (), _one(status.epochs))
    yield _counter("events", "Events that were read.", (), _one(status.events))
    yield _counter("read_bytes", "Bytes of the events that were read, as Arrow.", (), _one(total.bytes_read))
    yield _counter("moved_bytes", "Bytes of packets in the shuffle.", (), _one(total.bytes_moved))
    yield _counter(
        "worker_seconds", "Time that Python workers spent, without waiting for input.", ("step",),
        ((("gather",), total.gather_us / 1e6), (("fold",), total.fold_us / 1e6)),
    )  # fmt: skip
    yield _gauge("last_epoch_age_seconds", "Time since the last epoch.", (), _one(status.since_epoch_s))
    yield from gauges.durations()


def _instances(gauges: Gauges) -> Iterator[Metric]:
    found = gauges.instances()
    yield _counter(
        "instance_fold_seconds", "Time that an instance spent folding.", ("pond_instance",),
        (((name,), one.fold_us / 1e6) for name, one in found.items()),
    )  # fmt: skip
    yield _counter(
        "instance_delta_bytes", "Bytes of state and rows that an instance committed.", ("pond_instance",),
        (((name,), one.delta_bytes) for name, one in found.items()),
    )  # fmt: skip
    yield _gauge(
        "instance_host", "1 for the host on which an instance was folded in the newest epoch.",
        ("pond_instance", "host"), ((place, 1) for place in gauges.hosts().items()),
    )  # fmt: skip


def _sources(sources: Iterable[SourceShown]) -> Iterator[Metric]:
    known = [one for one in sources if one.waiting is not None]
    yield _gauge(
        "source_waiting", "Records, or files of the current epoch, that are not committed yet.", ("stream", "unit"),
        (((one.stream, one.unit), one.waiting or 0) for one in known),
    )  # fmt: skip
    partitions = [((one.stream, part.topic, part.partition), part) for one in known for part in one.partitions]
    labels = ("stream", "topic", "partition")
    yield _gauge(
        "source_committed_offset", "The next offset of a partition that is not committed.", labels,
        ((name, part.committed) for name, part in partitions),
    )  # fmt: skip
    yield _gauge(
        "source_end_offset", "The offset after the newest record of a partition.", labels,
        ((name, part.end) for name, part in partitions),
    )  # fmt: skip


def _queries(queries: Iterable[QueryShown]) -> Iterator[Metric]:
    shown = list(queries)

    def of_each(field: str, unit: float = 1) -> Labelled:
        return (((one.name,), one.counts[field] / unit) for one in shown if field in one.counts)

    yield _gauge(
        "query_state", "1 for the state in which a query is.", ("query", "state"),
        (((one.name, one.state), 1) for one in shown),
    )  # fmt: skip
    yield _counter(
        "query_rows", "Rows that a query emitted.", ("query",),
        (((one.name,), one.counts.get("rows", 0)) for one in shown),
    )  # fmt: skip
    yield _counter(
        "query_events", "Events that a query read, by their fate.", ("query", "fate"),
        (((one.name, fate), one.counts.get(fate, 0)) for one in shown for fate in FATES[1:]),
    )  # fmt: skip
    yield _gauge(
        "query_epoch_seconds", "The query's share of the time of workers in the newest epoch.", ("query",),
        of_each("time_us", 1e6),
    )  # fmt: skip
    yield _gauge("query_keys", "Keys for which a query has state.", ("query",), of_each("keys"))
    yield _gauge(
        "query_state_bytes", "Bytes of state: `own` would be freed with the query, `shared` is its share.",
        ("query", "kind"), (((one.name, kind), one.counts[f"{kind}_bytes"]) for one in shown
                            for kind in ("own", "shared") if f"{kind}_bytes" in one.counts),
    )  # fmt: skip


def _followers(status: Status) -> Iterator[Metric]:
    followers = [one for one in status.followers if not one.name.startswith(READ)]
    yield _gauge(
        "follower_records_behind", "Records of the log that a sink, or the view, still has to apply.", ("follower",),
        (((one.name,), one.behind) for one in followers),
    )  # fmt: skip
    yield _gauge(
        "follower_failing", "1 if a sink, or the view, has an error.", ("follower",),
        (((one.name,), one.error is not None) for one in followers),
    )  # fmt: skip
