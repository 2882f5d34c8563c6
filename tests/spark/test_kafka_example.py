"""The example with Kafka, run as it stands; alerts of three queries against the payments themselves."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.servers.kafka_server import KafkaServer
from millpond.connections import VARIABLE

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_fraud" / "run.py"


@pytest.mark.slow
def test_card_fraud_from_kafka_to_kafka(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(VARIABLE, "")  # the example sets it; this puts it back
    spec = spec_from_file_location("kafka_fraud", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    with kafka_server.removing("payments", "alerts"):  # other tests may have topics with these names
        alerts = example.run(kafka_server.servers, tmp_path)
    newest: dict[int, float] = {}
    taken, huge = [], Counter()
    for partition, _, value in example.payments():
        try:
            event = json.loads(value)
        except ValueError:
            continue
        seconds = datetime.fromisoformat(event["ts"]).timestamp()
        huge[event["card"]] += event["amount"] > 3000
        if partition not in newest or seconds > newest[partition] - 10:
            taken.append((event["card"], seconds, event))
        newest[partition] = max(seconds, newest.get(partition, seconds))
    minutes = Counter((card, seconds // 60) for card, seconds, _ in taken)
    declined = Counter((card, seconds // 300) for card, seconds, event in taken if event["declined"])
    expected = {
        "burst": Counter(card for (card, _), count in minutes.items() if count >= 5),
        "guessed": Counter(card for (card, _), count in declined.items() if count >= 3),
        "huge": +huge,
    }
    for query, counts in expected.items():
        assert Counter({card: count for (name, card), count in alerts.items() if name == query}) == counts
        assert counts, query
    assert {query for query, _ in alerts} >= {"burst", "expensive", "countries", "tried", "guessed", "spree", "huge"}
    printed = capsys.readouterr().out
    assert "10 dead letters of payments: the value is not a JSON object" in printed
    assert "card-07" in printed
