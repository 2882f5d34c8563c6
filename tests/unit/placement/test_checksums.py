"""Checksums over arrays are those of `binascii`, of texts and of joined texts."""

from __future__ import annotations

import binascii
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.placement import checksums
from millpond.placement.checksums import LONGEST, checksums_of, joined_checksums, part_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    st.lists(TEXTS, min_size=1, max_size=30), st.integers(0, 3), st.sampled_from([1, 7, 1 << 14]),
    st.sampled_from([9, 1024]),
)  # fmt: skip
def test_checksums_of_many_texts_are_those_of_a_loop(texts: list[str], skipped: int, at_once: int, long: int) -> None:
    many = texts * (checksums._FEW // len(texts) + 1)
    cut = pa.array(["left out"] * skipped + many, pa.string()).slice(skipped)
    with mock.patch.object(checksums, "_AT_ONCE", at_once), mock.patch.object(checksums, "_LONG", long):
        found = checksums_of(cut)
    assert found.tolist() == [binascii.crc_hqx(text.encode(), 0) for text in many]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=20))
def test_checksums_of_joined_texts_are_those_of_the_text(rows: list[tuple[str, str, str]]) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(3)]
    found = joined_checksums([part_of(column) for column in columns], "\x1f")
    assert found.tolist() == [binascii.crc_hqx("\x1f".join(row).encode(), 0) for row in rows]


def test_a_text_of_the_longest_size_can_be_appended() -> None:
    last = part_of(pa.array(["é" * (LONGEST // 2)]))
    assert last.lengths.tolist() == [LONGEST]
    found = joined_checksums([part_of(pa.array(["a"])), last], " ")
    assert found == np.uint16(binascii.crc_hqx(("a " + "é" * (LONGEST // 2)).encode(), 0))
