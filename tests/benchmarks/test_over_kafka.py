"""Latency over Kafka: records, percentiles and statements, without a broker; Nexmark's table."""

from __future__ import annotations

import feeder
import nexmark
import numpy as np
import over_kafka
import pytest


def test_a_record_has_a_value_for_each_column() -> None:
    lines = feeder.tails(500)
    assert {len(line.split(",")) + 2 for line in lines} == {len(feeder.COLUMNS.split(", "))}
    assert 120 < np.mean([len(line) + 38 for line in lines]) < 220
    assert len({line.split(",")[0] for line in feeder.tails()}) > 8_000


def test_latencies_skip_the_first_fifth_and_report_missing_answers() -> None:
    made = [1_000_000 + 100 * number for number in range(1_000)]
    late, answered = over_kafka.latencies(made, [one + 50.0 for one in made], 1_000_000, 100.0)
    assert (len(late), late.min(), late.max(), answered) == (800, 50.0, 50.0, 1.0)
    late, answered = over_kafka.latencies(made[:900], [one + 50.0 for one in made[:900]], 1_000_000, 100.0)
    assert (len(late), answered) == (700, 0.5)
    ends = [1_000_000 + 10_000 * number for number in range(1, 11)]
    late, answered = over_kafka.latencies(ends, [one + 900.0 for one in ends], 1_000_000, 100.0)
    assert (late.max(), answered) == (900.0, 1.0)


def test_flink_runs_every_workload_that_its_sql_can_express() -> None:
    for workload in ("identity", "wordcount", "fixwindow"):
        spec = over_kafka.flink_sql(workload, "127.0.0.1:9092")
        assert "exactly-once" in spec["tables"][1]
        assert spec["inserts"][0].startswith("INSERT INTO answers SELECT ")


def test_each_of_several_queries_has_a_sink_of_its_own() -> None:
    spec = over_kafka.flink_sql("fixwindow", "127.0.0.1:9092", 8)
    sinks = spec["tables"][1:]
    assert len({sink.partition("'sink.transactional-id-prefix' = ")[2] for sink in sinks}) == len(spec["inserts"]) == 8
    assert all("exactly-once" in sink and "'topic' = 'answers'" in sink for sink in sinks)
    assert len(set(over_kafka.pond_queries("fixwindow", 8))) == 8
    assert {mode for _, mode in over_kafka.pond_queries("updates", 1)} == {"update"}
    assert over_kafka.pond_queries("fixwindow", 1) == [over_kafka.POND["fixwindow"]]


def test_nexmarks_cells_become_a_table() -> None:
    cells = [
        nexmark.Cell("q5", "millpond", 400_000.0, 1.0, 5.0, 1_500.0),
        nexmark.Cell("q5", "flink", 200_000.0, 1.0, 9.0, 2_500.0),
        nexmark.Cell("q8", "millpond", 100_000.0, 1.0, 5.0, 1_500.0),
    ]
    lines = nexmark.table(cells).splitlines()
    assert lines[2] == "| q5 | 400 k | 200 k | 2.00 | 5.0 | 9.0 | 1,500 | 2,500 |"
    assert lines[3] == "| q8 | 100 k |  |  | 5.0 |  | 1,500 |  |"
    assert nexmark.figures(cells)["vs_flink_q5"] == 2.0
    assert nexmark.kinds(["q8"]) == {"person", "auction"} and nexmark.kinds(["q7"]) == {"bid"}
    size = nexmark.Sample(1000, 1)
    scans = {"bid": 92, "bid_arrived": 920, "person": 20, "auction": 30}
    assert nexmark.part_read(["q5"], scans, size) == pytest.approx(0.1)
    assert nexmark.part_read(["q8"], scans, size) == pytest.approx(0.5), "the slower of the two streams"
    assert nexmark.part_read(["q5", "q12"], scans, size) == pytest.approx(0.55)
    spec = nexmark.pond_pass(["q5", "q15"], nexmark.Path("/in"), 1.0)
    assert list(spec["queries"]) == ["q5_counts", "q5_most", "q5", "q15"]
    assert spec["queries"]["q15"][1] == {"emit": "update"}
