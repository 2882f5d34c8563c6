"""Makes JSON texts that readers may take differently: odd values, odd forms, damaged bytes."""

from __future__ import annotations

import json
from random import Random

KINDS = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "string", "date",
    "timestamp", "struct<a:int,b:array<string>>", "array<double>",
)  # fmt: skip
"""SQL types of columns; each column has the name of its type."""

_NUMBERS = """
1 0 -0 -0.0 1.0 1.5 1e5 1E-5 -7 127 128 200 256 32768 2147483648 9223372036854775807 9223372036854775808 0.1 1e400
123456789012345678901234567890 -1e400 1e-400 4.9e-324 2.2250738585072011e-308 01 1. .5 +1 - NaN -NaN Infinity -Infinity
Inf -Inf +INF INF true false null True tru nul {} [] [1,2] [1,] {"a":1} {"a":1,} {"a"} [}
[-0] [-0.0] [[1]] ["x"] [{}] {"a":"x"} {"b":1} {"b":[1]} {"a":1,"a":2} {"A":1}
[NaN] [Inf] {"x":-Infinity}
{"a":{"b":[1,{"c":"d"}]}} 1a undefined $ 1//c 'a' 1700000000 1700000000.5
"""
_LONG = ("1" * 900, "1" * 1001, "0." + "1" * 1001, "[" * 1100 + "]" * 1100, '"' + "x" * 300 + '"')
_STRINGS = """
|a|1|1.0|true|NaN|Infinity|-inf| |\\u0041|\\u0000|\\ud83d\\ude00|\\ud83d|\\udc00|\\n|\\x|\\/|\t|\x7f|é|😀|a'b|x: Inf
|, Information
|+1|a"b|now|epoch|1700000000|2024-01-01|2024-1-1|2024-02-30|0001-01-01|9999-12-31|10000-01-01|1582-10-10
|2024-01-01T10:00:00Z|2024-01-01 10:00:00Z|2024-01-01T10:00:00|2024-01-01 10:00:00.1|2024-01-01T10:00:00.123456Z
|2024-01-01T10:00:00.1234567Z|2024-01-01T10:00:00+01:00|2024-01-01T10:00:00.5-17:59|2024-01-01T10:00:00+18:00
|2024-01-01T10:00:00+19:30|2024-01-01T10:00:00+0100|2024-01-01T10:00:00+01|2024-01-01T24:00:00Z|2024-01-01T23:59:60Z
|2024-01-01T10:00Z|2024-01-01T10:00:00z|2024-01-01t10:00:00Z|2024-01-01T10:00:00 Z|2024-01-01T10:00:00.Z
|2024-01-01T10:00:00.|1700-06-01T00:00:00Z|0001-01-01T00:00:00+10:00
"""
_VALUES = (
    *_NUMBERS.split(), *_LONG, "/*c*/1", "1 ", " 1", "1 2", "\x00", "\ufeff1", '"abc',
    *(f'"{text.rstrip(chr(10))}"' for text in _STRINGS.lstrip().split("|")),
)  # fmt: skip
_NAMES = (*KINDS, "x", "Int", "INT", " int", "in\\u0074", "", "é")
_BEFORE = ("", " ", "\n", "[", " [", '"', "'", "1", "{", "{}", "\ufeff", "null", "true", "garbage ", "/*c*/")
_AFTER = ("", " ", "\n", "]", "}", '"', ",", "1", "{}", '{"int":1}', " garbage", "\x00", "\x00x", "\n//c")
ALL_ALONE = (
    *(before.encode() for before in _BEFORE),
    b"\xff\xfe\x00", b"\x00\x00\x00\x00\x01a", "é".encode(), b"\xef\xbb", b"\x01{}", b"<a/>", b".5",
    b"undefined", b"\x0b{}",
    *(f'{{"int":1}}{after}'.encode() for after in _AFTER),
    *(f'{{"{kind}":{value}}}'.encode() for kind in (*KINDS, "x") for value in _VALUES),
)
"""Each value in a column of each type, and other short texts."""


def ordinary_value(dice: Random, kind: str) -> str:
    """A value that fits a column, in the form that common producers write."""
    day = f"{dice.randint(1, 9999):04}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
    clock = f"{dice.randint(0, 23):02}:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}"
    return {
        "boolean": dice.choice(("true", "false")),
        "tinyint": str(dice.randint(-128, 127)),
        "smallint": str(dice.randint(-9999, 9999)),
        "int": str(dice.randint(-(10**9), 10**9)),
        "bigint": str(dice.randint(-(2**63), 2**63 - 1)),
        "float": dice.choice((
            repr(dice.random()), f"{dice.uniform(-1e30, 1e30):.9g}", str(dice.randint(-(10**9), 10**9)),
            repr(dice.random() * 10.0 ** dice.randint(-44, 38)), f"{dice.random():.8f}",
        )),
        "decimal(10,2)": dice.choice(("{:.2f}", "{:.1f}", "{:.0f}", '"{:.2f}"')).format(dice.uniform(-1e7, 1e7)),
        "double": dice.choice((
            repr(dice.random()), repr(dice.uniform(-1e300, 1e300)), str(dice.randint(-(10**20), 10**20)),
            repr(dice.random() * 10.0 ** dice.randint(-300, 300)), f"{dice.random():.30f}", f"{dice.random():.17e}",
        )),
        "string": json.dumps(dice.choice(("a", "é", "x\ny", '"q"', "", "😀")), ensure_ascii=dice.random() < 0.5),
        "struct<a:int,b:array<string>>": dice.choice((
            "{}", '{"a":1}', '{"b":["x",null,""],"a":-7}', '{"b":[]}', '{"c":{"a":"x"},"a":null}', '{"b":null}',
        )),
        "array<double>": dice.choice(("[]", "[1,2.5]", "[null]", "[0.1,-1e5,null]")),
        "date": f'"{day}"',
        "timestamp": f'"{day}{dice.choice("T ")}{clock}{dice.choice(("", ".1", ".123", ".123456"))}Z"',
    }[kind]  # fmt: skip


def json_text(dice: Random, oddity: float) -> bytes:
    """An object with some of the columns; `oddity`: the probability of an odd member, from 0 to 1."""
    kinds = dice.choices(KINDS, k=3) if dice.random() < oddity else dice.sample(KINDS, k=dice.randint(0, 5))
    members = [_member(dice, oddity, kind) for kind in kinds]
    text = "{" + dice.choice((",", ", ", ",\n", "\t,\r")).join(members) + "}"
    if dice.random() < oddity / 2:
        text = dice.choice(_BEFORE) + text
    if dice.random() < oddity / 2:
        text += dice.choice((*_AFTER, text))
    found = text.encode()
    if dice.random() < oddity / 5:
        place = dice.randrange(len(found))
        byte = dice.choice((0, 10, 34, 92, 123, 125, 255, 195, 39, 44, 58, dice.randrange(256)))
        found = found[:place] + bytes([byte]) + found[place + 1 :]
    return found[: dice.randrange(len(found) + 1)] if dice.random() < oddity / 5 else found


def _member(dice: Random, oddity: float, kind: str) -> str:
    if dice.random() < oddity:
        return f'"{dice.choice(_NAMES)}"{dice.choice((":", ":", ":", " : ", "=", ""))}{dice.choice(_VALUES)}'
    return f'"{kind}":{dice.choice(("null", *[ordinary_value(dice, kind)] * 3))}'
