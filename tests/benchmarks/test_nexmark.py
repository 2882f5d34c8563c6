"""Nexmark: events by the generator's rules, and every query that a pond answers against DuckDB."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import nexmark_events
import numpy as np
import pyarrow as pa
import pytest
from nexmark_queries import QUERIES, flink_pass, flink_tables, streams
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.model.endpoints import Sink


def test_ids_are_those_of_the_generator_event_by_event() -> None:
    """The naive twin counts what it has made."""
    numbers = np.arange(500, dtype=np.int64)
    persons = auctions = 0
    for number in range(500):
        if number % 50 < 1:
            persons += 1
        elif number % 50 < 4:
            auctions += 1
        assert nexmark_events.last_person(numbers)[number] == persons - 1
        assert nexmark_events.last_auction(numbers)[number] == auctions - 1


def test_events_have_the_generators_shares_ranges_and_sizes() -> None:
    found = nexmark_events.events(0, 50_000)
    assert [len(table) for table in found] == [1_000, 3_000, 46_000]
    assert found.person["id"].to_pylist() == list(range(1000, 2000))
    assert found.auction["id"].to_pylist() == list(range(1000, 4000))
    auction, bidder = found.bid["auction"].to_numpy(), found.bid["bidder"].to_numpy()
    newest = nexmark_events.last_auction(np.arange(50_000)[np.arange(50_000) % 50 >= 4]) + 1000
    assert ((auction >= 1000) & (auction <= newest + 10)).all()
    assert 0.45 < ((auction - 1000) % 100 == 0).mean() < 0.55
    assert 0.7 < ((bidder - 1000) % 100 == 1).mean() < 0.8
    assert found.bid["price"].to_numpy().min() >= 100 and found.bid["price"].to_numpy().max() <= 10**8
    length = sum(len(text) for text in found.bid["extra"].to_pylist()) / 46_000
    assert 64 < length < 72
    channels = Counter(found.bid["channel"].to_pylist())
    assert all(5_000 < channels[name] < 6_500 for name in nexmark_events.HOT_CHANNELS)
    times = found.bid["ts"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all() and times[-1] - times[0] < 5_000_000
    assert nexmark_events.events(0, 50_000) == found


def test_texts_are_letters_and_blanks_within_their_length() -> None:
    made = nexmark_events.texts(np.random.default_rng(1), 2_000, 20).to_pylist()
    assert max(map(len, made)) == 19 and all(text == text.strip() for text in made)
    assert set("".join(made)) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_flink_runs_every_query() -> None:
    folders = {kind: f"/in/{kind}" for kind in (*nexmark_events.SCHEMAS, "side_input")}
    tables = flink_tables(folders, nexmark_events.SCHEMAS)
    assert "arrived TIMESTAMP_LTZ(3), extra STRING, WATERMARK FOR arrived AS arrived" in tables[-2]
    spec = flink_pass(list(QUERIES), tables, 1.0)
    assert len(spec["inserts"]) == len(QUERIES)
    for query, statement in zip(QUERIES.values(), spec["tables"][len(tables) :], strict=True):
        assert statement.startswith(f"CREATE TABLE out_{query.name} (") and "blackhole" in statement


@pytest.fixture(scope="module")
def answered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pa.Table]]:
    """A minute of events, and the rows of all queries in one pond over it."""
    folder = tmp_path_factory.mktemp("nexmark")
    nexmark_events.write(folder, 6_000, 2, per_second=100)
    with Pond(spark, folder / "pond", instances=2) as pond:
        pond.load(streams(str(folder), nexmark_events.SCHEMAS))
        for query in QUERIES.values():
            for name, text in query.pond.items():
                pond.add(name, text, sink=Sink("memory" if name == query.name else "noop"), **query.options)
        pond.run(drain=True)
        return folder, {query.name: pond.table(query.name) for query in QUERIES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_a_pond_answers_what_duckdb_does(name: str, answered: tuple[Path, dict[str, pa.Table]]) -> None:
    folder, tables = answered
    query, rows = QUERIES[name], tables[name]
    with duckdb.connect() as judge:
        judge.execute("SET TimeZone = 'UTC'")
        for kind in (*nexmark_events.SCHEMAS, "side_input"):
            judge.execute(f"CREATE VIEW {kind} AS FROM read_parquet('{folder}/{kind}/*.parquet')")
        expected = judge.sql(query.duck).to_arrow_table()
    if query.total:
        rows = _last(rows, query.total, list(query.keys))
    assert _bag(rows, expected.column_names) == _bag(expected, expected.column_names)
    assert len(expected) > 0


def _last(rows: pa.Table, total: str, keys: list[str]) -> pa.Table:
    """The last version of each row: the one with the greatest total."""
    newest = rows.group_by(keys).aggregate([(total, "max")])
    kept = rows.join(newest, keys=[*keys, total], right_keys=[*keys, f"{total}_max"], join_type="inner")
    return kept.select([name for name in rows.column_names if not name.startswith("_")])


def _bag(rows: pa.Table, names: list[str]) -> Counter[Any]:
    assert len(rows.column_names) == len(names)
    return Counter(zip(*(rows.column(number).to_pylist() for number in range(len(names))), strict=True))
