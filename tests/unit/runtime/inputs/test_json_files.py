"""Lines of JSON files: each belongs to exactly one share of its file, whatever the size of blocks."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.formats.json_checks import TextColumn
from millpond.runtime.inputs import text_files
from millpond.runtime.inputs.file_parts import FilePart, NotEqual
from millpond.runtime.inputs.text_files import read_lines

NUMBER = [TextColumn("n", "bigint")]


def numbers(path: Path, shares: int = 1, size: int | None = None) -> list[int | None]:
    found: list[int | None] = []
    for share in range(shares):
        part = FilePart(0, str(path), share, shares, path.stat().st_size if size is None else size)
        for columns, rows in read_lines(part, NUMBER, "UTC"):
            assert len(columns[0]) == rows
            found += columns[0].to_pylist()
    return found


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "BLOCK_BYTES", 16)
        yield


@given(
    st.lists(st.sampled_from(["", " " * 4, " " * 30]), max_size=12), st.integers(1, 6),
    st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n\n"]), st.booleans(),
)  # fmt: skip
def test_each_line_belongs_to_one_share(
    small_blocks: None, tmp_path_factory: pytest.TempPathFactory, blanks: list[str], shares: int, end: str, last: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.json"
    text = end.join(f'{{"n":{blank}{number}}}' for number, blank in enumerate(blanks)) + (end if last else "")
    path.write_bytes(text.encode())
    assert numbers(path, shares) == [*range(len(blanks))]


def test_a_compressed_file_is_one_share_of_all_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"n":0}\n{"n"', mtime=0) + gzip.compress(b":1}\n"))
    assert numbers(path, 3) == [0, 1]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", b'{"n":1}\r{"n":2}', "carriage return"), ("a.json", b'{"n":1}\n{"n":"x"}', "differently"),
        ("a.json.gz", gzip.compress(b'{"n":1}', mtime=0)[:-9], "cannot be read"), ("a.zst", b"", "compressed as .zst"),
        ("a.GZ", b"", "compressed as .GZ"), ("a.json", b'\xef\xbb\xbf{"n":1}', "differently"),
        ("a.json", b'{"n":1}' + b" " * (1 << 21), "long line|differently"), ("a.json", b'{"n":1}\n  \n', "differently"),
    ],
)  # fmt: skip
def test_what_spark_may_read_differently_is_an_obstacle(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NotEqual, match=why):
        numbers(tmp_path / name)


def test_a_line_that_is_not_json_is_a_row_of_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"n":1}\noops\n{"n":2,"s\n{"n":3')
    assert numbers(tmp_path / "a.json") == [1, None, None, None]


def test_a_file_that_has_grown_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"n":1}\n{"n":2}\n')
    with pytest.raises(NotEqual, match="changed"):
        numbers(tmp_path / "a.json", size=8)
