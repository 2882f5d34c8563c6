"""Finds the filters that each event passes, by binning values instead of evaluating every filter.

Comparisons of one expression with many constants are a **family**. The constants cut the expression's values into
bins, a binary search finds the bin of each event, and each comparison is TRUE in a run of consecutive bins. Any other
condition has two bins. The rank of an event in a ladder of filters (see `plan.groups.filter_ladders`) follows from the
bins of the ladder's conditions.

The combinations of bins that occur become signatures. Unrelated ladders would multiply their number, so ladders are
distributed to bundles with signatures of their own, which keeps the number of cells small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, places_of
from millpond.kernels.columns import Array, Values
from millpond.model.expressions import Expression, Literal
from millpond.plan.groups.filter_ladders import Comparison, Ladder, comparison_of
from millpond.runtime.aggregates.partials import Rows
from millpond.state.keys.filter_signatures import Ranks, narrowest, numbered
from millpond.state.layout.cells import Signed, Slices, order_codes

MOST_SIGNATURES = 1 << 16
"""The most combinations of bins in a bundle of a chunk; ladders that would exceed it start another bundle."""


class Bundle(NamedTuple):
    """The rows that pass one of the bundle's filters: their positions, and the combination (row of `ranks`) of each.

    `ranks` has a column for each ladder of the group, 0 for ladders of other bundles; `lengths`: filters per ladder.
    """

    rows: Ints
    codes: Ints
    ranks: Ranks
    lengths: tuple[int, ...]

    def counts(self, late: Ints, classes: int) -> Ints:
        """The number of rows per late class that pass each filter, filters in the order of the ladders.

        `late`: the late class of all rows of the chunk.
        """
        combinations = len(self.ranks)
        found = np.bincount(late[self.rows] * combinations + self.codes, minlength=classes * combinations)
        return np.stack([self._passing(weights) for weights in found.reshape(classes, combinations)])

    def _passing(self, weights: Ints) -> Ints:
        sizes = np.array(self.lengths) + 1
        bases = np.cumsum(sizes) - sizes
        held = np.zeros(int(sizes.sum()) + 1, np.int64)  # by ladder and rank
        for ladder, base in enumerate(bases.tolist()):
            of = np.bincount(self.ranks[:, ladder], weights, minlength=int(sizes[ladder]))
            held[base : base + len(of)] = of.astype(np.int64)
        above = held[::-1].cumsum()[::-1]
        ends = np.repeat(bases + sizes, self.lengths)
        ranks = np.delete(np.arange(int(sizes.sum())), bases)
        passing: Ints = above[ranks] - above[ends]
        return passing

    def most(self, values: Sequence[int], least: int) -> Ints:
        """The largest value of the filters that each combination passes, but at least `least`.

        `values`: a value for each filter, in the order of the ladders.
        """
        found, first = np.full(len(self.ranks), least), 0
        for ladder, length in enumerate(self.lengths):
            upto = np.maximum.accumulate([least, *values[first : first + length]])
            np.maximum(found, upto[self.ranks[:, ladder]], out=found)
            first += length
        return found


def ranks_of_bundles(bundles: Sequence[Bundle], rows: int) -> list[Array]:
    """The rank of every row in each ladder; the ranks in a ladder of one filter are booleans."""
    lengths = bundles[0].lengths
    ranks = np.zeros((len(lengths), rows), narrowest(lengths))
    for bundle in bundles:
        for ladder in np.flatnonzero(bundle.ranks.any(axis=0)):
            ranks[ladder, bundle.rows] = bundle.ranks[bundle.codes, ladder]
    return [ranks[ladder].astype(bool) if length == 1 else ranks[ladder] for ladder, length in enumerate(lengths)]


class Split(NamedTuple):
    """Slices split by signature, and the position of each row's slice, for the rows of a bundle."""

    slices: Slices
    rows: Ints


