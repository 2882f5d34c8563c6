"""Arrow columns as text: equal to Spark's, and read back by every reader."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from millpond.errors import UnsupportedQuery
from millpond.followers.sinks.text import as_lines, csv_header, csv_lines, json_objects

UTC = pa.timestamp("us", "UTC")
NASTY = ["", " pad ", 'a"b', "x,y", "nl\nx", "cr\rx", "back\\slash", 'q\\"r', "ends\\", "e,\\", "a,b\\c"]
NASTY += ["#cé\x01/\u2028", "\x00\x1f\x7f"]


def objects(table: pa.Table, omit_nulls: bool = True) -> list[str]:
    texts: list[str] = json_objects(table, omit_nulls=omit_nulls).to_pylist()
    return texts


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 3.0, "3.0"),
        (pa.float64(), -0.0, "-0.0"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), 1e22, "1e+22"),
        (pa.float64(), float("nan"), '"NaN"'),
        (pa.float64(), float("inf"), '"Infinity"'),
        (pa.float64(), float("-inf"), '"-Infinity"'),
        (UTC, 1356998400_000000, '"2013-01-01T00:00:00.000Z"'),
        (UTC, 1356998400_120000, '"2013-01-01T00:00:00.120Z"'),
        (UTC, 1356998400_123456, '"2013-01-01T00:00:00.123456Z"'),
        (UTC, -1, '"1969-12-31T23:59:59.999999Z"'),
        (UTC, -1000, '"1969-12-31T23:59:59.999Z"'),
        (pa.timestamp("us"), 0, '"1970-01-01T00:00:00.000"'),
        (pa.date32(), 0, '"1970-01-01"'),
        (pa.string(), 'a"b\\\n\t\x01é', '"a\\"b\\\\\\n\\t\\u0001é"'),
    ],
)
def test_json_of_one_value(kind: pa.DataType, value: Any, text: str) -> None:
    assert objects(pa.table({"v": pa.array([value], kind)})) == [f'{{"v":{text}}}']


def test_mixed_timestamps_keep_their_own_precision() -> None:
    times = pa.array([0, 1, None, 5000], UTC)
    assert [json.loads(text).get("t") for text in objects(pa.table({"t": times}))] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.000001Z",
        None,
        "1970-01-01T00:00:00.005Z",
    ]


@pytest.mark.parametrize("kind", [UTC, pa.timestamp("us"), pa.timestamp("s")])
@pytest.mark.parametrize("omit_nulls", [False, True])
def test_repeated_timestamps_have_the_text_of_each(kind: pa.DataType, omit_nulls: bool) -> None:
    times = pa.array([60_000_000, None, -1, 5000] * 30, pa.int64()).view(pa.timestamp("us")).cast(kind, safe=False)
    windows = pa.StructArray.from_arrays([times, times], ["start", "end"])
    table = pa.table({"t": times, "w": windows, "n": range(120)})
    alone = [objects(table.slice(row, 1), omit_nulls)[0] for row in range(120)]
    assert objects(table, omit_nulls) == alone and len({*alone}) == 120


def test_nulls_are_left_out_or_named() -> None:
    window = pa.array(
        [{"start": 0, "end": 1000}, None, {"start": None, "end": 1000}, {"start": None, "end": None}],
        pa.struct([("start", UTC), ("end", UTC)]),
    )
    table = pa.table({"w": window, 'q"': pa.array([1, 2, None, None]), "s": pa.array([None] * 4, pa.string())})
    assert objects(table) == [
        '{"w":{"start":"1970-01-01T00:00:00.000Z","end":"1970-01-01T00:00:00.001Z"},"q\\"":1}',
        '{"q\\"":2}',
        '{"w":{"end":"1970-01-01T00:00:00.001Z"}}',
        '{"w":{}}',
    ]
    assert json.loads(objects(table, omit_nulls=False)[1]) == {"w": None, 'q"': 2, "s": None}
    assert objects(pa.table({"v": pa.array([None, 1], pa.int64())})) == ["{}", '{"v":1}']


def test_json_reads_back_whatever_the_text() -> None:
    table = pa.table({"s": NASTY, "long": pa.array(NASTY, pa.large_string())})
    assert [json.loads(text)["s"] for text in objects(table)] == NASTY
    assert [json.loads(text)["long"] for text in objects(table)] == NASTY
    whole = pa.table({"s": pa.array([*NASTY, None], pa.string())})
    alone = [objects(whole.slice(row, 1), omit_nulls=False)[0] for row in range(len(whole))]
    assert alone == objects(whole, omit_nulls=False) and alone[-1] == '{"s":null}'


def test_slices_and_chunks_are_written_whole() -> None:
    table = pa.concat_tables([pa.table({"v": [1, 2, 3]}), pa.table({"v": [4, 5]})]).slice(1, 3)
    assert bytes(as_lines(json_objects(table, omit_nulls=True))) == b'{"v":2}\n{"v":3}\n{"v":4}\n'
    assert bytes(as_lines(json_objects(table.slice(0, 0), omit_nulls=True))) == b""
    assert bytes(as_lines(csv_lines(table).slice(1))) == b"3\n4\n"
    assert bytes(as_lines(csv_lines(table.slice(0, 0)))) == b""


def test_csv_as_spark_writes_it() -> None:
    table = pa.table(
        {
            "s": ['a"b', "x,y", "", "back\\slash", 'q\\"r', "ends,\\", "#c", None],
            "d": [1.0, float("nan"), None, -0.0, float("inf"), 0.001, 2.5, 3.0],
            "t": pa.array([0] * 7 + [None], UTC),
        }
    )
    time = "1970-01-01T00:00:00.000Z"
    assert csv_lines(table).to_pylist() == [
        f'"a\\"b",1.0,{time}',
        f'"x,y",NaN,{time}',
        f'"",,{time}',
        f"back\\slash,-0.0,{time}",
        f'"q\\\\\\"r",Infinity,{time}',
        f'"ends,\\\\",0.001,{time}',
        f'"#c",2.5,{time}',
        ",3.0,",
    ]
    assert csv_header(["s", "sum(a, b)"], ";") == "s;sum(a, b)"


@pytest.mark.parametrize("separator", [",", ";", "|", "\t", "]", "^"])
def test_csv_reads_back_whatever_the_text(separator: str, tmp_path: Path) -> None:
    texts = [*NASTY[1:], separator, separator * 2 + "\\"]
    table = pa.table({"a": texts, "b": texts[::-1]})
    (tmp_path / "x.csv").write_bytes(as_lines(csv_lines(table, separator)))
    read = duckdb.execute(
        "select * from read_csv(?, delim = ?, quote = '\"', escape = '\\', header = false, all_varchar = true,"
        " new_line = '\\n', columns = {'a': 'varchar', 'b': 'varchar'}, auto_detect = false)",
        [str(tmp_path / "x.csv"), separator],
    ).fetchall()
    assert read == list(zip(texts, texts[::-1], strict=True))


def test_intervals_as_spark_writes_them() -> None:
    """Also negative ones, fractions of a second, and the least one, whose absolute value is no int64."""
    micros = [0, 1_500_000, -1, None, 3 * 86_400_000_000 + 3_661_000_001, 10_100_000, -(2**63)]
    table = pa.table({"i": pa.array(micros, pa.duration("us"))})
    texts = [
        "0 00:00:00", "0 00:00:01.5", "-0 00:00:00.000001", None, "3 01:01:01.000001", "0 00:00:10.1",
        "-106751991 04:00:54.775808",
    ]  # fmt: skip
    whole = [None if text is None else f"INTERVAL '{text}' DAY TO SECOND" for text in texts]
    assert [json.loads(text) for text in objects(table, omit_nulls=False)] == [{"i": text} for text in whole]
    assert csv_lines(table.slice(3)).to_pylist() == ["", *whole[4:]]


def test_types_without_text_are_named() -> None:
    with pytest.raises(UnsupportedQuery, match="column v of type binary"):
        json_objects(pa.table({"v": [[b"1"]]}), omit_nulls=True)
    with pytest.raises(UnsupportedQuery, match=r"column w\.x"):
        json_objects(pa.table({"w": [{"x": b"1"}]}), omit_nulls=True)
    with pytest.raises(UnsupportedQuery, match="column w of type struct"):
        csv_lines(pa.table({"w": [{"x": 1}]}))


def test_lists_are_json_arrays() -> None:
    table = pa.table({"a": [[1.5, None, math.nan], None, []], "b": [['x"', None], ["y"], []]})
    assert json_objects(table, omit_nulls=True).to_pylist() == [
        '{"a":[1.5,null,"NaN"],"b":["x\\"",null]}', '{"b":["y"]}', '{"a":[],"b":[]}',
    ]  # fmt: skip
    assert json_objects(table.slice(1, 1), omit_nulls=False).to_pylist() == ['{"a":null,"b":["y"]}']
    bins = [[{"x": 1.0, "y": None}, None], None, [], [{"x": 2.5, "y": 3.0}]]
    nested = pa.table({"h": bins, "n": [[[1, None], []], [None], [], [[2]]]})
    assert json_objects(nested, omit_nulls=True).to_pylist() == [
        '{"h":[{"x":1.0},null],"n":[[1,null],[]]}', '{"n":[null]}', '{"h":[],"n":[]}',
        '{"h":[{"x":2.5,"y":3.0}],"n":[[2]]}',
    ]  # fmt: skip
    assert json_objects(nested.slice(3), omit_nulls=True).to_pylist() == ['{"h":[{"x":2.5,"y":3.0}],"n":[[2]]}']
    with pytest.raises(UnsupportedQuery, match="column a"):
        csv_lines(table)
