"""The gather parses JSON as Spark does: the same values and the same malformed records, or an obstacle."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kit.inputs.json_texts import ALL_ALONE, KINDS, json_text
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import parse_texts
from millpond.formats.text_parser import Parsed
from millpond.model.stream import Field, Stream
from millpond.spark.sources.value_formats import parsed

COLUMNS = [TextColumn(kind, kind) for kind in KINDS]


def comparable(columns: list[pa.Array]) -> list[list[object]]:
    """Values with floats as their bits, and times as numbers: years may be outside of Python's range."""
    made = []
    for column in columns:
        width = pa.int32() if str(column.type) in ("date32[day]", "float") else pa.int64()
        plain = column.view(width) if pa.types.is_temporal(column.type) or pa.types.is_floating(column.type) else column
        made.append(list(map(repr, column.to_pylist())) if pa.types.is_nested(column.type) else plain.to_pylist())
    return made


def of_spark(spark: SparkSession, texts: list[bytes]) -> tuple[list[list[object]], list[str | None]]:
    frame = spark.createDataFrame(pa.table({"value": pa.array(texts, pa.binary())}))
    stream = Stream("s", tuple(Field(kind, kind) for kind in KINDS))
    made = parsed(frame, stream, stream.columns, {"format": "json"})
    table = made.records.select(*made.columns, made.reason.alias("reason")).toArrow()
    columns = [column.combine_chunks() for column in table.columns]
    return comparable(columns[:-1]), columns[-1].to_pylist()


def of_gather(texts: list[bytes]) -> Parsed | None:
    try:
        return parse_texts(pa.array(texts, pa.binary()), COLUMNS, "UTC")
    except Doubt:
        return None


def both_misfits(one: str, other: str | None) -> bool:
    return all(reason is not None and reason.partition(" is not a")[0] in KINDS for reason in (one, other))


def check(spark: SparkSession, texts: list[bytes], together: int) -> tuple[int, int]:
    """Compare both parsers; returns how many texts were parsed here, and how many of these are malformed."""
    values, reasons = of_spark(spark, texts)
    here = dead = 0
    for start in range(0, len(texts), together):
        some = slice(start, start + together)
        found = of_gather(texts[some])
        if found is None:
            continue
        assert found.malformed.tolist() == [reason is not None for reason in reasons[some]], texts[some]
        for row, reason in found.reasons.items():
            # of several misfits, the gather may know only a later one
            other, far = reasons[some][row], any(one * 300 in texts[some][row] for one in (b"1", b"["))
            assert other == reason or both_misfits(reason, other) or far, texts[some][row]  # beyond Jackson's limits
        alive = np.flatnonzero(~found.malformed)
        for kind, mine, column in zip(KINDS, comparable(found.columns), values, strict=True):
            wanted = column[some]
            assert [mine[row] for row in alive] == [wanted[row] for row in alive], (kind, texts[some])
        here, dead = here + len(found.malformed), dead + int(found.malformed.sum())
    return here, dead


def test_each_odd_value_and_many_odd_texts_are_parsed_as_spark_does(spark: SparkSession) -> None:
    here, dead = check(spark, list(ALL_ALONE), 1)
    assert here > 400
    assert dead > 200


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32))
def test_texts_in_batches_are_parsed_as_spark_does(spark: SparkSession, seed: int) -> None:
    dice = Random(seed)
    odd = [json_text(dice, dice.choice((0.05, 0.3))) for _ in range(600)]
    check(spark, odd, 1)
    some = [json_text(dice, 0.5 if dice.random() < 0.02 else 0.0) for _ in range(1000)]
    check(spark, some, 20)
    ordinary = [json_text(dice, 0.0) for _ in range(500)]
    assert check(spark, ordinary, 100) == (500, 0)
