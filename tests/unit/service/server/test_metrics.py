"""The metrics of a service in the format of Prometheus: of a leader, of a standby, and of a pond with many queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from kit.costs.counted_instructions import counted_instructions
from kit.simulator.changing_pond import ChangingPond
from millpond.control.pond.problems import Problem
from millpond.errors import NotServingError
from millpond.followers.runner import FollowerStatus
from millpond.log.records import EpochRecord, Receipt
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Derivation, Field, Order, Stream
from millpond.model.windows import Sliding
from millpond.runtime.inspect.timeline import EpochTimeline
from millpond.runtime.task.counters import in_receipt
from millpond.service.api.service_files import Places
from millpond.service.server.gauges import Gauges
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader
from millpond.service.server.metrics import prometheus
from millpond.service.server.metrics.prometheus import Metrics
from millpond.spans import Span
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.intake import Behind, PartitionBehind

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "metrics.md"
MONITORING = ROOT / "deploy" / "monitoring"
TX = Stream("tx", (Field("ts", "timestamp"), Field("p", "int"), Field("o", "bigint")), order=Order("p", "o"))
PARTS = Stream("parts_1", TX.columns, made_of=Derivation("base WITH …", ("base",), "digest"))
SECOND = 1_000_000


def counting(name: str) -> Query:
    window = Sliding(10 * SECOND, 10 * SECOND)
    return Query(name, "tx", "ts", 0, window, (), (), (Named("w", Column("window", "struct")),), text="SELECT 1")


class Bench:
    """A pond with a log and its metrics; `leads` puts a substitute in the place of the leader's pond."""

    def __init__(self, folder: Path, queries: int = 2) -> None:
        (folder / "pond.id").write_text("local")
        self.pond = ChangingPond(folder, [TX, PARTS], [counting(f"q{number}") for number in range(queries)], 1, 4)
        self.gauges, self.leader = Gauges(lambda: 0), None
        self.supervisor: Any = SimpleNamespace(
            role="standby", starting_s=None, took_over_s=None, failure=None, leading=self._leading,
            stalled=lambda: False,
        )
        reader = LogReader(folder)
        self.hosted = HostedPond(self.supervisor, reader, lambda: self.gauges, Places(folder))
        self.metrics = Metrics(self.hosted, reader, lambda: self.gauges)

    def leads(self) -> None:
        followers = [FollowerStatus("sink:q0", 3, 2, error="no space"), FollowerStatus("view", 5, 0)]
        followers.append(FollowerStatus("read:tx", 5, 0, note="parsed with Arrow"))
        partitions = PartitionBehind("t", "0", 5, 9), PartitionBehind("t", "1", 7, 10)
        problem = Problem("MP-OVERFLOW", "query q1", "Query q1 is quarantined.", True)
        cost = SimpleNamespace(time_us=250_000, own_bytes=10, shared_bytes=20, keys=3, group_queries=1)
        self.leader = SimpleNamespace(
            status=lambda: followers, behind=lambda: [Behind("tx", "records", 7, partitions)],
            problems=lambda: [problem], costs=lambda: {"q0": cost},
        )  # fmt: skip
        self.supervisor.role, self.supervisor.took_over_s = "leader", 1.5

    def _leading(self) -> Any:
        if self.leader is None:
            raise NotServingError("This service is standby.", "Ask the leader.")
        return self.leader

    def epoch(
        self, counts: dict[str, dict[str, int]], *receipts: Receipt, seconds: float = 0.3,
        hosts: Sequence[str] = ("a", "b"),
    ) -> None:  # fmt: skip
        record = EpochRecord(
            n=1, writer="", prev="", at=0, spark_query="", batch=1, start={}, end={}, counts=counts, receipts=receipts
        )
        us = round(seconds * SECOND)
        spans = [Span("driver", "job", 0, us // 2), Span("gather 0", "gather", 0, us // 4)]
        spans.append(Span("gather 1", "gather", 0, us // 3))
        timeline = EpochTimeline(1, 1, 4, 0, us, tuple(spans))
        self.gauges.epoch(Epoch(record, seconds, seconds / 2, timeline=timeline, hosts=dict(enumerate(hosts))))

    def families(self) -> dict[str, Metric]:
        text, content_type = self.metrics.exposition("text/plain")
        assert content_type.startswith("text/plain")
        return {family.name: family for family in text_string_to_metric_families(text.decode())}

    def samples(self) -> dict[str, float]:
        """Each sample by its name and its labels in alphabetical order, such as `query_keys query=q0`."""
        found = (sample for family in self.families().values() for sample in family.samples)
        return {_named(sample): sample.value for sample in found}


def _named(sample: Any) -> str:
    labels = (f"{name}={sample.labels[name]}" for name in sorted(sample.labels))
    return " ".join([sample.name.removeprefix("millpond_"), *labels])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_standby_reports_what_is_in_the_log(bench: Bench) -> None:
    found = bench.samples()
    assert (found["leader"], found["queries"], found["instances"]) == (0, 2, 1)
    assert found["query_state query=q0 state=running"] == 1
    assert not [name for name in found if name.startswith(("source", "follower", "problems"))]


def test_a_leader_reports_sources_queries_and_sinks(bench: Bench) -> None:
    bench.leads()
    found = bench.samples()
    assert (found["leader"], found["takeover_seconds"], found["problems code=MP-OVERFLOW"]) == (1, 1.5, 1)
    assert found["source_waiting stream=tx unit=records"] == 7
    assert found["source_committed_offset partition=0 stream=tx topic=t"] == 5
    assert found["source_end_offset partition=0 stream=tx topic=t"] == 9
    assert (found["follower_records_behind follower=sink:q0"], found["follower_failing follower=sink:q0"]) == (2, 1)
    assert found["follower_failing follower=view"] == 0 and "follower_failing follower=read:tx" not in found
    assert (found["query_epoch_seconds query=q0"], found["query_keys query=q0"]) == (0.25, 3)
    assert (found["query_state_bytes kind=own query=q0"], found["query_state_bytes kind=shared query=q0"]) == (10, 20)


def test_epochs_are_counted_and_their_durations_are_histograms(bench: Bench) -> None:
    receipts = [Receipt(n, "a", size, "", counts={in_receipt("fold_us"): 500_000}) for n, size in ((0, 70), (1, 30))]
    query = {"read": 4, "applied": 2, "late": 1, "dead": 1}
    for seconds in (0.3, 2.0):
        pond = {"events": 4, "bytes_read": 100, "bytes_moved": 9, "gather_us": 2 * SECOND, "fold_us": SECOND}
        stream = {"malformed": 3, "dead_letters": 4}
        counts = {"*": pond, "q0": query, "q0@1": {"rows": 5}, "stream tx": stream, "stream base": {"malformed": 1}}
        bench.epoch(counts, *receipts, seconds=seconds)
    found = bench.samples()
    assert (found["epochs_total"], found["events_total"], found["read_bytes_total"]) == (2, 8, 200)
    assert (found["worker_seconds_total step=gather"], found["worker_seconds_total step=fold"]) == (4, 2)
    assert found["instance_fold_seconds_total pond_instance=1"] == 1
    assert found["instance_delta_bytes_total pond_instance=0"] == 140
    assert (found["query_rows_total query=q0"], found["query_events_total fate=late query=q0"]) == (10, 2)
    assert (found["stream_malformed_records_total stream=tx"], found["stream_dead_letters_total stream=tx"]) == (6, 8)
    assert found["stream_malformed_records_total stream=base"] == 2
    assert "stream_malformed_records_total stream=parts_1" not in found, "its source has them"
    assert not any("stream=parts_1" in name for name in found), "users do not know its name"
    assert (found["epoch_duration_seconds_bucket le=0.35"], found["epoch_duration_seconds_bucket le=2.5"]) == (1, 2)
    steps = {"driver": "job", "gather": "gather"}
    sums = [found[f"epoch_step_duration_seconds_sum step={step} track={track}"] for track, step in steps.items()]
    assert sums == pytest.approx([2.3 / 2, 2.3 / 3]), "of two tasks, the slower one counts"


def test_an_instance_has_the_host_of_its_newest_epoch(bench: Bench) -> None:
    for hosts in (("a", "a", "b"), ("a", "b")):
        bench.epoch({}, hosts=hosts)
    found = {name: value for name, value in bench.samples().items() if "_host" in name}
    assert found == {"instance_host host=a pond_instance=0": 1, "instance_host host=b pond_instance=1": 1}


def test_the_arrival_of_moving_state_follows_from_its_rate() -> None:
    now = 0
    gauges = Gauges(lambda: now)
    found = []
    for second, moving in enumerate([0, 8, 8, 6, 4, 10, 9, 0, 5]):
        now = second * SECOND
        found.append(gauges.arrival_s(moving))
    assert found == [None, None, None, 2 * 6 / 2, 3 * 4 / 4, None, 9.0, None, None]


def test_event_times_are_seconds_since_1970(bench: Bench) -> None:
    bench.pond.advance("tx", {"0": 31 * SECOND, "1": 30 * SECOND})
    found = bench.samples()
    assert found["stream_event_time_seconds stream=tx"] == 30
    assert found["partition_event_time_seconds partition=0 stream=tx"] == 31
    assert len([name for name in found if name.startswith("partition_event_time")]) == 2, "and none of the stream"


def test_only_streams_with_event_times_have_idle_partitions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.pond.advance("tx", {"0": 31 * SECOND, "1": 30 * SECOND})
    reader = bench.metrics._reader
    found = reader.now()
    assert found is not None
    truth, spec = found
    idle = {"tx": ["1"], PARTS.name: ["tx:1"]}
    changed = truth._replace(manifest=replace(truth.manifest, idle=idle)), replace(spec, streams=(TX, PARTS))
    monkeypatch.setattr(reader, "now", lambda: changed)
    shown = [name for name in bench.samples() if name.startswith("partition_idle")]
    assert shown == ["partition_idle partition=1 stream=tx"]


def test_a_scrape_looks_at_each_query_once(tmp_path: Path) -> None:
    """Twice the queries take up to twice the instructions, and four times if each query looks at all others."""
    taken = []
    for queries in (100, 200):
        folder = tmp_path / str(queries)
        folder.mkdir()
        bench = Bench(folder, queries)
        bench.leads()
        text, _ = bench.metrics.exposition("")
        assert text.count(b"millpond_query_state{") == queries
        taken.append(counted_instructions(lambda bench=bench: bench.metrics.exposition("")))
    assert 0 < taken[1] < 2 * taken[0]


def test_the_page_lists_every_metric_with_its_type_and_labels(bench: Bench) -> None:
    bench.leads()
    bench.epoch({"*": {"events": 1}, "q0": {"read": 1, "applied": 1}})
    rows = re.findall(r"^\| `(millpond\w*)` \| (\w+) \| ([^|]*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), what) for name, kind, labels, what in rows}
    assert listed == {name: row for name, row in described(bench).items() if name.startswith("millpond")}


def described(bench: Bench) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """What the page has to say of each family: its type, its labels and its sentence."""
    found = {}
    for family in bench.metrics.collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = getattr(family, "_labelnames", ()) if family.type != "info" else ("version",)
        if family.type == "histogram" and family.samples:
            labels = [label for label in family.samples[0].labels if label != "le"]
        found[name] = family.type, tuple(labels), family.documentation
    return found


def expressions() -> list[str]:
    """Every expression of the alert rules and of Grafana's board."""
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    board = yaml.safe_load((MONITORING / "board.json").read_text())
    return found + [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("expression", expressions())
def test_the_board_and_the_alerts_use_metrics_that_exist(bench: Bench, expression: str) -> None:
    bench.leads()
    known = {name + end for name in described(bench) for end in ("", "_bucket", "_sum", "_count")}
    known |= {"up", "process_resident_memory_bytes"}
    promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    used = set(re.findall(r"\b(?:millpond|process)_\w+|\bup\b", expression))
    assert used
    assert used <= known


def test_scrapes_of_several_formats_keep_their_lines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[object]()

    class Counted(prometheus.LineCache):
        def __init__(self, encode: Any) -> None:
            made.append(encode)
            super().__init__(encode)

    monkeypatch.setattr(prometheus, "LineCache", Counted)
    formats = "text/plain", "application/openmetrics-text; version=1.0.0"
    for _ in range(3):
        assert len({bench.metrics.exposition(accept)[1] for accept in formats}) == len(formats)
    assert len(made) == len(formats)
    for number in range(3 * prometheus.MOST_TYPES):
        bench.metrics.exposition(f"application/openmetrics-text; version=1.0.{number}")
    assert len(bench.metrics._lines) <= prometheus.MOST_TYPES
