"""Values of the clock in Spark: what texts mean, and that an epoch has one instant, which its record stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.inputs.one_stream import front_end
from millpond import Pond
from millpond.control.wiring.pond_reader import read_truth
from millpond.log.records import EpochRecord, decode
from millpond.model.expressions import Call, Parameter
from millpond.model.query import Query
from millpond.plan.options.clock_parameters import clock_values
from millpond.spark.frontend.frontend import FrontEnd

W = "window(ts, '1 hour')"


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    return front_end(spark, "ts timestamp, v bigint", tmp_path_factory.mktemp("tx"))


CLOCK = {
    "now()": "{t}",
    "current_timestamp - INTERVAL 90 MINUTES": "{t} - INTERVAL 90 MINUTES",
    "current_timestamp() + INTERVAL '1 02:00:00' DAY TO SECOND": "{t} + INTERVAL '1 02:00:00' DAY TO SECOND",
    "now() - INTERVAL 7 DAYS": "{t} - INTERVAL 7 DAYS",
    "current_date()": "cast({t} AS date)",
    "date_add(current_date(), 4)": "date_add(cast({t} AS date), 4)",
    "current_date() - 3": "cast({t} AS date) - 3",
    "cast(now() - INTERVAL 40 DAYS AS date)": "cast({t} - INTERVAL 40 DAYS AS date)",
    "unix_timestamp()": "unix_timestamp({t})",
    "cast(now() AS bigint)": "cast({t} AS bigint)",
    "unix_millis(current_timestamp())": "unix_millis({t})",
}
"""Values of the clock, and their values at a time."""


def test_values_of_the_clock_are_those_of_spark(spark: SparkSession, front: FrontEnd) -> None:
    query = front.query_from_sql(
        "clock", f"SELECT {', '.join(f'{text} AS c{i}' for i, text in enumerate(CLOCK))} FROM tx", zone="Europe/Berlin"
    )
    found = [item.expression for item in query.output]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    shown = {"timestamp": "unix_micros", "date": "unix_date", "bigint": "bigint"}
    for instant in (0, 1_711_762_200_000_001, 1_729_989_000_000_000, 1_729_992_600_000_000, 1_730_593_800_999_999):
        time = f"timestamp_micros({instant})"
        texts = [text.format(t=time) for text in CLOCK.values()]
        kinds = [shown[one.type] for one in found]
        batch = session.sql(f"SELECT {', '.join(f'{k}({text})' for k, text in zip(kinds, texts, strict=True))}")
        ours = [clock_values([one.name], instant)[one.name].value for one in found if isinstance(one, Parameter)]
        assert ours == list(batch.collect()[0]), instant


def test_the_clock_is_a_constant_of_the_epoch(front: FrontEnd) -> None:
    query = front.query_from_sql(
        "recent", f"SELECT count(*) AS n, current_date() AS d FROM tx WHERE ts > now() - INTERVAL 1 HOUR GROUP BY {W}"
    )
    assert isinstance(query, Query) and isinstance(query.where, Call)
    assert query.where.args[1] == Parameter("now() -3600000000 us", "timestamp")
    assert query.output[1].expression.type == "date"


def test_an_epoch_has_one_instant(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(2):
        (tmp_path / "in" / f"{i}.json").write_text(json.dumps({"ts": f"20{i}0-01-01 00:00:00", "v": i}) + "\n")
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.load(f"CREATE TABLE tx (ts TIMESTAMP, v BIGINT) USING json OPTIONS (path '{tmp_path / 'in'}', "
                  "maxFilesPerTrigger '1');")  # fmt: skip
        pond.add("rows", "SELECT v, unix_micros(now()) AS n FROM STREAM tx WHERE ts < current_timestamp()")
        pond.add("sums", "SELECT count(*) AS n, current_timestamp() AS t FROM STREAM tx HAVING n < unix_timestamp()",
                 emit="update")  # fmt: skip
        late = "WATERMARK ts DELAY OF INTERVAL 4000 DAYS"
        past = f"SELECT {W} AS w, count(*) FILTER (WHERE ts < now()) AS n FROM STREAM tx {late} GROUP BY ALL"
        pond.add("steps", f"SELECT window(w, '1 day') AS d, sum(n) AS n FROM ({past}) GROUP BY window(w, '1 day')")
        pond.run(once=True, drain=True)
        rows, sums = (sorted(pond.table(name).to_pylist(), key=lambda row: row["n"]) for name in ("rows", "sums"))
        assert pond.table("steps").column("n").to_pylist() == [1, 1]
    truth, _ = read_truth(tmp_pond)
    records = [decode(truth.log.read(n) or b"").record for n in range(truth.manifest.n + 1)]
    instants = [one.instant for one in records if isinstance(one, EpochRecord)]
    assert len(instants) > 2 and sorted(row["v"] for row in rows) == [0, 1]
    assert [row["n"] for row in rows] == [round(row["t"].timestamp() * 1e6) for row in sums] == instants[:2]
