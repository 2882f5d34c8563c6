"""Top-N and ranks over the rows of windows, compared with Spark's batch engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.errors import MillpondError
from millpond.plan.explain.plan_text import explain

SCHEMA = "id bigint, card string, shop string, amount bigint, ts timestamp"
SPEND = """SELECT card, shop, sum(amount) AS total, count(*) AS n, max(amount) AS most, window(ts, {}) AS w FROM {}
GROUP BY card, shop, window(ts, {})"""
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())
SLIDING, TUMBLING = "'10 minutes', '5 minutes'", "'10 minutes'"

TIES = ", card, shop, n, most"
"""Spark chooses among tied rows at will, a pond by the other columns; with these in ORDER BY, both do the same."""
RANKS = {
    "top": "SELECT * FROM (SELECT card, shop, total, w, row_number() OVER (PARTITION BY w ORDER BY total DESC{ties}) "
    "AS rn FROM {spend}) WHERE rn <= 3",
    "qualified": "SELECT card, w.end AS until, rank() OVER (PARTITION BY w ORDER BY most NULLS LAST) AS r "
    "FROM {spend} WHERE n > 1 QUALIFY r <= 2",
    "by_shop": "SELECT shop, card, w.start AS since, n * 2 AS twice, "
    "dense_rank() OVER (PARTITION BY w.start, w.end, shop ORDER BY n DESC, total % 3 ASC NULLS FIRST) AS r "
    "FROM {spend}",
    "several": "SELECT card, shop, w, rank() OVER (PARTITION BY w ORDER BY most) AS a, "
    "dense_rank() OVER (PARTITION BY w ORDER BY n DESC NULLS FIRST) AS b, "
    "row_number() OVER (PARTITION BY w ORDER BY shop DESC NULLS LAST, total{ties}) AS c, "
    "sum(n) OVER (PARTITION BY w) AS d FROM {spend}",
    "neighbours": "SELECT card, shop, w, lag(total) OVER (PARTITION BY w ORDER BY n DESC{ties}) AS a, "
    "lead(shop, 2, 'none') OVER (PARTITION BY w ORDER BY n DESC{ties}) AS b, nth_value(most, 2) OVER (PARTITION BY w "
    "ORDER BY n) AS c, nth_value(n, 3) OVER (PARTITION BY w ORDER BY total{ties} ROWS UNBOUNDED PRECEDING) AS d, "
    "nth_value(card, 1) OVER (PARTITION BY w ORDER BY total{ties} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED "
    "FOLLOWING) AS e FROM {spend}",
    "valued": "SELECT card, shop, w, first_value(most) OVER (PARTITION BY w ORDER BY n{ties}) AS a, last_value(total) "
    "IGNORE NULLS OVER (PARTITION BY w ORDER BY total DESC{ties} ROWS UNBOUNDED PRECEDING) AS b, first_value(most) "
    "IGNORE NULLS OVER (PARTITION BY w ORDER BY card{ties} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) "
    "AS c, last_value(most) OVER (PARTITION BY w ORDER BY n{ties} ROWS UNBOUNDED PRECEDING) AS d, lag(most, 2) IGNORE "
    "NULLS OVER (PARTITION BY w ORDER BY n{ties}) AS e, lead(most, 1, 9) IGNORE NULLS OVER (PARTITION BY w ORDER BY "
    "n{ties}) AS f, nth_value(most, 2) IGNORE NULLS OVER (PARTITION BY w ORDER BY n{ties} ROWS UNBOUNDED PRECEDING) AS "
    "g, lag(most, -1) OVER (PARTITION BY w ORDER BY n{ties}) AS h FROM {spend}",
    "totals": "SELECT card, shop, w, rank() OVER (PARTITION BY w ORDER BY n) AS r, sum(most) OVER (PARTITION BY w "
    "ORDER BY n) AS a, avg(total * 2) OVER (PARTITION BY w, shop ORDER BY card DESC, n) AS b, count(most) OVER "
    "(PARTITION BY w ORDER BY total{ties} ROWS UNBOUNDED PRECEDING) AS c, max(most) OVER (PARTITION BY w ORDER BY n) - "
    "min(n) OVER (PARTITION BY w ORDER BY most{ties} ROWS UNBOUNDED PRECEDING) AS d, sum(n) OVER (PARTITION BY w "
    "ORDER BY w.end DESC) AS e FROM {spend}",
    "places": "SELECT card, shop, w, ntile(4) OVER (PARTITION BY w ORDER BY most{ties}) AS a, "
    "percent_rank() OVER (PARTITION BY w ORDER BY n DESC) AS b, cume_dist() OVER (PARTITION BY w ORDER BY most) AS c, "
    "rank() OVER (PARTITION BY w ORDER BY most) AS d FROM {spend}",
    "before": "SELECT card, shop, w.end AS until, total - lag(total) OVER (PARTITION BY card, shop ORDER BY w.end) AS "
    "more, lag(n, 2, 0L) OVER (PARTITION BY card, shop ORDER BY w.end) AS m FROM {spend}",
    "early": "SELECT card, shop, w, lag(n) OVER (PARTITION BY card, shop ORDER BY w) AS m FROM {spend}",
    "moving": "SELECT card, shop, w, avg(n) OVER (PARTITION BY card, shop ORDER BY w ROWS 2 PRECEDING) AS m, "
    "row_number() OVER (PARTITION BY card, shop ORDER BY w) AS r FROM {spend}",
    "shares": "SELECT card, shop, w, total / sum(total) OVER (PARTITION BY w) AS part FROM {spend}",
}
LIMITS = {
    "first": ("SELECT card, n, w FROM {spend} ORDER BY total DESC, card LIMIT 3", "total DESC, card{ties}", 3),
    "twice": ("SELECT card, 2 * n AS m, w FROM {spend} WHERE n > 1 ORDER BY n % 2, card LIMIT 4", "n % 2{ties}", 4),
}
"""ORDER BY … LIMIT per window, and what it orders by: in a batch, the first rows of each window are those of a rank."""


FIRST = {
    "events": ("SELECT id, upper(card) AS u, ts, array(shop) AS a FROM {tx} WHERE id % 2 = 0 LIMIT 30", "ts", 30),
    "rows": ("SELECT w, total, card FROM {spend} WHERE n > 1 LIMIT 12", "w.end, w, total, card", 12),
    "step": (f"SELECT w, n, card FROM ({SPEND.format(SLIDING, '{tx}', SLIDING)}) LIMIT 7", "w.end, w, n, card", 7),
    "few": ("SELECT DISTINCT shop FROM {tx} LIMIT 5", "shop", 3),
}
"""LIMIT alone, the order of the rows of an epoch, and their number."""
SO_FAR = {
    "top_so_far": "SELECT card, id, amount, row_number() OVER (PARTITION BY card ORDER BY amount DESC, id) AS r "
    "FROM {tx} QUALIFY r <= 3",
    "odd_ranks": "SELECT id, shop, r FROM (SELECT *, rank() OVER (PARTITION BY shop ORDER BY amount NULLS LAST, "
    "id % 40) AS r FROM {tx} WHERE card IS NOT NULL) WHERE r <= 5 AND id % 3 > 0",
    "dense": "SELECT id, ts FROM (SELECT *, dense_rank() OVER (ORDER BY id % 50 DESC) AS n FROM {tx}) WHERE n < 3",
    "both": "SELECT * FROM (SELECT card, id, rank() {by} AS r, dense_rank() {by} AS d, row_number() {by} AS n "
    "FROM {{tx}}) WHERE d <= 3".format(by="OVER (PARTITION BY card ORDER BY amount DESC, id)"),
    "by_time": "SELECT id, card FROM {tx} QUALIFY row_number() OVER (PARTITION BY card ORDER BY ts DESC) <= 2",
    "of_rows": "SELECT shop, card, total, w.end AS until, row_number() OVER (PARTITION BY shop ORDER BY total DESC, "
    "card, w.end) AS r FROM {spend} QUALIFY r <= 4",
    "limit": "SELECT id, amount FROM {tx} WHERE id % 2 = 0 ORDER BY amount DESC, id % 100, id LIMIT 12",
    "sums": "SELECT card, shop, sum(total) AS s, count(*) AS windows FROM {spend} GROUP BY card, shop",
    "inner": f"SELECT card, shop, sum(total) AS s FROM ({SPEND.format(SLIDING, '{tx}', SLIDING)}) GROUP BY card, shop",
}
"""Ranks and totals of all rows so far, in update mode."""
KEYS = {
    "top_so_far": ("card", "r"), "both": ("card", "n"), "of_rows": ("shop", "r"), "sums": ("card", "shop"),
    "inner": ("card", "shop"),
}  # fmt: skip
"""The columns that identify a row; without them, all values do."""


@pytest.fixture(scope="module")
def pond(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    """A pond that has answered all of them; Spark's batch has the same aggregates in the view `batch_spend`."""
    folder = tmp_path_factory.mktemp("ranked")
    events = spark.range(0, 400, 1, 3).selectExpr(
        "id", "if(id % 17 = 0, NULL, concat('c', id * id % 7)) AS card", "concat('s', id % 3) AS shop",
        "if(id % 5 = 0, NULL, id * 37 % 4) AS amount", "timestamp_seconds(1700000000 + id * 11) AS ts",
    )  # fmt: skip
    events.write.parquet(str(folder / "tx"))
    spark.read.schema(SCHEMA).parquet(str(folder / "tx")).createOrReplaceTempView("batch_tx")
    spark.sql(SPEND.format(SLIDING, "batch_tx", SLIDING)).createOrReplaceTempView("batch_spend")
    late = "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 2 HOURS"
    with Pond(spark, folder / "pond", instances=2) as pond:
        pond.load(f"CREATE TABLE tx ({SCHEMA}) USING parquet OPTIONS (path '{folder / 'tx'}', maxFilesPerTrigger 1)")
        pond.add("spend", SPEND.format(SLIDING, late.removeprefix("FROM "), SLIDING))
        for name, text in RANKS.items():
            pond.add(name, text.format(spend="STREAM spend", ties=""))
        for name, (text, _, _) in LIMITS.items():
            pond.add(name, text.format(spend="STREAM spend"))
        for name, (text, _, _) in FIRST.items():
            pond.add(name, text.format(tx=late.removeprefix("FROM "), spend="STREAM spend"))
        for name, text in SO_FAR.items():
            tx = "STREAM tx" if name == "dense" else f"STREAM tx {late.removeprefix('FROM STREAM tx ')}"
            pond.add(name, text.format(tx=tx, spend="STREAM spend"), emit="update")
        pond.run(once=True, drain=True)
        yield pond


