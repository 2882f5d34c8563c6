"""Cells: partial results by (slice, key), as int64 columns that merge by adding, minimum or maximum.

The name of a column is `<measure id>:<part>`. The part determines how the column merges (see `merge_rules`):

    n            a count                                          added
    w<k>         word k of an exact sum (see state/numbers/exact_sums.py)      added
    nan inf -inf counts of values an exact sum leaves out         added
    min max      order codes (see `order_codes`)                  minimum, maximum
    minlow maxlow  low words of extremes that take 128 bits       with their `min` or `max`, the high words
    and or xor   integers                                         by their bits
    r<k>         eight registers, one in each byte                maximum of each byte

If a piece of state lacks a column, its value is the identity of the merge, which is 0 for sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import WIDE, Ints, Mask, distinct_rows, firsts_of, new_values, occurrences, places_among, repeated
from millpond.state.keys.filter_signatures import UNSIGNED, Signatures, union
from millpond.state.layout.merge_rules import LARGEST, MergeRule, identities, is_low_word, merged, rule_of
from millpond.state.numbers.exact_sums import Words, normalise
from millpond.state.numbers.int128 import wide

_LOOKUP = 40
"""The cost of looking up or copying one run, as the number of slots that can be read in the same time."""

_CHUNK = 1 << 15  # slots that are read at once, so that intermediate arrays stay in the CPU cache

_AT_ONCE = 1024  # words are below 2**51, so 2**11 of them can be added


class Signed(NamedTuple):
    """The signature of each slice, and the table of these signatures."""

    ids: Ints
    table: Signatures


class Slices(NamedTuple):
    """Slices of event time, [start, end) in µs, with the number of delays for which their events were late.

    `signed`: the slices are also split by the filters that their events pass; None: they are not.
    """

    start_us: Ints
    end_us: Ints
    late_class: Ints
    signed: Signed | None = None

    def take(self, rows: Ints) -> Slices:
        """The slices at these positions."""
        signed = self.signed
        if signed is not None:
            ids = signed.ids[rows]
            signed = Signed(ids, signed.table.take(ids))
        return Slices(self.start_us[rows], self.end_us[rows], self.late_class[rows], signed)

    @property
    def signatures(self) -> Ints:
        """The signature of each slice."""
        return np.full(len(self.start_us), UNSIGNED) if self.signed is None else self.signed.ids


class Cells(NamedTuple):
    """Cells sorted by slice, then slot: slice i has rows `offsets[i] : offsets[i + 1]`, with each slot at most once."""

    slices: Slices
    offsets: Ints
    slots: npt.NDArray[np.integer]
    columns: Mapping[str, npt.NDArray[np.integer]]

    @property
    def rows(self) -> int:
        """The number of cells."""
        return len(self.slots)


class Piece(NamedTuple):
    """Partial results to merge: each row has a slice (position in `slices`) and a slot; a pair occurs at most once."""

    slices: Slices
    slice_rows: Ints
    slots: npt.NDArray[np.integer]
    columns: Mapping[str, npt.NDArray[np.integer]]


def piece_of(cells: Cells) -> Piece:
    """Cells as a piece to merge."""
    slice_rows = np.repeat(np.arange(len(cells.slices.start_us)), np.diff(cells.offsets))
    return Piece(cells.slices, slice_rows, cells.slots, cells.columns)


def needed_slices(cells: Cells, horizon: int | None) -> Ints:
    """The positions of the slices that end after `horizon` (None: all slices)."""
    ends = cells.slices.end_us
    return np.arange(len(ends)) if horizon is None else np.flatnonzero(ends > horizon)


def span_of(cells: Cells) -> tuple[int, int]:
    """The smallest slot of the cells, and the largest one plus 1; only the first and last cell of each slice are read.

    >>> slices = Slices(np.array([0, 10]), np.array([10, 20]), np.zeros(2, np.int64))
    >>> span_of(Cells(slices, np.array([0, 3, 4]), np.array([2, 4, 6, 3]), {}))
    (2, 7)
    """
    begins, ends = cells.offsets[:-1], cells.offsets[1:]
    full = ends > begins
    if not full.any():
        return 0, 0
    return int(cells.slots[begins[full]].min()), int(cells.slots[ends[full] - 1].max()) + 1


def part_of(cells: Cells, chosen: Ints, first: int = 0, until: int | None = None) -> Cells:
    """The cells of slices `chosen` (ascending positions) and slots `first` … `until` - 1 (None: all from `first` on).

    Other cells are not read.

    >>> slices = Slices(np.array([0, 10, 20]), np.array([10, 20, 30]), np.zeros(3, np.int64))
    >>> cells = Cells(slices, np.array([0, 3, 4, 5]), np.array([1, 4, 6, 5, 2]), {"n": np.arange(5)})
    >>> part_of(cells, np.array([0, 2])).columns["n"].tolist(), part_of(cells, np.array([0, 1]), 4, 6).slots.tolist()
    ([0, 1, 2, 4], [4, 5])
    """
    low, high = bounds_of(cells, chosen, first, until)
    offsets = np.append(0, np.cumsum(high - low)).astype(np.int64)
    begins = np.flatnonzero(np.append(True, low[1:] != high[:-1])[: len(low)])  # adjacent slices are one run
    ends = np.append(begins[1:], len(low)) - 1 if len(low) else begins
    if len(begins) > 1 and offsets[-1] < _LOOKUP * len(begins):
        rows = _rows_between(low, high)
        return Cells(cells.slices.take(chosen), offsets, cells.slots[rows], taken(cells.columns, rows))
    runs = [slice(*run) for run in zip(low[begins].tolist(), high[ends].tolist(), strict=True)] or [slice(0, 0)]

    def of(column: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        return column[runs[0]] if len(runs) == 1 else np.concatenate([column[run] for run in runs])

    return Cells(cells.slices.take(chosen), offsets, of(cells.slots), each_once(cells.columns, of))


def bounds_of(cells: Cells, chosen: Ints, first: int = 0, until: int | None = None) -> tuple[Ints, Ints]:
    """The bounds (low, high; high is exclusive) of the rows of slots `first` … `until` - 1 in each chosen slice."""
    low, high = cells.offsets[chosen], cells.offsets[chosen + 1]
    if first or until is not None:
        found = _looked_up(cells.slots, low, high, np.array([first] if until is None else [first, until]))
        low, high = found[:, 0], high if until is None else found[:, 1]
    return low, high


def rows_named(cells: Cells, wanted: Mask, runs: Ints) -> Ints:
    """The rows of the slots that are `wanted`, ascending; `runs` are the bounds of their runs, from `slot_runs`.

    If the runs are few, their bounds are looked up in each slice, and other slots are not read.

    >>> slices = Slices(*np.zeros((3, 2), np.int64))
    >>> cells = Cells(slices, np.array([0, 2, 3]), np.array([1, 4, 6]), {})
    >>> wanted = np.array([False, True, True, False, False, False, True])
    >>> rows_named(cells, wanted, slot_runs(wanted)).tolist()
    [0, 2]
    """
    slices = len(cells.offsets) - 1
    if len(runs) * slices * _LOOKUP < cells.rows:
        found = _looked_up(cells.slots, cells.offsets[:-1], cells.offsets[1:], runs.reshape(-1)).reshape(-1, 2)
        return _rows_between(found[:, 0], found[:, 1])
    chunks = range(0, cells.rows, _CHUNK)
    parts = [np.flatnonzero(wanted[cells.slots[at : at + _CHUNK]]) + at for at in chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def slot_runs(wanted: Mask) -> Ints:
    """The bounds of the runs of wanted slots, one run per row.

    >>> slot_runs(np.array([True, False, True, True])).tolist()
    [[0, 1], [2, 4]]
    """
    return np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)


def _rows_between(low: Ints, high: Ints) -> Ints:
    """The rows from each bound `low` up to its bound `high` (exclusive)."""
    run, nth = repeated(high - low)
    rows: Ints = low[run] + nth
    return rows


def _looked_up(slots: npt.NDArray[np.integer], begins: Ints, ends: Ints, bounds: Ints) -> Ints:
    """For each slice (rows `begins` … `ends` - 1) and each bound, the first row whose slot is not below the bound.

    All binary searches run at once.
    """
    low, high = (np.repeat(of[:, None], len(bounds), axis=1) for of in (begins, ends))
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        below = open_ & (slots[np.where(open_, middle, 0)] < bounds)
        low, high = np.where(below, middle + 1, low), np.where(open_ & ~below, middle, high)
    return low


def cells_at(cells: Cells, rows: Ints) -> Cells:
    """The cells at ascending rows; slices without such cells are left out.

    >>> slices = Slices(*np.zeros((3, 2), np.int64))
    >>> cells = Cells(slices, np.array([0, 2, 3]), np.array([1, 4, 6]), {"n": np.arange(3)})
    >>> cells_at(cells, np.array([0, 1])).offsets.tolist(), cells_at(cells, np.array([1, 2])).offsets.tolist()
    ([0, 2], [0, 1, 2])
    """
    counts = np.diff(np.searchsorted(rows, cells.offsets))
    present = np.flatnonzero(counts)
    offsets = np.append(0, np.cumsum(counts[present]))
    return Cells(cells.slices.take(present), offsets, cells.slots[rows], taken(cells.columns, rows))


def taken(columns: Mapping[str, npt.NDArray[np.integer]], rows: Ints | slice) -> dict[str, npt.NDArray[np.integer]]:
    """The columns at these rows; columns that share an array still share one afterwards."""
    return each_once(columns, lambda column: column[rows])


def each_once(
    columns: Mapping[str, npt.NDArray[Any]], made: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Applies `made` to each column, only once for columns that share an array."""
    found = {place: made(column) for place, column in {id(column): column for column in columns.values()}.items()}
    return {name: found[id(column)] for name, column in columns.items()}


