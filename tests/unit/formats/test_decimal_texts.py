"""Decimals in texts of CSV and JSON: the number that is written, or a doubt; never another number."""

from __future__ import annotations

import json
import random
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

from kit.inputs.examples import seeds
from millpond.formats.csv_values import parse_csv
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import Mode, parse_texts
from millpond.formats.text_parser import Parsed

KINDS = [(38, 18), (38, 37), (38, 38), (38, 0), (37, 20), (9, 0), (9, 2), (1, 1)]


def of_csv(text: str, kind: str) -> Parsed:
    return parse_csv(pa.array([text.encode()], pa.binary()), [TextColumn("d", kind)], "UTC", ",", strict=True)


def of_json(text: str, kind: str) -> Parsed:
    texts = pa.array([b'{"d":%s}' % text.encode()], pa.binary())
    return parse_texts(texts, [TextColumn("d", kind)], "UTC", Mode.STRICT)


def of_nested(text: str, kind: str) -> Parsed:
    column = TextColumn("d", f"struct<a:array<{kind}>>")
    found = parse_texts(pa.array([b'{"d":{"a":[%s]}}' % text.encode()], pa.binary()), [column], "UTC", Mode.STRICT)
    return found._replace(columns=[found.columns[0].field("a").flatten()])


@pytest.mark.parametrize("parse", [of_csv, of_json, of_nested])
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_random_numbers_are_parsed_as_they_are_written(parse: object, seed: int) -> None:
    dice, parsed = random.Random(seed), 0
    for _ in range(1200):
        precision, scale = dice.choice(KINDS)
        digits = str(dice.randrange(10 ** dice.randint(1, 50)))
        cut = dice.randint(0, min(scale, len(digits) - 1))
        text = dice.choice(["", "-"]) + (f"{digits[:-cut]}.{digits[-cut:]}" if cut else digits)
        if parse is not of_csv and dice.random() < 0.2:
            text += f"e{dice.choice(['', '+', '-'])}{dice.randint(0, 400)}"
        with localcontext(prec=999):
            number = Decimal(text)
            fits = abs(number) < 10 ** (precision - scale) and number == round(number, scale)
        try:
            found = parse(text, f"decimal({precision},{scale})")  # type: ignore[operator]
        except Doubt:
            assert not fits or "e" in text or len(text) > 38, text
            continue
        assert fits and found.columns[0].to_pylist() == [number], (text, precision, scale)
        parsed += 1
    assert parsed > 200


@pytest.mark.parametrize("text", ["3402823669209384634633746074317682114.57", f"{(1 << 128) + 1}"])
def test_a_number_beyond_128_bits_is_no_small_one(text: str) -> None:
    for parse in (of_csv, of_json, of_nested):
        with pytest.raises(Doubt):
            parse(text, "decimal(9,2)")


def test_an_exponent_in_another_column_or_in_a_string_raises_no_doubt() -> None:
    columns = [TextColumn("d", "decimal(9,2)"), TextColumn("x", "double"), TextColumn("k", "string")]
    text = b'{"d":1.25,"x":1.5e+7,"k":"3e8f: 1 2e"}'
    found = parse_texts(pa.array([text] * 3, pa.binary()), columns, "UTC", Mode.STRICT)
    assert [column[2].as_py() for column in found.columns] == [Decimal("1.25"), 1.5e7, "3e8f: 1 2e"]


@pytest.mark.parametrize("name", ["d", "a b", "a|b(1,2)", "é.", 'd"\\', "\\u0064", "<d>", "a/b"])
def test_a_decimal_is_found_whatever_its_name(name: str) -> None:
    columns = [TextColumn(name, "decimal(9,2)"), TextColumn("k", "string")]
    escaped = "".join(f"\\u{ord(one):04x}" for one in name)
    for written in (json.dumps(name), json.dumps(name, ensure_ascii=False), f'"{escaped}"'):
        text = f'{{"k":"3e8","k2":1e9,{written} : 1e300}}'.encode()
        with pytest.raises(Doubt):
            parse_texts(pa.array([text], pa.binary()), columns, "UTC", Mode.STRICT)


def test_lines_that_are_not_utf_8_are_doubted_and_long_offsets_are_taken() -> None:
    with pytest.raises(Doubt, match="UTF-8"):
        parse_csv(pa.array([b"\xff,1", b"1"], pa.binary()), [TextColumn("d", "int")], "UTC", ",", strict=True)
    found = parse_csv(pa.array([b"7", b"1,2"], pa.large_binary()), [TextColumn("d", "int")], "UTC", ",", strict=True)
    assert (found.columns[0].to_pylist(), found.malformed.tolist()) == ([7, None], [False, True])


@pytest.mark.parametrize("text", ["NaN ", " NaN", "\tInfinity", "-Infinity\x01", '"+NaN "'])
def test_a_word_for_a_number_between_blanks_is_not_malformed(text: str) -> None:
    with pytest.raises(Doubt):
        columns = [TextColumn("n", "int"), TextColumn("d", "double")]
        parse_csv(pa.array([f"1,{text}".encode()], pa.binary()), columns, "UTC", ",", strict=True)