@pytest.mark.parametrize("name", SO_FAR)
def test_ranks_of_all_rows_so_far_end_as_those_of_sparks_batch(spark: SparkSession, pond: Pond, name: str) -> None:
    rows, last = Counter[str](), dict[str, str]()
    emitted = pond.table(name).to_pylist()
    for row in emitted:
        operation = row.pop("_op")
        if name in KEYS:
            last[repr([row[key] for key in KEYS[name]])] = repr(row)
        else:
            rows[repr(row)] += 1 if operation == "upsert" else -1
        assert operation == "upsert" or name not in KEYS
    ours = sorted(last.values() if last else rows.elements())
    text = SO_FAR[name].format(tx="batch_tx", spend="batch_spend")
    assert ours == RECORDED.answer(name, text, ours, lambda: _batch(spark, text)[1])
    assert len(ours) >= 10 and (len(emitted) > len(ours)) >= (name in ("top_so_far", "odd_ranks", "by_time"))
    assert min(rows.values(), default=0) >= 0


def _batch(spark: SparkSession, text: str) -> tuple[list[str], list[str]]:
    """The columns and rows of a batch query."""
    return _answer(interpreted_table(spark.sql(text)))


def _answer(table: pa.Table) -> tuple[list[str], list[str]]:
    return table.column_names, sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("name", RANKS)
