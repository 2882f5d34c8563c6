"""Tables of signatures: equal sets have equal numbers, tables merge, and damage is detected."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.errors import CorruptError
from millpond.state.keys import filter_signatures
from millpond.state.keys.filter_signatures import UNSIGNED, Signatures, from_stored, numbered, to_stored, union
from millpond.state.layout.cells import Cells, Piece, Signed, Slices, merge, part_of, piece_of

FILTERS = ["f0", "f1", "f2", "f3"]
SETS = np.array([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 1]], bool)


def test_a_set_has_one_number_whatever_the_order_and_number_of_filters() -> None:
    _, ids = numbered(FILTERS, SETS)
    order = [3, 1, 0, 2]
    _, again = numbered([FILTERS[i] for i in order], SETS[:, order])
    more, wider = numbered([*FILTERS, "f4"], np.pad(SETS, ((0, 0), (0, 1))))
    assert ids.tolist() == again.tolist() == wider.tolist()
    assert len(set(ids.tolist())) == 3
    assert (ids > UNSIGNED).all()
    assert more.passing(FILTERS, ids).tolist() == SETS.tolist()


def test_the_union_of_tables_knows_what_each_knew() -> None:
    left, some = numbered(FILTERS[:3], SETS[:2, :3])
    right, others = numbered(FILTERS[1:], SETS[1:, 1:])
    both = union([left, right])
    assert both.passing(FILTERS[:3], some).tolist() == SETS[:2, :3].tolist()
    assert both.passing(FILTERS[1:], others).tolist() == SETS[1:, 1:].tolist()
    assert both.passing(FILTERS, np.array([UNSIGNED, 12345])).tolist() == [[False] * 4] * 2


def test_two_sets_with_one_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_signatures, "_BITS", np.uint64(0))
    left, _ = numbered(FILTERS, SETS[:1])
    right, _ = numbered(FILTERS, SETS[1:2])
    assert union([left, Signatures(*left)]).ids.tolist() == [1]
    with pytest.raises(CorruptError, match="one signature"):
        union([left, right])


LADDERS = [2, 1, 300]
NAMES = [f"n{i}" for i in range(sum(LADDERS))]
RANKS = np.array([[0, 1, 299], [2, 0, 0], [1, 1, 300], [2, 1, 1]], np.uint16)
SAME = np.concatenate([RANKS[:, [i]] > np.arange(length) for i, length in enumerate(LADDERS)], axis=1)
"""The same sets as bits."""


def test_a_set_has_one_number_in_ladders_and_as_bits() -> None:
    ladders, ids = numbered(NAMES, RANKS, LADDERS)
    bits, same = numbered(NAMES, SAME)
    assert ids.tolist() == same.tolist()
    order = [5, 0, 2, 1, 200, 302, 3]
    names = [*(NAMES[i] for i in order), "unknown"]
    assert ladders.passing(names, ids).tolist() == np.pad(SAME[:, order], ((0, 0), (0, 1))).tolist()
    assert ladders.passing(names, ids).tolist() == bits.passing(names, ids).tolist()
    both = union([ladders, bits])
    assert both.passing(names, ids).tolist() == bits.passing(names, ids).tolist()


def test_tables_with_other_ladders_know_together_what_each_knew() -> None:
    left, some = numbered(NAMES, RANKS, LADDERS)
    # of the last ladder every other filter, and one that the left table has not met between them
    kept = [0, 1, *range(3, 303, 2)]
    names = [*(NAMES[i] for i in kept[:3]), "new", *(NAMES[i] for i in kept[3:])]
    right, others = numbered(names, np.array([[1, 3], [2, 151], [0, 1], [1, 2]], np.uint8), [2, 151])
    both = union([left, right])
    for table, ids in ((left, some), (right, others)):
        assert both.passing([*NAMES, "new"], ids).tolist() == table.passing([*NAMES, "new"], ids).tolist()
    assert len(both.lengths) == 5, "those in both, those in one of them, and those of each alone"


def test_ladders_are_stored_in_as_many_bits_as_they_need() -> None:
    table, ids = numbered(NAMES, RANKS, LADDERS)
    stored = to_stored(table)
    assert stored.lengths == LADDERS
    found = from_stored(stored)
    assert found[:2] == table[:2]
    assert (found.ids.tolist(), found.ranks.tolist()) == (table.ids.tolist(), table.ranks.tolist())
    assert found.passing(NAMES, ids).tolist() == SAME.tolist()
    stored.lengths = [2, 1, 299]
    with pytest.raises(CorruptError, match="does not fit"):
        from_stored(stored)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_table_is_stored_as_text(count: int) -> None:
    table, ids = numbered(FILTERS, SETS[:count])
    found = from_stored(to_stored(table))
    assert (found.filters, found.ids.tolist()) == (tuple(FILTERS), sorted(ids.tolist()))
    assert found.ranks.tolist() == table.ranks.tolist()


@pytest.mark.parametrize("bits", ["", "AAAA", "eJwDAAAAAAE="])
def test_a_damaged_table_is_reported(bits: str) -> None:
    stored = to_stored(numbered(FILTERS, SETS)[0])
    stored.bits = bits
    with pytest.raises(CorruptError):
        from_stored(stored)


def test_cells_of_different_signatures_stay_apart_and_of_the_same_merge() -> None:
    _, ids = numbered(FILTERS, SETS)

    def piece(sets: list[int], counts: list[int]) -> Piece:
        n = len(sets)
        zero = np.zeros(n, np.int64)
        own, own_ids = numbered(FILTERS, SETS[sorted(set(sets))])
        assert set(own_ids.tolist()) <= set(ids.tolist())
        slices = Slices(zero, zero + 10, zero, Signed(ids[sets], own))
        return Piece(slices, np.arange(n), zero, {"m:n": np.array(counts)})

    merged = merge([piece([0, 1], [1, 2]), piece([1, 2], [10, 20])], 1)
    found = dict(zip(merged.slices.signatures.tolist(), merged.columns["m:n"].tolist(), strict=True))
    assert found == {int(ids[0]): 1, int(ids[1]): 12, int(ids[2]): 20}
    assert merged.slices.signed is not None
    assert merged.slices.signed.table.passing(FILTERS, ids).tolist() == SETS.tolist()
    kept = merge([piece_of(part_of(merged, np.flatnonzero(merged.slices.signatures == ids[1])))], 1)
    assert kept.slices.signed is not None
    assert kept.slices.signed.table.ids.tolist() == [int(ids[1])], "a table keeps what its slices use"
    assert isinstance(kept, Cells)
