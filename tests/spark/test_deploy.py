"""What the files of `deploy/` say to Spark: settings that exist, and a pond that can be analysed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millpond.cli import app
from millpond.connections import VARIABLE

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = sorted(DEPLOY.glob("*/spark-defaults.conf"))


@pytest.mark.parametrize("file", SETTINGS, ids=lambda file: file.parent.name)
def test_the_settings_exist(spark: SparkSession, file: Path) -> None:
    jvm = spark._jvm
    assert jvm is not None
    for part in ("deploy.k8s.Config", "deploy.yarn.config.package", "internal.config.package"):
        jvm.java.lang.Class.forName(f"org.apache.spark.{part}$")  # registers its entries
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    kubernetes = getattr(jvm.org.apache.spark.deploy.k8s, "Config$").__getattr__("MODULE$")
    prefixes = {
        kubernetes.KUBERNETES_DRIVER_SECRET_KEY_REF_PREFIX(), kubernetes.KUBERNETES_EXECUTOR_SECRET_KEY_REF_PREFIX(),
        kubernetes.KUBERNETES_DRIVER_ENV_PREFIX(), "spark.executorEnv.",
    }  # fmt: skip
    names = [line.split()[0] for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(SETTINGS) == 4 and names
    assert [name for name in names if find(name) is None and name[: name.rindex(".") + 1] not in prefixes] == []
    assert find("spark.kubernetes.no.such.setting") is None


def test_the_pond_can_be_analysed(
    spark: SparkSession, kafka_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(DEPLOY / "connections.json"))
    done = CliRunner().invoke(app, ["explain", str(DEPLOY / "pond.sql")])
    assert done.exit_code == 0, done.output
    assert "spend" in done.output and "large" in done.output