def test_rows_are_those_of_sparks_batch(spark: SparkSession, pond: Pond, name: str) -> None:
    ours, text = _answer(pond.table(name)), RANKS[name].format(spend="batch_spend", ties=TIES)
    assert ours == RECORDED.answer(name, text, ours, lambda: _batch(spark, text))
    assert len(ours[1]) > 20


@pytest.mark.parametrize("name", LIMITS)
def test_limit_gives_the_first_rows_of_each_window(spark: SparkSession, pond: Pond, name: str) -> None:
    text, order, rows = LIMITS[name]
    ranked = f"row_number() OVER (PARTITION BY w ORDER BY {order.format(ties=TIES)}) <= {rows}"
    batch = text.format(spend="batch_spend").partition(" ORDER BY ")[0]
    ours = _answer(pond.table(name))
    assert ours == RECORDED.answer(name, batch, ours, lambda: _batch(spark, f"{batch} QUALIFY {ranked}"))
    assert len(ours[1]) > 20


@pytest.mark.parametrize("name", FIRST)
def test_limit_alone_gives_the_first_rows_of_the_stream(spark: SparkSession, pond: Pond, name: str) -> None:
    """All windows close in one epoch, and each epoch has the events of a third of the time."""
    text, order, rows = FIRST[name]
    batch = text.format(tx="batch_tx", spend="batch_spend").partition(" LIMIT ")[0]
    theirs = interpreted_table(spark.sql(f"{batch} ORDER BY {order}"))
    ours = _answer(pond.table(name))
    starts = (0, 67, 133) if name == "events" else (0,)  # of the files, of which any may be the first
    assert len(ours[1]) == rows and ours in [_answer(theirs.slice(start, rows)) for start in starts]


