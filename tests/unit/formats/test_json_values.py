"""JSON texts parsed a batch at a time: where each row comes from, what is malformed, and what is doubted."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from kit.inputs.json_texts import KINDS, json_text
from millpond.formats import csv_values, json_values
from millpond.formats.csv_values import parse_csv
from millpond.formats.json_checks import Doubt, TextColumn, check_limits
from millpond.formats.json_values import Mode, parse_texts
from millpond.formats.text_parser import Parsed, Positions, TextParser
from millpond.plan.options import kafka_parsers

NUMBER = [TextColumn("n", "bigint")]


def parse(
    *texts: bytes | None, columns: list[TextColumn] = NUMBER, zone: str = "UTC", mode: Mode = Mode.STRICT
) -> Parsed:
    return parse_texts(pa.array(texts, pa.binary()), columns, zone, mode)


def numbers(found: Parsed) -> list[int | None]:
    values: list[int | None] = found.columns[0].to_pylist()
    return values


@pytest.mark.parametrize(
    "texts",
    [
        (b'{"n":1}{"n":2}', b'{"n":3'), (b'{"n":1', b',"m":2}'), (b'{"n":1}{"n":2}', b"{}{"), (b'{"a":', b"1}"),
        (b'{"n":1}\x00', b'{"n":2}'), (b'{"n":1} {', b'"n":2}'),
    ],
)  # fmt: skip
def test_a_text_with_several_objects_or_a_part_of_one_moves_no_rows(texts: tuple[bytes, ...]) -> None:
    try:
        found = parse(*texts)
    except Doubt:
        return
    assert found.malformed.all()


def test_malformed_texts_are_separated_and_keep_no_values() -> None:
    texts = [b'{"n":%d}' % number for number in range(3000)]
    texts[0], texts[7], texts[2999] = b"", b'{"n":"seven"}', b"{oops"
    texts[100], texts[101] = b"\x00\x00\x01avro", b"\xff"
    found = parse(None, *texts, b"{}", b'{"m":"x"}')
    assert [row for row, malformed in enumerate(found.malformed) if malformed] == [0, 1, 8, 101, 102, 3000]
    wanted = [None, *range(3000), None, None]
    assert numbers(found) == [None if malformed else n for n, malformed in zip(wanted, found.malformed, strict=True)]


def test_ordinary_texts_raise_no_doubt_whatever_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(1)
    texts = [json_text(dice, 0.0) for _ in range(300)]
    columns = [TextColumn(kind, kind) for kind in KINDS]
    at_once = parse(*texts, columns=columns)
    assert not at_once.malformed.any()
    monkeypatch.setattr(json_values, "_BLOCK_ROWS", 7)
    assert parse(*texts, columns=columns).columns == at_once.columns


def test_slices_of_arrays_are_parsed_like_copies() -> None:
    array = pa.array([b'{"n":%d}' % number for number in range(10)], pa.binary())
    for texts in (array, array.cast(pa.large_binary())):
        assert numbers(parse_texts(texts.slice(3, 4), NUMBER, "UTC")) == [3, 4, 5, 6]


def test_a_time_without_an_offset_needs_utc_and_forms_are_not_mixed() -> None:
    columns = [TextColumn("t", "timestamp")]
    plain, offset = b'{"t":"2024-01-01T10:00:00"}', b'{"t":"2024-01-01T11:00:00+01:00"}'
    assert parse(plain, columns=columns).columns[0] == parse(offset, columns=columns).columns[0]
    berlin = parse(offset, columns=columns, zone="Europe/Berlin").columns[0]
    assert str(berlin.type) == "timestamp[us, tz=Europe/Berlin]"
    with pytest.raises(Doubt, match="session's time zone"):
        parse(plain, columns=columns, zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"n":1,"x":"' + b"y" * 50_000 + b'"}', "longer than"), (b'{"n":1}\x00', "plain JSON"),
        (b'{"n":1,"x":"\xff"}', "UTF-8"), (b'{"n":1,"x":' + b"[" * 1001 + b"]" * 1001 + b"}", "nested"),
        (b'{"n":1,"x":' + b"1" * 2000 + b"}", "digits"), (b'{"n":1,"x":Inf}', "plain JSON"), (b"{'n':1}", "plain JSON"),
    ],
)  # fmt: skip
def test_what_spark_may_take_differently_is_doubted(text: bytes, why: str) -> None:
    with pytest.raises(Doubt, match=why):
        parse(b'{"n":1}', text)


def test_a_number_of_many_digits_is_doubted_wherever_its_point_and_exponent_are() -> None:
    for place in (488, 489, 988, 989):
        for mark in (b".", b"e+"):
            with pytest.raises(Doubt, match="digits"):
                check_limits(pa.array([b'{"n":1,"x":' + b"1" * place + mark + b"1" * (1100 - place) + b"}"]))


def test_many_malformed_texts_are_doubted_and_a_permissive_stream_doubts_each() -> None:
    with pytest.raises(Doubt, match="many"):
        parse(*[b"{oops"] * 100)
    with pytest.raises(Doubt):
        parse(b'{"n":"x"}', mode=Mode.PERMISSIVE)


def test_the_plan_knows_the_types_that_are_parsed() -> None:
    assert json_values.KINDS == kafka_parsers.KINDS == {*KINDS} - set(KINDS[-2:]) - {"decimal(10,2)"}


def test_words_that_resemble_numbers_are_parsed_in_strings() -> None:
    text = json.dumps({"n": 1, "x": "a: Inf, Information, -NaN"}).encode()
    assert numbers(parse(text, text)) == [1, 1]


@pytest.mark.parametrize("separator", [",", "|", "\t", "^", ""])
def test_few_malformed_texts_of_many_take_few_parses(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty separator stands for JSON. What each text is alone, it is among others."""
    dice, made = Random(1), {"n": "7", "x": "1.5", "b": "true", "t": "2026-01-31T12:30:00", "d": "2026-01-31", "s": "x"}
    kinds = ("int", "double", "boolean", "timestamp", "date", "string")
    columns, texts = [TextColumn(*one) for one in zip(made, kinds, strict=True)], []
    for row in range(4000):
        fields = made | ({} if row % 500 else {dice.choice("nxbtd"): "oops"})
        members = (f'"{k}":{v if k in "nxb" and v != "oops" else json.dumps(v)}' for k, v in fields.items())
        texts.append((separator.join(fields.values()) if separator else f"{{{','.join(members)}}}").encode())
    parser = csv_values._Parser if separator else json_values._Parser
    parsed, sizes = parser._parsed, list[int]()

    def counted(self: TextParser, rows: Positions, some: pa.BinaryArray) -> tuple[Positions, list[pa.Array]]:
        sizes.append(len(some))
        return parsed(self, rows, some)  # type: ignore[arg-type]

    monkeypatch.setattr(parser, "_parsed", counted)

    def result(some: list[bytes]) -> Parsed:
        array = pa.array(some, pa.binary())
        return parse_csv(array, columns, "UTC", separator, strict=True) if separator else parse(*some, columns=columns)

    found = result(texts)
    assert sizes[0] == 4000 and sum(sizes) < 2.1 * 4000, sizes
    assert np.flatnonzero(found.malformed).tolist() == [*range(0, 4000, 500)]
    for row in range(0, 4000, 250):
        assert [column[row].as_py() for column in found.columns] == [
            column[0].as_py() for column in result(texts[row : row + 1]).columns
        ]
