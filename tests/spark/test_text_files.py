"""JSON and CSV, in files and in values of records, that gather tasks parse as Spark does, or meet an obstacle."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.inputs.event_files import not_local
from kit.inputs.json_texts import KINDS, json_text, ordinary_value
from millpond import Pond
from millpond.formats.csv_values import parse_csv
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import final_type
from millpond.model.stream import Field, Stream
from millpond.plan.explain.plan_text import explain
from millpond.runtime.inputs.file_parts import CsvForm, FilePart, NotEqual
from millpond.runtime.inputs.text_files import read_csv, read_lines
from millpond.spark.reading.file_source import list_in_driver
from millpond.spark.session.session import reading_session
from millpond.spark.sources.value_formats import parsed

COLUMNS = [TextColumn(kind, kind) for kind in KINDS]
_ODD_LINES = (b"", b"  ", b"\t", b"null", b"[]", b'[{"int":1},{"int":2}]', b'\xef\xbb\xbf{"int":1}', b"\x00", b"{}")


def _write(folder: Path, number: int, rng: Random) -> Path:
    """Write a random file; its name may promise a compression that the content does not have."""
    odd = rng.choice([0, 0, 0, 0.3])
    lines = [json_text(rng, odd / 10) for _ in range(rng.randrange(8))]
    if rng.random() < 0.9:
        lines = [line.replace(b"\n", b" ").replace(b"\r", b" ") for line in lines]
    lines += [rng.choice(_ODD_LINES) for _ in range(8) if rng.random() < odd / 4]
    lines += [rng.choice([b"oops", b'{"int":1,"string":"x', b"\x01", b'{"int":1,"x":tru}'])] * rng.randrange(2)
    lines += [b""] * rng.randrange(2)
    rng.shuffle(lines)
    return _written(folder / f"{number}", lines, rng, ["json", "json", "txt", "json.gz", "json.GZ", "gz.json", "zst"])


def _written(stem: Path, lines: list[bytes], rng: Random, suffixes: list[str]) -> Path:
    """Write lines with random ends and a random one of some suffixes."""
    end = rng.choice([b"\n", b"\n", b"\r\n", b"\r"])
    content = end.join(lines) + (end if rng.random() < 0.5 else b"")
    content = b"\xef\xbb\xbf" + content if rng.random() < 0.03 else content
    suffix = rng.choice(suffixes)
    if suffix.lower().endswith("gz") and rng.random() < 0.9:
        middle = rng.randrange(len(content) + 1)
        content = gzip.compress(content[:middle]) + (gzip.compress(content[middle:]) if middle else b"")
        content = content[:-4] if rng.random() < 0.05 else content
    path = stem.with_name(f"{stem.name}.{suffix}")
    path.write_bytes(content)
    return path


Read = Callable[[FilePart], Iterator[tuple[list[pa.Array], int]]]


def _ours(path: Path, shares: int, kinds: Sequence[str], read: Read) -> pa.Table | None:
    schema = pa.schema([(kind, final_type(kind, "UTC")) for kind in kinds])
    size, parts = path.stat().st_size, []
    try:
        for share in range(shares):
            for columns, rows in read(FilePart(0, str(path), share, shares, size)):
                assert all(len(column) == rows for column in columns)
                parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    except NotEqual:
        return None
    return pa.Table.from_batches(parts, schema)


def _bits(table: pa.Table) -> list[list[str]]:
    """The values of each column as text, with every NaN and zero as it is; times as numbers."""
    found = []
    for column in (column.combine_chunks() for column in table.columns):
        number = pa.int32() if pa.types.is_date(column.type) else pa.int64()
        plain = column.view(number) if pa.types.is_temporal(column.type) else column
        found.append(list(map(repr, plain.to_pylist())))
    return found


@pytest.fixture(scope="module")
def reading(spark: SparkSession) -> Iterator[SparkSession]:
    session = reading_session(spark)
    list_in_driver(session, [])  # as a pond does whose files are local
    yield session


def _check(reading: SparkSession, paths: Sequence[Path], kinds: Sequence[str], read: Read, **options: str) -> int:
    """Compare both readers, of CSV if there are options; return the number of files that are read in Arrow."""
    found = {path: table for i, path in enumerate(paths) if (table := _ours(path, i % 4 + 1, kinds, read)) is not None}
    schema = ", ".join(f"`{kind}` {kind}" for kind in (CSV_KINDS if options else KINDS))
    reader = reading.read.schema(schema).options(**options).format("csv" if options else "json")
    frame = reader.load([*map(str, found)])
    table = frame.select(*(f"`{kind}`" for kind in kinds), F.col("_metadata.file_name").alias("file")).toArrow()
    for path, mine in found.items():
        theirs = table.filter(pa.compute.equal(table["file"], path.name)).drop(["file"])
        assert _bits(mine) == _bits(theirs), (options, path.read_bytes())
    return len(found)


@settings(max_examples=2, phases=[Phase.generate])
@given(st.integers(0, 1 << 30))
def test_both_readers_of_json_agree(reading: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, rng = tmp_path_factory.mktemp("files"), Random(seed)
    paths = [_write(folder, number, rng) for number in range(60)]
    read = _check(reading, paths, KINDS, lambda part: read_lines(part, COLUMNS, "UTC"))
    assert 10 <= read < len(paths), "some files are obstacles, most are not"


CSV_KINDS = [kind for kind in KINDS if "<" not in kind]
_ODD_FIELDS = r"""
"" "a" "a""b" "a\"b" a"b "a"b "a \ +1 1.5 1e5 -0 -0.0 1. .5 . - 0x1F 007 1d NaN nan Inf -Infinity 1e400 5e-324 TRUE
False yes 128 -129 99999999999999999999 1,5 12345678901.25 0.125 2024-1-1 2024-01-01T10:00 10:00 2024-02-30 null é #x
2024-01-01T10:00:00 2024-01-01T10:00:00.123456789Z "1" "true" "2024-01-01" 'a'
"""
_ODD = (*_ODD_FIELDS.split(), " a", "b ", '" c "', '" 1"', " 1", "\0", "", "NaN ", '"\tInfinity"')


def _csv_line(rng: Random, odd: float, separator: str) -> bytes:
    fields = []
    for kind in CSV_KINDS:
        value = rng.choice(["", *[ordinary_value(rng, kind)] * 4]).replace("\\", "").strip('"').replace('"', "'")
        value = f'"{value}"' if rng.random() < 0.2 else value.replace(separator, " ")
        fields.append(rng.choice(_ODD) if rng.random() < odd else value)
    fields = fields[: rng.randrange(len(fields))] if rng.random() < odd / 4 else fields
    fields = [*fields, "more"] if rng.random() < odd / 4 else fields
    return (rng.choice([" ", "\t", "\ufeff"]) if rng.random() < odd / 4 else "").encode() + separator.join(
        fields
    ).encode()


@settings(max_examples=2, phases=[Phase.generate])
@given(st.integers(0, 1 << 30))
def test_both_readers_of_csv_agree(reading: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, rng = tmp_path_factory.mktemp("files"), Random(seed)
    separator, header, paths = rng.choice([",", ";", "|", "\t"]), rng.random() < 0.5, []
    for number in range(60):
        odd = rng.choice([0, 0, 0.02, 0.2])
        lines = [_csv_line(rng, odd, separator) for _ in range(rng.randrange(6))]
        lines = [line for one in lines for line in ([one, b""] if rng.random() < 0.1 else [one])]
        paths.append(_written(folder / f"{number}", lines, rng, ["csv", "csv", "csv.gz"]))
    kinds = rng.sample(CSV_KINDS, rng.randrange(1, len(CSV_KINDS)))
    form = CsvForm(tuple(CSV_KINDS), separator, header)
    columns = [TextColumn(kind, kind) for kind in kinds]
    options = {"sep": separator, "header": str(header).lower()}
    read = _check(reading, paths, kinds, lambda part: read_csv(part, form, columns, "UTC"), **options)
    assert 10 <= read < len(paths), "some files are obstacles, most are not"


@settings(max_examples=2, phases=[Phase.generate])
@given(st.integers(0, 1 << 30))
def test_values_of_csv_are_parsed_as_spark_does(reading: SparkSession, seed: int) -> None:
    rng = Random(seed)
    separator = rng.choice([",", ";", "|", "\t"])
    texts = [_csv_line(rng, rng.choice([*[0] * 8, 0.02, 0.2]), separator) for _ in range(400)]
    texts = [one if rng.random() < 0.97 else rng.choice([b"", None, b"oops", b"a\nb", b"a\r", b",,"]) for one in texts]
    frame = reading.createDataFrame(pa.table({"value": pa.array(texts, pa.binary())}))
    fields = tuple(Field(kind, kind) for kind in CSV_KINDS)
    made = parsed(frame, Stream("s", fields), fields, {"format": "csv", "sep": separator})
    table = made.records.select(*made.columns, made.reason.isNotNull().alias("malformed")).toArrow()
    columns, ours, malformed = [TextColumn(kind, kind) for kind in CSV_KINDS], 0, 0
    for start in range(0, len(texts), 2):
        try:
            found = parse_csv(pa.array(texts[start : start + 2], pa.binary()), columns, "UTC", separator, strict=True)
        except Doubt:
            continue
        theirs = table.slice(start, 2).combine_chunks()
        assert found.malformed.tolist() == theirs["malformed"].to_pylist(), texts[start : start + 2]
        alive = pa.array(~found.malformed)
        mine = pa.table(found.columns, names=CSV_KINDS).filter(alive)
        assert _bits(mine) == _bits(theirs.drop(["malformed"]).filter(alive)), texts[start : start + 2]
        ours, malformed = ours + 1, malformed + int(found.malformed.sum())
    assert 60 < ours < 200, "some batches are obstacles, most are not"
    assert malformed


QUERIES = """
CREATE TABLE tx (c STRING, ts TIMESTAMP, amount DECIMAL(9,2), lacking INT) USING json
  OPTIONS (path '{base}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE every USING json TBLPROPERTIES ('path' = '{folder}/out') AS
  SELECT c, ts, amount, lacking FROM STREAM tx WHERE amount > 2;
CREATE TABLE beside (c STRING, ts TIMESTAMP) USING csv
  OPTIONS (path '{folder}/beside', maxFilesPerTrigger '1', nullValue '-');
CREATE STREAMING TABLE of_beside USING json TBLPROPERTIES ('path' = '{folder}/of_beside') AS
  SELECT c FROM STREAM beside WHERE c <> '';
"""


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_a_pond_reads_lines_with_arrow_and_lets_spark_read_what_is_an_obstacle(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    """Three files of each stream, one of each an epoch, and Spark reads those of `beside` in any case.

    `viewfs` is a file system of Hadoop that is not local, so Spark delivers the contents of the files.

    The second file of `tx` has a number in a column of strings, of which Spark takes the text.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "beside").mkdir()
    for number in range(3):
        path = tmp_path / "in" / f"{number}.json"
        events = [
            {"c": 7 if number == 1 else "a", "ts": f"2024-01-01T00:0{number}:00Z", "amount": number + place}
            for place in range(4)
        ]
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        beside = tmp_path / "beside" / f"{number}.csv"
        beside.write_text(f"b{number},2024-01-01 00:00:00\n")
        for one in (path, beside):
            os.utime(one, (1_700_000_000 + number,) * 2)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(QUERIES.format(folder=tmp_path, base=tmp_path if scheme == "file" else not_local(spark, tmp_path)))
        assert "its files are read with Arrow" in explain(pond.plan, pond.streams)
        pond.run(once=True, drain=True)
        notes = {one.name: str(one.note) for one in pond.status() if one.name == "read:tx"}
    assert notes["read:tx"].startswith("read with Arrow in 1 of 3 epochs; by Spark in the last: ")
    assert "1.json may be read differently by Spark" in notes["read:tx"]
    found = sorted((row["c"], float(row["amount"])) for row in _rows(tmp_path / "out"))
    assert found == [("7", 3), ("7", 4), ("a", 3), ("a", 3), ("a", 4), ("a", 5)]
    assert sorted(row["c"] for row in _rows(tmp_path / "of_beside")) == ["b0", "b1", "b2"]


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for one in folder.glob("*.json") for line in one.read_text().splitlines()]
