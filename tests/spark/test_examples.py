"""The examples, run as they stand, against the rows beside them; and those rows against DuckDB.

MILLPOND_GOLDEN=write writes the rows anew: by DuckDB, from the events, never by a pond.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millpond import Pond
from millpond.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = EXAMPLES / "expected"

Rows = list[tuple[str, ...]]


class Twin(NamedTuple):
    """A query of an example in the form for DuckDB: window sizes in minutes, the rest as SQL over `e`."""

    keys: str
    size: int
    slide: int
    columns: str
    where: str = "true"
    having: str = "true"

    @property
    def header(self) -> list[str]:
        names = [part.split(" AS ")[1] for part in self.columns.split(", ")]
        return [*filter(None, self.keys.split(", ")), "start", "end", *names]

    def sql(self) -> str:
        """Each event in each of its windows, by integer arithmetic on microseconds."""
        slide, size = self.slide * 60_000_000, self.size * 60_000_000
        key = f"{self.keys}, " if self.keys else ""
        return (
            f"WITH w AS (SELECT *, us - us % {slide} - k * {slide} AS s FROM e, range({self.size // self.slide}) t(k) "
            f'WHERE {self.where}) SELECT {key}make_timestamp(s) AS "start", make_timestamp(s + {size}) AS "end", '
            f"{self.columns} FROM w GROUP BY {key}s HAVING {self.having}"
        )


ALARM = "count(*) AS payments, sum(amount) AS spent"
TWINS = {
    "web_pages": {
        "views": Twin("page", 30, 10, "count(*) AS views, avg(seconds) AS stay"),
        "longest": Twin("page", 60, 60, "max(seconds) AS longest"),
        "bounces": Twin("page", 60, 60, "count(*) AS bounces", "seconds < 5"),
    },
    "card_fraud": {
        "last_hour": Twin("card", 60, 15, f"{ALARM}, max(amount) AS largest"),
        "last_day": Twin("card", 1440, 360, "count(*) AS payments, avg(amount) AS mean, stddev(amount) AS spread"),
        "abroad": Twin("card", 1440, 360, ALARM, "country <> 'CH'"),
        "alarm": Twin("card", 60, 15, ALARM, having="count(*) >= 5 AND sum(amount) > 2000"),
    },
    "game_levels": {
        "level_hour": Twin(
            "level", 60, 60,
            "count(*) AS tries, count(*) FILTER (won) AS wins, avg(seconds) FILTER (won) AS pace",
        ),
        "quickest": Twin("level", 60, 60, "min(seconds) FILTER (won) AS seconds"),
        "too_hard": Twin(
            "level", 30, 30, "count(*) AS tries, count(*) FILTER (won) AS wins",
            having="count(*) FILTER (won) * 2 < count(*)",
        ),
    },
    "sensor_alarms": {
        "minutes": Twin("sensor", 10, 10, "count(*) AS readings, avg(celsius) AS mean, max(celsius) AS highest"),
        "too_hot": Twin(
            "sensor", 5, 1, "min(celsius) AS lowest", having="min(celsius) > 80 AND count(*) >= 10"
        ),
        "stuck": Twin(
            "sensor", 10, 10, "max(celsius) AS celsius", having="count(*) >= 10 AND stddev(celsius) = 0"
        ),
    },
    "flights": {
        "busy": Twin("", 180, 180, "count(*) AS flights, sum(distance) AS miles, count(dep_delay) AS departed"),
        "carriers": Twin("carrier", 360, 180, "count(*) AS flights, avg(dep_delay) AS mean"),
        "delayed": Twin(
            "carrier", 360, 180, "count(*) AS flights, max(dep_delay) AS worst",
            having="avg(dep_delay) > 15 AND count(*) >= 5",
        ),
    },
}  # fmt: skip
"""Example -> query -> its twin."""


def loaded(path: Path) -> ModuleType:
    """A program as a module; nothing stays behind in sys.modules."""
    spec = spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(table: Iterable[Mapping[str, Any]], header: list[str]) -> Rows:
    """Rows as sorted texts in the order of `header`; a window becomes `start` and `end`."""
    found = []
    for row in table:
        window = next((value for value in row.values() if isinstance(value, dict)), {})
        found.append(tuple(_text((window | dict(row)).get(name)) for name in header))
    return sorted(found)


def _text(value: Any) -> str:
    if isinstance(value, str) and value.endswith("Z"):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        utc = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def events_of(folder: Path) -> pa.Table:
    """All events of an example, with `us`: their times in microseconds."""
    rows = [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.open()]
    table = pa.Table.from_pylist(rows) if rows else pyarrow.csv.read_csv(next(folder.glob("*.csv")))
    times = [time if isinstance(time, datetime) else datetime.fromisoformat(time) for time in table["ts"].to_pylist()]
    us = [round(time.timestamp()) * 1_000_000 for time in times]
    return table.append_column("us", pa.array(us, pa.int64()))


def stands(example: str, query: str) -> Rows:
    """The rows that stand beside an example."""
    with (EXPECTED / f"{example}-{query}.csv").open(newline="") as file:
        header, *rows = map(tuple, csv.reader(file))
    assert list(header) == TWINS[example][query].header
    assert rows, "it shows nothing"
    return rows


def check(example: str, found: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """The rows of a pond are those that stand beside the example."""
    assert found.keys() == TWINS[example].keys()
    for query, twin in TWINS[example].items():
        assert rows_of(found[query], twin.header) == stands(example, query), f"the rows of {query} differ"


def write_events(example: str, folder: Path) -> None:
    """The events of an example, by its own generator or file."""
    match example:
        case "flights":
            shutil.copytree(EXAMPLES / "flights" / "departures", folder)
        case "sensor_alarms":
            loaded(EXAMPLES / "sensor_alarms" / "make_data.py").write_readings(folder)
        case _:
            module = loaded(EXAMPLES / f"{example}.py")
            (write,) = (value for name, value in vars(module).items() if name.startswith("write_"))
            write(folder)


@pytest.mark.parametrize("example", TWINS)
def test_the_rows_that_stand_there_are_duckdbs(example: str, tmp_path: Path) -> None:
    write_events(example, tmp_path / "events")
    table = events_of(tmp_path / "events")
    with duckdb.connect() as connection:
        connection.register("e", table)
        for query, twin in TWINS[example].items():
            answer = connection.execute(twin.sql())
            names = [column[0] for column in answer.description or ()]
            judged = rows_of([dict(zip(names, row, strict=True)) for row in answer.fetchall()], twin.header)
            if os.environ.get("MILLPOND_GOLDEN") == "write":
                with (EXPECTED / f"{example}-{query}.csv").open("w", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerows([twin.header, *judged])
            assert stands(example, query) == judged


@pytest.mark.parametrize(
    ("example", "shows"), [("web_pages", "/checkout"), ("card_fraud", "card-13"), ("game_levels", "too hard from")]
)
def test_a_program(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], example: str, shows: str
) -> None:
    module = loaded(EXAMPLES / f"{example}.py")
    found: dict[str, pa.Table] = {}
    run = module.run
    monkeypatch.setattr(module, "run", lambda *words: found.update(run(*words)) or found)
    module.main()
    check(example, {name: table.to_pylist() for name, table in found.items()})
    printed = capsys.readouterr().out
    assert shows in printed
    assert "█" in printed


def test_the_notebook(spark: SparkSession, here: Path) -> None:
    cells = json.loads((EXAMPLES / "clicks.ipynb").read_text())["cells"]
    names, shown = dict[str, Any](), list[Any]()
    for cell in cells:
        if cell["cell_type"] == "code":
            *lines, last = ast.parse("".join(cell["source"])).body
            exec("\n".join([*map(ast.unparse, lines), f"_shown = {ast.unparse(last)}"]), names)
            shown.append(names["_shown"])
    _, pond, closed, why, drained, busiest, _ = shown
    assert "<th>query</th>" in pond._repr_html_() and "rows of closed windows" in why._repr_html_()
    assert sorted(zip(closed["page"], closed["n"], strict=True)) == [("/cart", 1), ("/home", 2)]
    assert sorted(zip(drained["page"], drained["n"], strict=True)) == [("/cart", 1), ("/home", 1), ("/home", 2)]
    assert [*busiest["n"]] == [3] and [*busiest.columns] == ["w_start", "w_end", "n"]


@pytest.mark.parametrize(("example", "events"), [("sensor_alarms", "readings"), ("flights", "departures")])
def test_a_file(spark: SparkSession, here: Path, example: str, events: str) -> None:
    shutil.copy(EXAMPLES / example / "pond.sql", here)
    write_events(example, here / events)
    done = CliRunner().invoke(app, ["run", "pond.sql", "--once", "--drain"])
    assert done.exit_code == 0, done.output
    check(example, {path.name: _written(path) for path in (here / "out").iterdir()})


def test_a_pond_says_why_within_its_process(spark: SparkSession, tmp_path: Path) -> None:
    module = loaded(EXAMPLES / "game_levels.py")
    module.write_tries(tmp_path / "tries")
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(module.GAME.format(folder=tmp_path))
        pond.add("too_hard", module.TOO_HARD)
        pond.run(once=True)
        before = pond.why("too_hard")
        assert [cause.code for cause in before.causes] == ["in-memory", "window-open", "rows-are-out"]
        assert before.facts.running
        pond.drain()
        after = pond.why("too_hard")
        assert [cause.code for cause in after.causes] == ["in-memory", "rows-are-out"]
        # six levels in each half hour, of which one is too hard
        assert (after.facts.recent.counts.rows, after.facts.recent.counts.withheld) == (2, 10)


def _written(folder: Path) -> list[dict[str, Any]]:
    if any(folder.glob("*.parquet")):
        return ds.dataset(sorted(folder.glob("*.parquet"))).to_table().to_pylist()
    return [json.loads(line) for file in sorted(folder.glob("part-*.json")) for line in file.open()]
