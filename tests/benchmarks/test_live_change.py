"""The benchmarks of changes at their smallest size: every kind of change and plain Spark are measured."""

from __future__ import annotations

import math
import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import live_change
import live_restarts
import many_adds
import pytest
from live_change import Done, Made, Seen, figures_of
from live_load import Arrived
from live_restarts import compared
from pyspark.sql import SparkSession

from kit.programs.forked_program import ForkedProgram
from kit.programs.shared_java import joining


def test_the_figures_of_a_run() -> None:
    every = [Done(n, n * 1.0, n + 0.5, 100 * (n + 1), 10, 20) for n in range(12)]
    every[6] = Done(7, 6.5, 7.5, 700, 50, 20)  # the first after the change of record 6
    epochs = [*every[:6], every[6], *(one._replace(n=one.n + 1, began=one.began + 0.5, ended=one.ended + 0.5)
                                      for one in every[7:])]  # fmt: skip
    arrived = [Arrived(one.began, one.events) for one in epochs]
    seen = Seen(epochs, arrived, [Made("add", 5.9, 6.0, 6, 9.0)], [(0.0, 5.6), (9.0, 12.0)], 1.0)
    found, broken = figures_of(seen)
    assert found["effective_s_max"] == pytest.approx(0.5)
    assert found["p99_ratio_max"] == pytest.approx(2.0, rel=0.02) and found["p99_ratio_all"] == found["p99_ratio_max"]
    assert found["others_p99_ratio_max"] == pytest.approx(2.0, rel=0.02)
    assert found["p99_ratio_max_chance"] == found["others_p99_ratio_max_chance"] == pytest.approx(1.0)
    assert broken == {"add": pytest.approx(1.0)}  # a second longer between two commits


def test_each_kind_is_compared_with_what_plain_spark_needs_for_it() -> None:
    restarts = {"restart_s": 5.0, "restart_in_session_s": 2.0, "repartition_s": 9.0}
    found = compared({"add": 1.0, "drop": 0.5, "scale": 3.0}, restarts)
    assert found == {"vs_restart_min": 3.0, "vs_in_session_min": 2.0}


def test_a_number_of_instances_is_compared_with_quiet_epochs_of_as_many() -> None:
    """Epochs of one instance take 0.9 s, of two 0.3 s: scaling and later changes do not count as slower."""
    lengths = [0.3] * 6 + [0.9] * 6 + [0.3] * 6
    epochs = [
        Done(n, float(n), n + length, 100 * (n + 1), 10, 20, 1 if length > 0.5 else 2)
        for n, length in enumerate(lengths)
    ]
    epochs[13] = epochs[13]._replace(ended=13.9)  # of two, but most of the state is on one
    arrived = [Arrived(one.began, one.events) for one in epochs]
    made = [Made("scale", 4.9, 5.0, 4, 8.5), Made("scale", 11.9, 12.0, 11, 14.5), Made("drop", 15.9, 16, 15, 18)]
    seen = Seen(epochs, arrived, made, [(0.0, 4.9), (8.5, 11.95), (14.5, 15.9)], 1.0)
    found, _ = figures_of(seen)
    for name in ("p99_ratio_max", "p99_ratio_all", "others_p99_ratio_max", "others_p99_ratio_all"):
        assert found[name] == pytest.approx(1.0)


def test_the_variation_of_quiet_periods_is_reported() -> None:
    """Three quiet epochs of 480 take twice as long, too few for their p99; one kind or another has one of them."""
    lengths = [0.4 if n in (3, 130, 310) else 0.2 for n in range(800)]
    epochs = [Done(n, n * 0.5, n * 0.5 + length, 100 * (n + 1), 10, 20) for n, length in enumerate(lengths)]
    kinds = ("add", "drop", "pause", "resume", "param", "move")
    made = [Made(kinds[n % 6], 30.0 * n + 20.1, 30.0 * n + 20.2, 60 * n + 40, 30.0 * n + 25.2) for n in range(12)]
    quiet = [(30.0 * n + first, 30.0 * n + first + 5.0) for n in range(12) for first in (0.0, 5.0, 10.0, 15.0)]
    seen = Seen(epochs, [Arrived(one.began, one.events) for one in epochs], made, quiet, 1.0)
    found, _ = figures_of(seen)
    assert found["p99_ratio_max"] == pytest.approx(1.0) and 1.7 < found["p99_ratio_max_chance"] <= 2.0
    assert 1.0 <= found["p99_ratio_max_even"] <= found["p99_ratio_max_chance"]


JOINED = """
import runpy, sys
from joined_session import joined_session

type(joined_session()).stop = lambda _session: None  # the Java machine is that of the tests
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_of_change_is_measured(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "joined.py").write_text(JOINED)
    folders = Path(__file__).parents[1] / "spark", Path(live_restarts.__file__).parent
    path = os.pathsep.join([*map(str, folders), os.environ["PYTHONPATH"]])

    def joined(command: list[str], **how: Any) -> ForkedProgram:
        """Plain Spark's application, without a Java machine of its own: two took a third of the test's CPU."""
        env = os.environ | {"PYTHONPATH": path} | joining(spark)
        return ForkedProgram([tmp_path / "joined.py", *command[1:]], env=env, **how)

    monkeypatch.setattr(live_restarts, "subprocess", SimpleNamespace(Popen=joined, PIPE=subprocess.PIPE))
    figures = live_change.main(live_change.SMALL, tmp_path)
    assert 0.0 <= figures.pop("stolen") < 1.0
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert ET.parse(tmp_path / "live_change.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "live_change.json").exists()


@pytest.mark.slow
def test_queries_are_added_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    figures = many_adds.main(8, tmp_path)
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert {"log_bytes", "plan_last_ms", "add_last_ms", "epoch_s_all"} <= figures.keys()
