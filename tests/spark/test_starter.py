"""What `millpond init` writes runs as it is, with files and with Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kit.servers.kafka_server import KafkaServer
from millpond.cli import app
from millpond.connections import VARIABLE
from millpond.errors import SetupError
from millpond.service.api.settings import SETTINGS, starter
from millpond.service.api.settings_file import read_settings

TOTALS = [("north", 2, 120.0), ("north", 1, 250.0), ("south", 1, 40.0), ("south", 1, 250.0)]
"""Shop, sales and total of the windows that six sales until 12:25 have closed."""


def words(*line: str) -> str:
    done = CliRunner().invoke(app, [*line])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


def totals() -> list[tuple[str, int, float]]:
    rows = ds.dataset("out/revenue", format="parquet").to_table(columns=["shop", "sales", "total"]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: (row[0], row[2]))


@pytest.mark.spark
def test_the_first_query_over_files_shows_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "millpond run --once" in words("init")
    with pytest.raises(SetupError, match="exists already"):
        CliRunner().invoke(app, ["init"], catch_exceptions=False)
    words("run", "--once")
    assert totals() == sorted(TOTALS, key=lambda row: (row[0], row[2]))
    large = [json.loads(line) for file in Path("out/large").rglob("*.json") for line in file.read_text().splitlines()]
    assert sorted((row["shop"], row["product"]) for row in large) == [("north", "desk"), ("south", "desk")]
    assert "250.0" in words("lookup", "revenue", "north", "--checkpoint", "pond.pond")


@pytest.mark.spark
@pytest.mark.services
def test_the_first_query_over_kafka_shows_rows(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    words("init", ".", "--kafka")
    checker = Path(sys.executable).with_name("check-jsonschema")
    subprocess.run([checker, "--builtin-schema", "vendor.compose-spec", "compose.yaml"], check=True)
    file = Path("pond.sql")  # with topics of its own, since other tests use this broker
    file.write_text(file.read_text().replace("'sales'", "'starter_sales'").replace("'alerts'", "'starter_alerts'"))
    for topic in ("starter_sales", "starter_alerts"):
        kafka_server.create(topic)
    sales = Path("sales.json").read_text().splitlines()
    kafka_server.produce("starter_sales", [(0, None, line.encode()) for line in sales])
    place = Path("connections.json")
    place.write_text(place.read_text().replace("localhost:9092", kafka_server.servers))
    monkeypatch.setenv(VARIABLE, "connections.json")  # so that the test takes the variable back
    words("run", "--once")
    assert totals() == sorted(TOTALS, key=lambda row: (row[0], row[2]))
    assert len(kafka_server.read("starter_alerts")) == 2


def test_every_setting_of_the_starter_is_valid_once_it_is_set(tmp_path: Path) -> None:
    text = starter({"instances": None, "memory": "2g", "patience": 10.0, "once": False}, {"file": '"a.sql"'})
    file = tmp_path / "millpond.toml"
    file.write_text(text)
    assert read_settings(file) == {"file": "a.sql"}
    assert all(f"\n# {setting.name} = " in text or f"\n{setting.name} = " in text for setting in SETTINGS)
