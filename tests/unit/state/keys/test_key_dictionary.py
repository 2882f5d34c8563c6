"""The key dictionary numbers keys in order of arrival, for all types and any number of sections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.arrays import Ints
from millpond.state.keys import key_dictionary
from millpond.state.keys.key_dictionary import KeyDictionary, with_buckets
from millpond.state.keys.keys import KeyColumns, canonical, hashes_of

TEXT = [pa.string()]


def buckets(keys: KeyColumns, count: int) -> Ints:
    """Any hash works that distinguishes keys."""
    return (hashes_of(keys, count) % 1000).astype(np.int64)


def numbering(
    types: Sequence[pa.DataType], sections: Sequence[pa.RecordBatch], cache: Path | None, left: Ints | None = None
) -> KeyDictionary:
    return KeyDictionary(types, sections, cache, buckets, left)


def texts(values: Sequence[str | None]) -> list[pa.Array]:
    return [pa.array(values, pa.string())]


def names(first: int, end: int) -> list[pa.Array]:
    return texts([f"customer-{i}" for i in range(first, end)])


def test_a_key_that_has_left_and_comes_back_gets_a_slot_of_its_own(tmp_path: Path) -> None:
    #   known     0 … 4999, of which 1 and 4998 have left
    #   incoming  1 2 new 4998
    first = numbering(TEXT, [], None)
    first.number(names(0, 5000))
    gone = np.array([1, 4998])
    for cache in (None, tmp_path / "keys", tmp_path / "keys"):  # without a table, made, read
        keys = numbering(TEXT, [first.batch(0)], cache, gone)
        incoming = texts(["customer-1", "customer-2", "new", "customer-4998"])
        assert keys.number(incoming).tolist() == [5000, 2, 5001, 5002]
        assert keys.number(incoming).tolist() == [5000, 2, 5001, 5002], "from now on it is that one"
        here = keys.here(np.array([0, 1, 4998, 5000, 5002]))
        assert here is not None and here.tolist() == [True, False, False, True, True]
    assert first.here(gone) is None


def test_new_keys_get_the_next_slots_and_known_ones_keep_theirs() -> None:
    #   incoming  a b | b c a | d
    #   slots     0 1 | 1 2 0 | 3
    keys = numbering(TEXT, [], None)
    assert keys.number(texts(["a", "b"])).tolist() == [0, 1]
    assert keys.number(texts(["b", "c", "a"])).tolist() == [1, 2, 0]
    assert keys.number(texts(["d"])).tolist() == [3]
    assert keys.number(texts([])).tolist() == []
    assert len(keys) == 4
    assert keys.committed == 0
    assert keys.take(np.array([3, 0, 3]))[0].to_pylist() == ["d", "a", "d"]


def test_new_keys_lie_by_bucket_when_all_of_an_epoch_are_known(tmp_path: Path) -> None:
    """Known keys keep their slots, and every new key is found at the slot that it was given."""
    before = numbering(TEXT, [], None)
    before.number(names(0, 5000))
    keys = numbering(TEXT, [before.batch(0)], tmp_path / "keys")
    first, second = keys.number(names(4000, 6000)), keys.number(names(5500, 7000))
    now = keys.by_bucket()
    assert now is not None and sorted(now.tolist()) == list(range(5000, 7000))
    order = np.concatenate([np.arange(5000), now])
    for slots, columns in ((first, names(4000, 6000)), (second, names(5500, 7000))):
        assert keys.number(columns).tolist() == order[slots].tolist()
        assert keys.take(order[slots])[0].equals(columns[0])
    batch = keys.batch(5000)
    assert (np.diff(np.asarray(batch.column("bucket")).astype(int)) >= 0).all()
    assert np.asarray(batch.column("hash")).tolist() == hashes_of(batch.columns[:1], 2000).tolist()
    assert keys.by_bucket() is None, "they lie so already"
    assert keys.number(names(7000, 7001)).tolist() == [7000]


def test_null_nan_and_both_zeros_are_one_key_each() -> None:
    keys = numbering([pa.float64()], [], None)
    column = canonical(pa.array([None, math.nan, -0.0, 1.5], pa.float64()))
    assert keys.number([column]).tolist() == [0, 1, 2, 3]
    again = canonical(pa.array([0.0, -math.nan, 1.5, None], pa.float64()))
    assert keys.number([again]).tolist() == [2, 1, 3, 0]


def test_an_empty_text_a_null_and_a_null_character_are_different_keys() -> None:
    keys = numbering(TEXT, [], None)
    assert keys.number(texts(["", None, "\0", "\0\0", "a\0", "a"])).tolist() == [0, 1, 2, 3, 4, 5]
    assert keys.number(texts([None, "a", "a\0", "\0\0"])).tolist() == [1, 5, 4, 3]


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_several_columns_are_numbered_as_a_dict_would(seed: int) -> None:
    dice = np.random.default_rng(seed)
    kinds = [pa.string(), pa.float64(), pa.int32(), pa.bool_()]
    keys, known = numbering(kinds, [], None), dict[tuple[Any, ...], int]()
    for _ in range(6):
        rows = {
            (
                None if dice.random() < 0.1 else "kü" * int(dice.integers(0, 9)) + str(dice.integers(0, 3)),
                dice.choice([None, 0.0, 1.5]), dice.choice([None, 1, 2]), dice.choice([None, True, False]),
            )
            for _ in range(int(dice.integers(0, 40)))
        }  # fmt: skip
        listed = list(rows)
        columns = [pa.array([row[i] for row in listed], kind) for i, kind in enumerate(kinds)]
        for row, slot in zip(listed, keys.number(columns).tolist(), strict=True):
            assert known.setdefault(row, slot) == slot
    assert sorted(known.values()) == list(range(len(keys)))
    columns = [column.to_pylist() for column in keys.take(np.arange(len(keys)))]
    assert list(zip(*columns, strict=True)) == sorted(known, key=lambda key: known[key])


def test_without_key_columns_there_is_one_key() -> None:
    keys = numbering([], [], None)
    assert keys.number([], 3).tolist() == [0, 0, 0]
    assert len(keys) == 1
    again = numbering([], [keys.batch(0)], None)
    assert (again.committed, again.number([]).tolist(), len(again)) == (1, [0], 1)


def test_committed_sections_bring_back_every_slot() -> None:
    keys = numbering(TEXT, [], None)
    sections = []
    for first in (0, 10, 11, 25):
        before = len(keys)
        keys.number(names(first, first + 15))
        sections.append(keys.batch(before))
    again = numbering(TEXT, sections, None)
    assert again.committed == len(keys) == 40
    assert again.number(names(0, 26)).tolist() == keys.number(names(0, 26)).tolist()
    assert again.number(texts(["new"])).tolist() == [40]
    assert again.batch(40).column("k0").to_pylist() == ["new"]


def test_sections_contain_buckets_and_those_of_older_ones_are_computed() -> None:
    keys = numbering(TEXT, [], None)
    keys.number(names(0, 10))
    section = keys.batch(0)
    assert section.column("bucket").to_pylist() == buckets(names(0, 10), 10).tolist()
    old = section.drop_columns(["bucket"])
    for either in (section, old):
        assert with_buckets(either, 1, buckets).equals(section)
        again = numbering(TEXT, [either], None)
        again.number(names(5, 15))
        assert again.batch(0).column("bucket").to_pylist() == buckets(names(0, 15), 15).tolist()
        assert again.batch(10).column("bucket").to_pylist() == buckets(names(10, 15), 5).tolist()
        assert again.opening(np.array([1, 12])).column("bucket").to_pylist() == [
            buckets(names(i, i + 1), 1)[0] for i in (1, 12)
        ]


def test_keys_with_the_same_hash_are_different_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def colliding(columns: KeyColumns, rows: int) -> np.ndarray[Any, Any]:
        return np.full(rows, 7, np.uint64)

    monkeypatch.setattr(key_dictionary, "hashes_of", colliding)
    keys = numbering(TEXT, [], None)
    assert keys.number(names(0, 50)).tolist() == list(range(50))
    assert keys.number(names(20, 70)).tolist() == [*range(20, 50), *range(50, 70)]
    monkeypatch.setattr(key_dictionary, "_SMALLEST_BASE", 16)
    again = numbering(TEXT, [keys.batch(0)], tmp_path / "table")
    assert again.number(names(60, 80)).tolist() == list(range(60, 80))


def test_a_table_grows_over_the_border_between_the_cached_part_and_the_recent_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    #   committed  0 ........ 20 | 21 22        the part after the cached one is at most an eighth of it
    monkeypatch.setattr(key_dictionary, "_SMALLEST_BASE", 16)
    sections: list[pa.RecordBatch] = []
    marks = []
    for first in range(0, 300, 7):
        keys = numbering(TEXT, sections, tmp_path / "cache" / "table")
        assert keys.committed == first
        incoming = names(max(0, first - 30), first + 7)
        assert keys.number(incoming).tolist() == list(range(max(0, first - 30), first + 7))
        assert keys.number(names(0, first + 7)).tolist() == list(range(first + 7))
        sections.append(keys.batch(first))
        if first >= 16:
            (file,) = (tmp_path / "cache").iterdir()  # one table, however many came before
            marks.append(int(file.name.split("-")[1]))
            assert first - marks[-1] <= marks[-1] // 8
    assert marks[0] == 21
    assert sorted(set(marks)) == list(dict.fromkeys(marks))
    assert 8 < len(set(marks)) < len(marks)


def test_a_half_written_table_is_deleted_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_dictionary, "_SMALLEST_BASE", 16)
    keys = numbering(TEXT, [], None)
    keys.number(names(0, 100))
    (tmp_path / ".g-1-abc").write_bytes(b"half")
    (tmp_path / "g-10-5-0.npy").write_bytes(b"another instance's")
    numbering(TEXT, [keys.batch(0)], tmp_path / "g-1")
    left = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert left == ["1", "10"]


def test_a_generation_opens_with_some_keys_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    #   slots before   0 1 2 3 4 5 …    kept  1 3 4    slots now  0 1 2
    monkeypatch.setattr(key_dictionary, "_SMALLEST_BASE", 16)
    keys = numbering(TEXT, [], None)
    sections = []
    for first in (0, 30, 60):
        keys.number(names(first, first + 30))
        sections.append(keys.batch(first))
    before = numbering(TEXT, sections, tmp_path / "g-0")
    kept = np.array([1, 3, 4, *range(50, 75)])
    opening = before.opening(kept)
    assert opening.schema.names == ["k0", "hash", "bucket", "was"]
    assert opening.column("was").to_pylist() == kept.tolist()
    now = numbering(TEXT, [opening], tmp_path / "g-0")
    assert len(now) == len(kept)
    assert now.take(np.arange(len(kept)))[0].to_pylist() == [f"customer-{i}" for i in kept]
    assert now.number(names(49, 76)).tolist() == [28, *range(3, 28), 29]
    none = numbering(TEXT, [before.opening(np.zeros(0, np.int64))], tmp_path / "g-0")
    assert none.number(texts(["a", None])).tolist() == [0, 1]
    assert none.batch(0).column("k0").to_pylist() == ["a", None]


def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[pa.RecordBatch], Path, Path]:
    monkeypatch.setattr(key_dictionary, "_SMALLEST_BASE", 16)
    keys = numbering(TEXT, [], None)
    keys.number(names(0, 100))
    sections, cache = [keys.batch(0)], tmp_path / "table"
    numbering(TEXT, sections, cache)
    (file,) = tmp_path.iterdir()
    return sections, cache, file


DAMAGES: dict[str, Any] = {
    "lost": None,
    "empty": lambda data: b"",
    "cut": lambda data: data[:-100],
    "zeros": lambda data: bytes(len(data)),
    "no entries": lambda data: data[:128] + bytes(len(data) - 128),
    "one page lost": lambda data: data[:400] + bytes(256) + data[656:],
    "a slot beyond all keys": lambda data: data[:128] + b"\x7f\x7f\x00\x00" + data[132:],
    "text": lambda data: b"not an array",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_recreated(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections, cache, file = filled(tmp_path, monkeypatch)
    whole = file.read_bytes()
    if DAMAGES[damage] is None:
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](whole))
    keys = numbering(TEXT, sections, cache)
    assert keys.number(names(0, 120)).tolist() == list(range(120))
    assert file.read_bytes() == whole


@pytest.mark.parametrize("foreign", [np.zeros(0, np.int32), np.arange(256.0), np.zeros((4, 4), np.int32),
                                     np.ones(100, np.int32), np.arange(1, 101, dtype=np.int64)])  # fmt: skip
def test_an_array_of_another_kind_under_the_name_of_the_cache_is_passed_over(
    foreign: np.ndarray[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections, cache, file = filled(tmp_path, monkeypatch)
    np.save(file, foreign)
    assert numbering(TEXT, sections, cache).number(names(0, 120)).tolist() == list(range(120))


def test_the_cache_of_other_keys_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cache, file = filled(tmp_path, monkeypatch)
    others = numbering(TEXT, [], None)
    others.number(texts([f"another-{i}" for i in range(100)]))
    again = numbering(TEXT, [others.batch(0)], cache)
    assert again.number(texts([f"another-{i}" for i in range(120)])).tolist() == list(range(120))
    assert not file.exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections, _, file = filled(tmp_path, monkeypatch)
    keys = numbering(TEXT, sections, file / "below a file" / "table")
    assert keys.number(names(0, 120)).tolist() == list(range(120))