def with_measures(cells: Cells, ids: Collection[str] | None) -> Cells:
    """The cells with only the columns of these measures (None: all); others are dropped when cells are rewritten.

    >>> none = np.zeros(0, np.int64)
    >>> cells = Cells(Slices(none, none, none), np.zeros(1, np.int64), none, {"a:n": none, "b:min": none})
    >>> [*with_measures(cells, {"b"}).columns]
    ['b:min']
    """
    if ids is None:
        return cells
    columns = {name: column for name, column in cells.columns.items() if name.partition(":")[0] in ids}
    return cells._replace(columns=columns)


def place_of(slots: npt.NDArray[np.integer], bound: int) -> int:
    """The position of the first of these ascending slots that is not below a bound."""
    if bound > np.iinfo(slots.dtype).max:
        return len(slots)
    return int(np.searchsorted(slots, slots.dtype.type(bound)))  # a bound of another type would copy all slots


def merge(pieces: Sequence[Piece], keys: int) -> Cells:
    """Merges pieces: rows with equal slice and slot become one cell. All slots must be below `keys`."""
    pieces = [piece for piece in pieces if len(piece.slots)]
    while len(pieces) > _AT_ONCE:
        runs = [pieces[start : start + _AT_ONCE] for start in range(0, len(pieces), _AT_ONCE)]
        pieces = [piece_of(merge(run, keys)) for run in runs]
    if not pieces:
        none = np.zeros(0, np.int64)
        return Cells(Slices(none, none, none), np.zeros(1, np.int64), none, {})
    slices, renumbered = _union([piece.slices for piece in pieces])
    pieces, renumbered = _unique(pieces, renumbered)
    ids = [where[piece.slice_rows] * keys + piece.slots for piece, where in zip(pieces, renumbered, strict=True)]
    distinct, targets = places_among(ids, len(slices.start_us) * keys)
    columns = normalised(by_column(pieces, lambda rule, parts: _merged(rule, parts, targets, len(distinct))))
    owners = distinct // keys
    present, starts = firsts_of(owners)
    offsets = np.append(starts, len(distinct))
    return Cells(slices.take(present), offsets, (distinct - owners * keys).astype(np.int32), columns)