def split_slices(every: Slices, slices: Ints, bundle: Bundle, filters: Sequence[str]) -> Split:
    """Splits slices by the signatures of a bundle's rows.

    `slices`: the slice of each of the bundle's rows, as a position in `every`. `filters`: the ids of the group's
    filters, ladder by ladder.
    """
    table, ids = numbered(filters, bundle.ranks, bundle.lengths)
    count = len(ids)
    pairs, rows = places_of(slices * count + bundle.codes, len(every.start_us) * count)
    return Split(every.take(pairs // count)._replace(signed=Signed(ids[pairs % count], table)), rows)


_Range: TypeAlias = tuple[int, int]
"""A range of bins of a test: first … end - 1."""


class _Test(NamedTuple):
    """The bin of each row, and the bins in which each condition is TRUE."""

    codes: Ints
    bins: int
    passing: Mapping[Expression, _Range]


class _Climb(NamedTuple):
    """How the rank in a ladder follows from the bins of tests.

    For rows whose bins are within `rest` (a range per test), the rank is `ranks[bin]` with the bin of test `by`, or
    `ranks[0]` if `by` is None. For all other rows it is 0.
    """

    rest: Mapping[int, _Range]
    by: int | None
    ranks: Ints

    @property
    def tests(self) -> tuple[int, ...]:
        """The tests on which the rank depends."""
        return tuple(sorted({*self.rest, *([] if self.by is None else [self.by])}))


def classify(rows: Rows, ladders: Sequence[Ladder], cells: int) -> list[Bundle]:
    """Finds the bundles of a chunk; `cells`: its number of cells, not counting signatures."""
    tests = _tests(rows, dict.fromkeys(part for ladder in ladders for part in (*ladder.rest, *ladder.steps)))
    owner = {part: i for i, test in enumerate(tests) for part in test.passing}
    climbs = [_climb(ladder, tests, owner) for ladder in ladders]
    return _bundles(climbs, [len(ladder.filters) for ladder in ladders], tests, rows.count, cells)


def _climb(ladder: Ladder, tests: Sequence[_Test], owner: Mapping[Expression, int]) -> _Climb:
    rest: dict[int, _Range] = {}
    for part in ladder.rest:
        i = owner[part]
        first, end = tests[i].passing[part]
        known = rest.get(i, (0, tests[i].bins))
        rest[i] = max(first, known[0]), min(end, known[1])
    if not ladder.steps:
        return _Climb(rest, None, np.ones(1, np.int64))
    by = owner[ladder.steps[0]]
    begun = np.zeros(tests[by].bins + 1, np.int64)
    for first, end in (tests[by].passing[step] for step in ladder.steps):
        begun[first] += 1
        begun[end] -= 1
    return _Climb(rest, by, begun.cumsum()[:-1])


def classify_ranks(ranks: Sequence[Array], lengths: Sequence[int], rows: int, cells: int) -> list[Bundle]:
    """Like `classify`, from the known ranks of `rows` rows in each ladder; a scalar is the rank of all rows."""
    tests, climbs = list[_Test](), list[_Climb]()
    for found, length in zip(ranks, lengths, strict=True):
        if found.ndim:
            climbs.append(_Climb({}, len(tests), np.arange(length + 1)))
            tests.append(_Test(found.astype(np.int64), length + 1, {}))
        else:
            climbs.append(_Climb({}, None, found.astype(np.int64).reshape(1)))
    return _bundles(climbs, lengths, tests, rows, cells)


def _bundles(
    climbs: Sequence[_Climb], lengths: Sequence[int], tests: Sequence[_Test], rows: int, cells: int
) -> list[Bundle]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, climb in enumerate(climbs):
        groups.setdefault(climb.tests, []).append(position)
    open_, bundles = _Combined.none(rows), []
    for needed, members in sorted(groups.items(), key=lambda item: (len(item[0]), item[0])):
        alone = math.prod(tests[i].bins for i in needed)
        both = open_.joined(tests, [i for i in needed if i not in open_.tests])
        apart = min(rows, cells * open_.combinations) + min(rows, cells * alone)
        together = min(rows, cells * both.combinations)
        if open_.members and (both.combinations > MOST_SIGNATURES or together > apart):
            bundles.append(open_.bundle(climbs, lengths))
            both = _Combined.none(rows).joined(tests, needed)
        open_ = both._replace(members=[*both.members, *members])
    bundles.append(open_.bundle(climbs, lengths))
    return [bundle for bundle in bundles if len(bundle.rows)]


class _Combined(NamedTuple):
    """Combinations of the bins of some tests: the code of each row, and the bins of each combination."""

    tests: tuple[int, ...]
    codes: Ints
    combinations: int
    bins: Ints
    members: list[int]

    @staticmethod
    def none(rows: int) -> _Combined:
        """A single combination without tests."""
        return _Combined((), np.zeros(rows, np.int64), 1, np.zeros((1, 0), np.int64), [])

    def joined(self, tests: Sequence[_Test], more: Sequence[int]) -> _Combined:
        """Adds the bins of more tests to the combinations."""
        codes, bins = self.codes, self.bins
        for i in more:
            test = tests[i]
            found, codes = places_of(codes * test.bins + test.codes, max(len(bins) * test.bins, 1))
            bins = np.column_stack([bins[found // test.bins], found % test.bins])
        return _Combined((*self.tests, *more), codes, max(len(bins), 1), bins, list(self.members))

    def bundle(self, climbs: Sequence[_Climb], lengths: Sequence[int]) -> Bundle:
        """The ranks of each combination in the ladders; combinations with equal ranks become one."""
        ranks: Ranks = np.zeros((len(self.bins), len(lengths)), narrowest(lengths), order="F")
        bins = {i: self.bins[:, column] for column, i in enumerate(self.tests)}
        held: dict[tuple[int, _Range], Array] = {}
        for position in self.members:
            climb = climbs[position]
            column = ranks[:, position]
            column[:] = climb.ranks[0 if climb.by is None else bins[climb.by]]
            for i, among in climb.rest.items():
                if (i, among) not in held:
                    held[i, among] = (bins[i] >= among[0]) & (bins[i] < among[1])
                column *= held[i, among]
        first, same = _distinct(ranks)
        ranks = np.ascontiguousarray(ranks[first])
        some = np.asarray(ranks.any(axis=1))
        codes = same[self.codes]
        rows = np.flatnonzero(some[codes])
        renumbered = np.cumsum(some) - 1
        return Bundle(rows, renumbered[codes[rows]], ranks[some], tuple(lengths))


def _distinct(ranks: Ranks) -> tuple[Ints, Ints]:
    """The first position of each distinct row, and for each row the number of its distinct row."""
    mixed = np.zeros(len(ranks), np.uint64)
    for column in ranks.T:
        mixed = (mixed ^ column) * _MIXER
        mixed ^= mixed >> np.uint64(29)
    _, first, same = np.unique(mixed, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    if not np.array_equal(ranks[first[same]], ranks):  # different rows have equal hashes
        _, first, same = np.unique(ranks, axis=0, return_index=True, return_inverse=True)
        same = same.reshape(-1)
    return first, same


_MIXER = np.uint64(0x9E3779B97F4A7C15)


def _tests(rows: Rows, parts: Iterable[Expression]) -> list[_Test]:
    families: dict[Expression, dict[Expression, Comparison]] = {}
    tests = []
    for part in parts:
        member = comparison_of(part)
        if member is not None:
            families.setdefault(member.value, {})[part] = member
        else:
            tests.append(_alone(rows, part))
    for value, members in families.items():
        if len(members) == 1:
            tests.append(_alone(rows, next(iter(members))))
        else:
            tests.append(_family(rows, value, members))
    return tests


def _alone(rows: Rows, part: Expression) -> _Test:
    true = rows.evaluator(part).is_true()
    if not true.ndim:  # it depends on no column
        return _Test(np.zeros(rows.count, np.int64), 1, {part: (0, int(bool(true)))})
    return _Test(rows.take(true).astype(np.int64), 2, {part: (1, 2)})


def _family(rows: Rows, value: Expression, members: Mapping[Expression, Comparison]) -> _Test:
    """The test of several comparisons of one expression with constants.

    Bin 0 contains NULLs and errors. With the constants in order, bin 1 + 2 j contains the values between constants
    j - 1 and j, and bin 2 + 2 j those equal to constant j.
    """
    values, limits = rows.evaluator(value), [member.limit for member in members.values()]
    if value.type == "string":
        codes, places, bins = _text_bins(values, limits)
    else:
        codes, places, bins = _number_bins(values, limits)
    unknown = values.null | values.error
    if unknown.any():
        codes = np.where(unknown, 0, codes)
    passing: dict[Expression, _Range] = {}
    for (part, member), place in zip(members.items(), places.tolist(), strict=True):
        equal = 2 + 2 * place
        passing[part] = {
            "lt": (1, equal), "le": (1, equal + 1), "eq": (equal, equal + 1), "gt": (equal + 1, bins),
            "ge": (equal, bins),
        }[member.op]  # fmt: skip
    return _Test(rows.take(codes), bins, passing)


def _number_bins(values: Values, constants: Sequence[Literal]) -> tuple[Ints, Ints, int]:
    ordered = _ordered(np.asarray(values.data))
    limits = _ordered(np.array([constant.value for constant in constants], np.asarray(values.data).dtype))
    distinct = np.unique(limits)
    below = np.searchsorted(distinct, ordered)
    equal = distinct[np.minimum(below, len(distinct) - 1)] == ordered
    return 1 + 2 * below + equal, np.searchsorted(distinct, limits), 2 * len(distinct) + 2


def _ordered(data: Array) -> Ints:
    """Numbers as int64 with SQL's order (for floats their order codes)."""
    return order_codes(data) if data.dtype.kind == "f" else data.astype(np.int64)


def _text_bins(values: Values, constants: Sequence[Literal]) -> tuple[Ints, Ints, int]:
    texts = [constant.text for constant in constants]
    distinct = list(dict.fromkeys(texts))
    data = pa.array([values.data.as_py()]) if isinstance(values.data, pa.Scalar) else values.data
    found = np.asarray(pc.fill_null(pc.index_in(data, pa.array(distinct, pa.string())), -1)).astype(np.int64)
    places = {text: place for place, text in enumerate(distinct)}
    return np.where(found < 0, 1, 2 + 2 * found), np.array([places[text] for text in texts]), 2 * len(distinct) + 2
