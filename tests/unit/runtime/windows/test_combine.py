"""Windows combined from slices: every column merged over the panes of every window, for every slot."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from functools import partial, reduce

import numpy as np
import pytest

from millpond.runtime.windows import combine
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import Block, CellRange, blocks, edges_of, ranges_of, slices_between
from millpond.runtime.windows.tiles import LiveCells
from millpond.state.layout.cells import Cells, Piece, Slices, merge, words_of
from millpond.state.layout.merge_rules import REGISTERS, rule_of

MERGED: dict[str, Callable[[list[int]], int]] = {
    "a:n": sum, "b:min": min, "c:max": max, "d:r0": lambda words: larger_bytes(words),
    "e:and": partial(reduce, operator.and_), "f:or": partial(reduce, operator.or_),
    "g:xor": partial(reduce, operator.xor),
}  # fmt: skip
"""How the values of each column merge."""

NAMES = ("a:n", "a:w-1", "a:w0", "b:min", "c:max", "d:r0", "e:and", "f:or", "g:xor", "other:n")


def drawn(name: str, dice: random.Random) -> int:
    registers = rule_of(name) is REGISTERS
    return int.from_bytes([dice.randint(0, 61) for _ in range(8)], "little") if registers else dice.randint(-99, 99)


def larger_bytes(words: list[int]) -> int:
    """Register by register the largest one."""
    return int.from_bytes(map(max, *(word.to_bytes(8, "little") for word in [0, *words])), "little")


def random_cells(dice: random.Random, slots: int) -> tuple[Cells, list[tuple[int, int, int, dict[str, int]]]]:
    """Cells of slices of 10, and the same as (start, class, slot, values)."""
    has = [name for name in NAMES if dice.random() < 0.9]
    where = sorted({(dice.randint(-5, 8) * 10, dice.randint(0, 2), dice.randint(0, slots - 1)) for _ in range(40)})
    rows = [(start, late, slot, {name: drawn(name, dice) for name in has}) for start, late, slot in where]
    slices = sorted({(start, start + 10, late) for start, late, _, _ in rows})
    table = np.array(slices)
    piece = Piece(
        Slices(table[:, 0], table[:, 1], table[:, 2]),
        np.array([slices.index((start, start + 10, late)) for start, late, _, _ in rows]),
        np.array([slot for _, _, slot, _ in rows]),
        {name: np.array([values[name] for _, _, _, values in rows]) for name in has},
    )
    return merge([piece], slots), rows


def value(block: Block, name: str, window: Closing, slot: int) -> int:
    if name not in block.columns and name not in block.extremes:
        return rule_of(name).identity
    return int(block.window(name, window)[slot - block.first])


def ranged(parts: list[Cells], edges: list[int], late_class: int) -> list[CellRange]:
    return ranges_of(parts, edges, slices_between(LiveCells(parts, []), edges, late_class))


@pytest.mark.parametrize("seed", range(60))
def test_windows_are_the_naive_merges(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    #   slices     |-50|-40| … |80|      windows of 10 to 60, panes between their edges; three blocks of slots
    dice = random.Random(seed)
    monkeypatch.setattr(combine, "_BLOCK_SLOTS", 600)
    slots, late = 1300, dice.randint(0, 2)
    made = [random_cells(dice, slots) for _ in range(dice.randint(1, 4))]
    starts = [dice.randint(-5, 6) * 10 for _ in range(dice.randint(1, 6))]
    run = [Closing(start + dice.randint(1, 6) * 10, start, 0, late) for start in starts]
    edges = edges_of(run)
    ranges = ranged([cells for cells, _ in made], edges, late)
    compared = 0
    for block in blocks(edges, ranges, {*"abcdefg"}, slots):
        assert not any(name.startswith("other") for name in (*block.columns, *block.extremes))
        for window in run:
            for slot in range(block.first, block.first + block.size):
                mine = [
                    values for _, rows in made for start, missed, at, values in rows
                    if at == slot and missed <= late and window.start_us <= start < window.end_us
                ]  # fmt: skip
                if not mine and slot % 97:
                    continue
                for name, how in MERGED.items():
                    found = [values[name] for values in mine if name in values]
                    expected = how(found) if found else rule_of(name).identity
                    assert value(block, name, window, slot) == expected
                for word in ("a:w-1", "a:w0"):
                    total = sum(values.get(word, 0) for values in mine)
                    assert value(block, word, window, slot) == total
                compared += bool(mine)
    assert compared or not ranges


def test_blocks_without_cells_are_passed_over() -> None:
    cells, _ = random_cells(random.Random(1), 3)
    run = [Closing(1000, 990, 0, 0)]
    assert list(blocks(edges_of(run), ranged([cells], edges_of(run), 2), {"a"}, 3)) == []
    run = [Closing(90, -50, 0, 2)]
    found = list(blocks(edges_of(run), ranged([cells], edges_of(run), 2), {"a"}, 1 << 20))
    assert [(block.first, block.size) for block in found] == [(0, 8192)]


def test_some_rows_of_a_window_can_be_combined_alone() -> None:
    cells, _ = random_cells(random.Random(2), 50)
    run = [Closing(40, 0, 0, 2), Closing(80, 40, 0, 2), Closing(80, 0, 0, 2)]
    edges = edges_of(run)
    (block,) = blocks(edges, ranged([cells], edges, 2), {"a", "b"}, 50)
    rows = np.array([3, 7, 49])
    for name in (*block.columns, *block.extremes):
        for window in run:
            assert block.window(name, window, rows).tolist() == block.window(name, window)[rows].tolist()


def test_thousands_of_segments_do_not_overflow_a_word() -> None:
    # 1100 segments hold the largest word for one key in one slice; 127 such panes are added up
    word = (1 << 51) - 1
    starts = np.arange(127) * 10
    one = Cells(
        Slices(starts, starts + 10, np.zeros(127, np.int64)), np.arange(128), np.zeros(127, np.int64),
        {"m:w0": np.full(127, word)},
    )  # fmt: skip
    run = [Closing(10 * (i + 1), 10 * i, 0, 0) for i in range(127)]
    run.append(Closing(1270, 0, 0, 0))
    edges = edges_of(run)
    (block,) = blocks(edges, ranged([one] * 1100, edges, 0), {"m"}, 1)
    names = list(block.columns)
    for window, panes in ((run[0], 1), (run[-1], 127)):
        found = words_of("m", {name: block.window(name, window) for name in names})
        assert sum(int(column[0]) * 2 ** (52 * k) for k, column in found.items()) == 1100 * panes * word