def _union(parts: Sequence[Slices]) -> tuple[Slices, list[Ints]]:
    """The distinct slices in order of time, and for each part the positions of its slices among them."""
    columns = [(part.start_us, part.end_us, part.late_class, part.signatures) for part in parts]
    first, inverse = distinct_rows([np.concatenate(some) for some in zip(*columns, strict=True)])
    ends = np.cumsum([len(part.start_us) for part in parts])
    split = np.split(inverse, ends[:-1])
    start_us, end_us, late_class, ids = first
    tables = [part.signed.table for part in parts if part.signed is not None]
    return Slices(start_us, end_us, late_class, Signed(ids, union(tables)) if tables else None), list(split)


def _unique(pieces: Sequence[Piece], renumbered: Sequence[Ints]) -> tuple[list[Piece], list[Ints]]:
    """Pieces that contain each slice once, with the positions of their slices.

    A segment contains a slice twice if the plan of its time had another lateness class between the two.
    """
    parts, places = list[Piece](), list[Ints]()
    for piece, where in zip(pieces, renumbered, strict=True):
        if new_values(np.sort(where)).all():
            parts.append(piece)
            places.append(where)
            continue
        nth = occurrences(where)
        turns = range(int(nth.max()) + 1)
        parts += [_some_of(piece, nth[piece.slice_rows] == turn) for turn in turns]
        places += [where for _ in turns]
    return parts, places


