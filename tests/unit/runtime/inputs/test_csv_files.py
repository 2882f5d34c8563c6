"""CSV files read into Arrow: headers, quotes, shares, and what is left to Spark."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.formats.json_checks import TextColumn
from millpond.runtime.inputs.file_parts import CsvForm, FilePart, NotEqual
from millpond.runtime.inputs.text_files import read_csv

FORM = CsvForm(("s", "x", "n"), ",")
COLUMNS = [TextColumn("n", "int"), TextColumn("s", "string")]


def rows(path: Path, form: CsvForm = FORM, shares: int = 1) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for share in range(shares):
        part = FilePart(0, str(path), share, shares, path.stat().st_size)
        for columns, count in read_csv(part, form, COLUMNS, "UTC"):
            assert {count} == {*map(len, columns)}
            found += zip(*(column.to_pylist() for column in columns), strict=True)
    return found


@given(
    st.lists(st.tuples(st.text("ab ,;'é", max_size=4), st.integers(-9, 9) | st.none()), max_size=9),
    st.sampled_from([",", ";"]), st.booleans(), st.integers(1, 4), st.booleans(),
)  # fmt: skip
def test_lines_are_read_as_a_parser_of_csv_reads_them(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, int | None]], separator: str, header: bool,
    shares: int, quoted: bool,
) -> None:  # fmt: skip
    path, text = tmp_path_factory.getbasetemp() / "lines.csv", io.StringIO()
    given_rows = [(word.lstrip(), "x", number) for word, number in lines]
    writer = csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writerows([*([("s", "x", "n")] if header else []), *given_rows])
    path.write_text(text.getvalue(), newline="")
    found = rows(path, FORM._replace(separator=separator, header=header), shares)
    assert found == [(number, word or None) for word, _, number in given_rows]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a,b", "columns"), ("a,b,1,2", "columns"), ('"a""b",x,1', "quotes"), ('a"b,x,1', "quotes"), (" ,,", "blank"),
        ('"a,x,1\nb",x,1', "quotes"), ("a\\b,x,1", "backslash"), ("\ufeffa,x,1", "mark"), ("a,x, 1", "plain number"),
        ("a,x,+1", "plain number"), ("a,x,3000000000", "3000000000"), ("a,x,1\rb,x,1", "carriage"),
    ],
)  # fmt: skip
def test_what_spark_may_read_differently_is_an_obstacle(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content.encode())
    with pytest.raises(NotEqual, match=why):
        rows(tmp_path / "a.csv")


def test_a_header_that_spark_may_look_for_elsewhere_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\n  \ns,x,n\n")
    with pytest.raises(NotEqual, match="header"):
        rows(tmp_path / "a.csv", FORM._replace(header=True))