ONE_TEXT = {
    "ranked": f"SELECT card, shop, total, w, row_number() OVER (PARTITION BY w ORDER BY total DESC{TIES}) AS r "
    "FROM ({}) QUALIFY r <= 3",
    "limited": f"SELECT card, shop, total, w FROM ({{}}) ORDER BY total DESC{TIES} LIMIT 3",
    "joined": f"SELECT l.* FROM (SELECT card, shop, total, w FROM ({{}}) ORDER BY total DESC{TIES} LIMIT 3) AS l "
    "LEFT JOIN (VALUES ('none', 1)) AS d(shop, x) ON l.shop = d.shop WHERE x IS NULL",
    "grouped": "SELECT w, card, shop, max(total) AS total FROM (SELECT card, shop, total, w FROM ({}) "
    f"ORDER BY total DESC{TIES} LIMIT 3) GROUP BY ALL",
}
"""The aggregation and its first rows in one text; the last two do more with these."""


def test_one_text_aggregates_and_ranks(spark: SparkSession, pond: Pond, tmp_path: Path) -> None:
    late, columns = "STREAM tx WATERMARK ts DELAY OF INTERVAL 2 HOURS", "card, shop, total, w"
    with Pond(spark, tmp_path / "pond", instances=2) as other:
        folder = Path(str(pond.address)).with_name("tx")
        other.load(f"CREATE TABLE tx ({SCHEMA}) USING parquet OPTIONS (path '{folder}')")
        for name, text in ONE_TEXT.items():
            other.add(name, text.format(SPEND.format(SLIDING, late, SLIDING)))
        other.run(once=True, drain=True)
        found = {name: _answer(other.table(name).select(columns.split(", "))) for name in ONE_TEXT}
        explained = explain(other.plan, other.streams)
    assert "each task sends only its first 3 rows of each partition" in explained
    first = f"QUALIFY row_number() OVER (PARTITION BY w ORDER BY total DESC{TIES}) <= 3"
    theirs = _batch(spark, f"SELECT {columns} FROM batch_spend {first}")
    assert len(theirs[1]) > 20 and found == dict.fromkeys(ONE_TEXT, theirs)