def _some_of(piece: Piece, keep: Mask) -> Piece:
    columns = {name: column[keep] for name, column in piece.columns.items()}
    return piece._replace(slice_rows=piece.slice_rows[keep], slots=piece.slots[keep], columns=columns)


def by_column(
    pieces: Sequence[Piece], merge: Callable[[MergeRule, Sequence[npt.NDArray[Any] | None]], npt.NDArray[Any]]
) -> dict[str, Ints]:
    """The result of `merge` for each column of the pieces; it is None for a piece that lacks the column.

    Columns that share an array in every piece still share one afterwards.
    """
    names = dict.fromkeys(name for piece in pieces for name in piece.columns)
    merged: dict[tuple[MergeRule, tuple[int, ...]], Ints] = {}
    columns: dict[str, Ints] = {}
    for name in names:
        if is_low_word(name):
            continue
        rule = rule_of(name)
        if f"{name}low" in names:
            columns |= extreme_names(name, merge(rule, [extreme_of(name, piece.columns) for piece in pieces]))
            continue
        parts = [piece.columns.get(name) for piece in pieces]
        same = (rule, tuple(id(part) if part is not None else 0 for part in parts))
        if same not in merged:
            merged[same] = merge(rule, parts)
        columns[name] = merged[same]
    return columns


def _merged(
    rule: MergeRule, parts: Sequence[npt.NDArray[Any] | None], targets: list[Ints], size: int
) -> npt.NDArray[Any]:
    out = identities(rule, dtype_of(parts), size)
    for part, target in zip(parts, targets, strict=True):
        if part is not None:
            out[target] = merged(rule, out[target], part)
    return out


def dtype_of(parts: Sequence[npt.NDArray[Any] | None]) -> np.dtype[Any]:
    """The dtype of a column in some pieces: `WIDE` if it has 128-bit integers in one of them, else int64."""
    return WIDE if any(part is not None and part.dtype == WIDE for part in parts) else np.dtype(np.int64)


def extreme_of(
    name: str, columns: Mapping[str, npt.NDArray[np.integer]], rows: slice = slice(None)
) -> npt.NDArray[Any] | None:
    """The extremes of a column `min` or `max`: 128-bit integers if it has low words; None without the column."""
    column, low = columns.get(name), columns.get(f"{name}low")
    if column is None:
        return None
    return column[rows] if low is None else wide(column[rows], low[rows])


def extreme_names(name: str, extremes: npt.NDArray[Any]) -> dict[str, Ints]:
    """The columns of extremes."""
    if extremes.dtype != WIDE:
        return {name: extremes}
    return {name: extremes["high"].copy(), f"{name}low": extremes["low"].view(np.int64).copy()}


def word_names(measure: str, words: Words) -> dict[str, Ints]:
    """The columns of an exact sum."""
    return {f"{measure}:w{place}": word for place, word in words.items()}


def registers_of(measure: str, columns: Mapping[str, Ints]) -> dict[int, Ints]:
    """The columns of registers of a measure, by number."""
    prefix = f"{measure}:r"
    return {int(name[len(prefix) :]): column for name, column in columns.items() if name.startswith(prefix)}


def words_of(measure: str, columns: Mapping[str, Ints]) -> Words:
    """The words of an exact sum in these columns; empty if there are none."""
    prefix = f"{measure}:w"
    return {int(name[len(prefix) :]): column for name, column in columns.items() if name.startswith(prefix)}


def normalised(columns: Mapping[str, Ints]) -> dict[str, Ints]:
    """The columns with the words of every sum normalised."""
    result = {name: column for name, column in columns.items() if ":w" not in name}
    for measure in dict.fromkeys(name.partition(":")[0] for name in columns if ":w" in name):
        result.update(word_names(measure, normalise(words_of(measure, columns))))
    return result


def order_codes(values: npt.NDArray[np.floating]) -> Ints:
    """Doubles as int64 codes in Spark's order: NaN is above infinity, and there is one zero.

    >>> order_codes(np.array([float("nan"), 1.0, -0.0, -2.0])).argsort().tolist()
    [3, 2, 1, 0]
    """
    bits = (values.astype(np.float64) + 0.0).view(np.int64)
    codes: Ints = bits ^ ((bits >> 63) & LARGEST)
    return np.where(np.isnan(values), np.int64(0x7FF8000000000000), codes)


def from_order_codes(codes: Ints) -> npt.NDArray[np.float64]:
    """The doubles of these order codes."""
    return (codes ^ ((codes >> 63) & LARGEST)).view(np.float64)
