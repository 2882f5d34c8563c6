"""Cells merge by slice and slot: added, minimum or maximum, also if a column or a slice is missing."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from millpond.arrays import WIDE, Ints
from millpond.state.layout.cells import (
    Cells,
    Piece,
    Slices,
    extreme_names,
    extreme_of,
    from_order_codes,
    merge,
    needed_slices,
    order_codes,
    part_of,
    piece_of,
    rows_named,
    slot_runs,
    word_names,
    words_of,
)
from millpond.state.layout.merge_rules import (
    ADD,
    AND,
    LARGEST,
    MAXIMUM,
    MINIMUM,
    NUMBERED,
    OR,
    REGISTERS,
    RULES,
    SMALLEST,
    XOR,
    MergeRule,
    is_low_word,
    merged_overlapping,
    rule_of,
)
from millpond.state.layout.segments import narrow

Row = tuple[tuple[int, int, int], int, dict[str, int]]
"""A slice, a slot, and the values of its columns."""


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def piece(rows: Sequence[Row], columns: Sequence[str]) -> Piece:
    slices = sorted({row[0] for row in rows}, reverse=True)  # in any order
    table = np.array(slices, np.int64).reshape(-1, 3)
    return Piece(
        Slices(table[:, 0], table[:, 1], table[:, 2]),
        ints(*(slices.index(row[0]) for row in rows)),
        ints(*(row[1] for row in rows)),
        {name: ints(*(row[2][name] for row in rows)) for name in columns},
    )


def listed(cells: Cells) -> dict[tuple[tuple[int, int, int], int], dict[str, int]]:
    found = {}
    for i, (start, end, late) in enumerate(zip(*(part.tolist() for part in cells.slices[:3]), strict=True)):
        for row in range(int(cells.offsets[i]), int(cells.offsets[i + 1])):
            at = ((start, end, late), int(cells.slots[row]))
            found[at] = {name: int(column[row]) for name, column in cells.columns.items()}
    return found


def drawn(name: str, dice: np.random.Generator) -> int:
    registers = rule_of(name) is REGISTERS
    return int.from_bytes(dice.integers(0, 62, 8).tolist(), "little") if registers else int(dice.integers(-99, 99))


def larger_bytes(left: int, right: int) -> int:
    """Register by register the larger one."""
    pairs = zip(left.to_bytes(8, "little"), right.to_bytes(8, "little"), strict=True)
    return int.from_bytes(map(max, pairs), "little")


MERGED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "minimum": min, "maximum": max, "registers": larger_bytes,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
"""How two values merge, by the name of the rule."""


@pytest.mark.parametrize("seed", range(30))
def test_merging_is_what_a_dict_does(seed: int) -> None:
    dice = np.random.default_rng(seed)
    slots = int(dice.choice([3, 50, 10_000_000]))  # dense and sparse ways to find equal cells
    names = ("a:n", "b:min", "c:max", "d:inf", "e:r3", "f:and", "g:or", "h:xor")
    merged: dict[tuple[tuple[int, int, int], int], dict[str, int]] = {}
    pieces = []
    for _ in range(int(dice.integers(0, 5))):
        has = [name for name in names if dice.random() < 0.8]
        where = {
            ((int(start), int(start) + 10, int(late)), int(slot))
            for start, late, slot in zip(
                dice.integers(-3, 3, 20) * 10, dice.integers(0, 2, 20), dice.integers(0, slots, 20), strict=True
            )
        }
        rows = [(at, slot, {name: drawn(name, dice) for name in has}) for at, slot in where]
        pieces.append(piece(rows, has))
        for at, slot, values in rows:
            cell = merged.setdefault((at, slot), {})
            for name, value in values.items():
                how = MERGED[rule_of(name).name]
                cell[name] = how(cell[name], value) if name in cell else value
    found = merge(pieces, slots)
    everywhere = {name for part in pieces if len(part.slots) for name in part.columns}
    expected = {
        at: {name: cell.get(name, rule_of(name).identity) for name in everywhere} for at, cell in merged.items()
    }
    assert listed(found) == expected
    assert list(listed(found)) == sorted(expected)
    assert found.rows == len(expected)


@pytest.mark.parametrize("how", ["min", "max"])
def test_extremes_of_two_words_merge_as_one_number(how: str) -> None:
    dice = random.Random(how)
    pool = [0, 1, -1, 2**63, 2**64 - 1, 2**64, -(2**64), -(2**64) - 1, 10**38 - 1, -(10**38) + 1]
    best: dict[int, int] = {}
    pieces = []
    for _ in range(6):
        values = {slot: dice.choice(pool) for slot in range(20) if dice.random() < 0.7}
        for slot, value in values.items():
            best[slot] = (min if how == "min" else max)(value, best.get(slot, value))
        column = np.array([(value & (2**64 - 1), value >> 64) for value in values.values()], WIDE)
        named = {name: narrow(part) for name, part in extreme_names(f"m:{how}", column).items()}
        where = np.array(list(values), np.int64)
        pieces.append(Piece(Slices(ints(0), ints(10), ints(0)), np.zeros(len(where), np.int64), where, named))
    merged = merge(pieces, 20)
    found = extreme_of(f"m:{how}", merged.columns)
    assert found is not None
    assert merged.columns.keys() == {f"m:{how}", f"m:{how}low"}
    assert [int(high) * 2**64 + int(low) for low, high in found.tolist()] == [best[slot] for slot in sorted(best)]


def test_slices_that_became_equal_within_a_piece_are_merged() -> None:
    """Two lateness classes become one when the query with the shorter delay is dropped."""
    zeros, two = np.zeros(2, np.int64), np.array([10, 10])
    slices = Slices(zeros, two, zeros)
    piece = Piece(slices, np.array([0, 0, 1]), np.array([3, 5, 3]), {"m:n": np.array([2, 4, 1])})
    merged = merge([piece, piece], 6)
    assert merged.slices.start_us.tolist() == [0] and merged.slots.tolist() == [3, 5]
    assert merged.columns["m:n"].tolist() == [6, 8]


def test_nothing_merges_to_nothing() -> None:
    empty = merge([], 5)
    assert (empty.rows, empty.offsets.tolist(), dict(empty.columns)) == (0, [0], {})
    assert merge([piece_of(empty)], 5).rows == 0


def test_columns_that_are_one_array_in_every_piece_stay_one() -> None:
    count = ints(1, 2)
    parts = [piece_of(Cells(Slices(ints(0), ints(10), ints(0)), ints(0, 2), ints(0, 1),
                            {"a:n": count, "b:n": count, "c:n": count.copy()})) for _ in range(2)]  # fmt: skip
    merged = merge(parts, 2)
    assert merged.columns["a:n"] is merged.columns["b:n"]
    assert merged.columns["a:n"] is not merged.columns["c:n"]
    assert merged.columns["a:n"].tolist() == [2, 4]


def test_only_slices_that_still_matter_are_kept() -> None:
    cells = merge([piece([((0, 10, 0), 1, {"a:n": 1}), ((10, 20, 0), 1, {"a:n": 2})], ["a:n"])], 2)
    kept = merge([piece_of(part_of(cells, needed_slices(cells, 10)))], 2)
    assert listed(kept) == {((10, 20, 0), 1): {"a:n": 2}}


@pytest.mark.parametrize("runs", [0, 1, 2, 40, 1000])
@pytest.mark.parametrize("seed", range(8))
def test_cells_of_wanted_slots_are_found_by_looking_up_or_by_reading_all(seed: int, runs: int) -> None:
    dice, keys = np.random.default_rng(seed), 4000
    slots = [np.flatnonzero(dice.random(keys) < dice.choice([0, 0.01, 0.9])) for _ in range(9)]
    offsets = np.cumsum([0, *map(len, slots)])
    none, kind = np.zeros(9, np.int64), [np.int16, np.int32][seed % 2]
    cells = Cells(Slices(none, none, none), offsets, np.concatenate(slots).astype(kind), {})
    wanted = np.zeros(keys, bool)
    for begin in dice.integers(0, keys, runs):
        wanted[begin : begin + dice.integers(1, 20)] = True
    if seed == 7:
        wanted[[0, -1]] = True
    bounds = slot_runs(wanted)
    assert wanted[np.concatenate([np.arange(*run) for run in bounds.tolist()] or [np.zeros(0, int)])].all()
    assert (bounds[:, 1] - bounds[:, 0]).sum() == wanted.sum() and (np.diff(bounds.reshape(-1)) > 0).all()
    assert rows_named(cells, wanted, bounds).tolist() == np.flatnonzero(wanted[cells.slots]).tolist()


def test_narrow_columns_add_up_beyond_their_type() -> None:
    slices = Slices(ints(0), ints(10), ints(0))
    narrow = Cells(slices, ints(0, 1), np.zeros(1, np.int8), {"a:n": np.array([127], np.int8)})
    merged = merge([piece_of(narrow)] * 3, 1)
    assert merged.columns["a:n"].tolist() == [381]


@pytest.mark.parametrize("word", [-(2**51), 2**51 - 1])
def test_thousands_of_pieces_do_not_overflow_a_word(word: int) -> None:
    # 5000 source partitions meet one key: 5000 words of 52 bits leave int64 unless they are carried on the way
    slices = Slices(ints(0), ints(10), ints(0))
    one = Piece(slices, ints(0), ints(0), {"m:w0": ints(word)})
    merged = merge([one] * 5000, 1)
    total = sum(int(column[0]) * 2 ** (52 * k) for k, column in words_of("m", merged.columns).items())
    assert total == 5000 * word


def test_words_have_names_and_are_found_by_them() -> None:
    named = word_names("m", {-1: ints(5), 0: ints(6)})
    assert list(named) == ["m:w-1", "m:w0"]
    found = words_of("m", {**named, "other:w1": ints(1), "m:n": ints(1)})
    assert {k: word.tolist() for k, word in found.items()} == {-1: [5], 0: [6]}


def test_codes_sort_like_doubles_and_survive_a_round_trip() -> None:
    values = [-math.inf, -1.5, -5e-324, 0.0, 5e-324, 1.0, 1.7976931348623157e308, math.inf, math.nan]
    codes = order_codes(np.array(values))
    assert (np.diff(codes) > 0).all()
    assert np.array_equal(from_order_codes(codes), np.array(values), equal_nan=True)
    assert order_codes(np.array([-0.0, -math.nan])).tolist() == order_codes(np.array([0.0, math.nan])).tolist()
    assert order_codes(np.array([1.5], np.float32))[0] == order_codes(np.array([1.5]))[0]
    assert SMALLEST < codes.min() < codes.max() < LARGEST


@pytest.mark.parametrize("part", ["rank", "r", "w", "wide", "", "minimum", "lo", "minlow", "maxlow"])
def test_a_column_of_an_unknown_part_has_no_merge_rule(part: str) -> None:
    with pytest.raises(ValueError, match="No rule says"):
        rule_of(f"x:{part}")


def test_each_known_part_has_its_merge_rule() -> None:
    parts = ["n", "nan", "inf", "-inf", "w0", "w12", "min", "max", "r0", "r63", "and", "or", "xor"]
    rules = [rule_of(f"x:{part}") for part in parts]
    assert rules == [*[ADD] * 6, MINIMUM, MAXIMUM, *[REGISTERS] * 2, AND, OR, XOR]
    assert is_low_word("x:minlow")
    assert not is_low_word("x:min")


@pytest.mark.parametrize("rule", sorted({*RULES.values(), *NUMBERED.values()}, key=str), ids=lambda rule: rule.name)
def test_a_rule_is_what_its_row_says(rule: MergeRule) -> None:
    naive = MERGED[rule.name]
    pool = [drawn("x:r0" if rule.bytewise else "x:n", np.random.default_rng(seed)) for seed in range(30)]
    assert all(naive(value, rule.identity) == value for value in pool)
    assert all(naive(value, value) == value for value in pool) is rule.idempotent
    assert rule.idempotent or rule.inverse is not None, "windows would have no way to be combined"
    pairs = [(a, b) for a in pool for b in pool]
    if rule.inverse is not None:
        assert all(int(rule.inverse(naive(a, b), a)) == b for a, b in pairs)
    left, right = (ints(*side) for side in zip(*pairs, strict=True))
    if rule.idempotent:
        assert merged_overlapping(rule, left, right).tolist() == [naive(a, b) for a, b in pairs]
    else:
        with pytest.raises(ValueError, match="overlap"):
            merged_overlapping(rule, left, right)