REFUSED = {
    "SELECT card FROM STREAM tx LIMIT 3 OFFSET 1": "OFFSET",
    "SELECT card FROM STREAM spend ORDER BY n": "ends in ORDER BY",
    "SELECT card FROM STREAM tx ORDER BY amount LIMIT 3": "is over single events",
    "SELECT * FROM (SELECT card, n FROM STREAM spend LIMIT 3) WHERE n > 1": "LIMIT without ORDER BY is not the end",
    "SELECT card, row_number() OVER (ORDER BY total) AS r FROM STREAM spend": "has no window of spend",
    "SELECT card, row_number() OVER (PARTITION BY shop ORDER BY total) AS r FROM STREAM spend": "has no window of",
    "SELECT card, row_number() OVER (PARTITION BY card ORDER BY amount) AS r FROM STREAM tx": "is over single events",
    "SELECT card, stddev(n) OVER (PARTITION BY w ORDER BY n) AS b FROM STREAM spend": "is not supported beside ranks",
    "SELECT card, cume_dist() OVER (PARTITION BY card ORDER BY w) AS a FROM STREAM spend": "has no window of spend",
    "SELECT card, lag(n, 1, total) OVER (PARTITION BY w ORDER BY n) AS a FROM STREAM spend": "is not a constant",
    "SELECT card, lag(amount) IGNORE NULLS OVER (PARTITION BY card ORDER BY ts) AS a FROM STREAM tx": "ignores NULLs",
    "SELECT card, first_value(n) FILTER (WHERE n > 1) OVER (PARTITION BY w ORDER BY n) AS a FROM STREAM spend":
    "has a FILTER",
    "SELECT card, last_value(n) OVER (PARTITION BY w ORDER BY n ROWS 3 PRECEDING) AS a FROM STREAM spend":
    "The frame `ROWS",
    "SELECT card, lag(n) OVER (PARTITION BY card ORDER BY total) AS a FROM STREAM spend": "ORDER BY total",
    "SELECT card, ntile(4) OVER (PARTITION BY card ORDER BY ts) AS a FROM STREAM tx": "is over single events",
    "SELECT card, nth_value(n, 2) OVER (PARTITION BY w ORDER BY n ROWS 3 PRECEDING) AS a FROM STREAM spend":
    "The frame `ROWS",
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_ranks_are_refused_by_name(pond: Pond, text: str) -> None:
    with pytest.raises(MillpondError, match=REFUSED[text]):
        pond.add("refused", text)


def test_explain_names_the_ranks(pond: Pond) -> None:
    text = explain(pond.plan, pond.streams)
    assert "rank  a: rank by most asc nulls first" in text
    assert "rank  a: sum(most) up to each row by n asc nulls first" in text
    assert "top.2: rank without a key, then filter by HAVING" in text
    assert "windows   the events of the same key and time" in text


def write(folder: Path, name: str, rows: list[tuple[int, str, int]]) -> None:
    """A file of events, each with the second of its time, its card and its amount."""
    folder.mkdir(exist_ok=True)
    lines = [f'{{"card": "{card}", "amount": {amount}, "ts": {second}}}' for second, card, amount in rows]
    (folder / name).write_text("\n".join(lines) + "\n")


def test_ranks_follow_changes_and_restarts(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    text = f"""
        CREATE TABLE tx (card STRING, amount BIGINT, ts BIGINT, at TIMESTAMP
        GENERATED ALWAYS AS (timestamp_seconds(ts)))
        USING json OPTIONS (path '{tmp_path / "in"}', maxFilesPerTrigger '1');
        CREATE STREAMING TABLE spend AS SELECT card, sum(amount) AS total, window(at, '10 seconds') AS w
        FROM STREAM tx WATERMARK at DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;
    """
    top = "SELECT card, w.start AS since, row_number() OVER (PARTITION BY w ORDER BY total DESC) AS r FROM STREAM spend"
    write(tmp_path / "in", "1.json", [(1, "a", 5), (2, "b", 7), (3, "c", 7), (11, "a", 1)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.load(text)
        pond.add("top", f"{top} QUALIFY r <= 2")
        pond.run()
        assert places(pond, "top") == [(0, "b", 1), (0, "c", 2)]
        pond.add("all", top)
        best = "SELECT card, amount, row_number() OVER (ORDER BY amount DESC) AS r FROM STREAM tx QUALIFY r <= 2"
        pond.add("best", best, emit="update")
        pond.alter("top", f"{top} QUALIFY r <= 1")
        pond.scale(3)
        write(tmp_path / "in", "2.json", [(12, "d", 4), (13, "b", 3), (21, "a", 1)])
        pond.run()
        assert places(pond, "top") == [(0, "b", 1), (0, "c", 2), (10, "d", 1)]
        assert {(row["card"], row["r"]) for row in pond.table("best").to_pylist()} == {("d", 1), ("b", 2)}
        with pytest.raises(MillpondError, match="updating results"):
            pond.alter("best", best.replace("2", "3"))
        pond.drop("top")
    write(tmp_path / "in", "3.json", [(22, "d", 4), (31, "b", 3)])
    with Pond(spark, tmp_pond, instances=3) as pond:
        pond.load(text)
        pond.add("all", top)
        pond.add("best", best, emit="update")
        pond.run(drain=True)
        assert [(row["card"], row["r"]) for row in pond.table("best").to_pylist()][2:] == [("d", 2)]
        assert places(pond, "all")[-3:] == [(20, "d", 1), (20, "a", 2), (30, "b", 1)]


def places(pond: Pond, query: str) -> list[tuple[int, str, int]]:
    """The rows of a query, by second and rank."""
    rows = pond.table(query).to_pylist()
    return sorted(((int(row["since"].timestamp()), row["card"], row["r"]) for row in rows), key=lambda row: row[::2])
