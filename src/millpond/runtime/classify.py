"""Which filters of a group each event passes, found by bins and not filter by filter.

Comparisons of one expression with many constants are a **family**: the constants cut the expression's values into
bins, one binary search tells the bin of each event, and which comparisons hold is a property of the bin.
Any other condition has two bins. Filters then are sets of combinations of bins.

Combinations that occur become signatures. Filters whose conditions have nothing to do with each other would multiply
them, so they are dealt out to bundles, each with signatures of its own: as few as keep the number of cells small.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.model.expressions import Call, Expression, Literal
from millpond.model.types import INTEGERS, TIMES
from millpond.runtime.columns import Array, Values
from millpond.runtime.partials import Rows, compact, parts_of
from millpond.state.cells import Signed, Slices, order_codes
from millpond.state.signatures import numbered

MOST_SIGNATURES = 1 << 16
"""More than this many combinations of a chunk are dealt out to another bundle."""

_RANKED = (*INTEGERS, *TIMES, "float", "double", "string")

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


class Bundle(NamedTuple):
    """The rows that pass some of the bundle's filters: positions, and the combination (row of `bits`) of each.

    `bits` has a column per filter of the group; those of other bundles are false.
    """

    rows: Ints
    codes: Ints
    bits: npt.NDArray[np.bool_]

    def counts(self, late: Ints, classes: int) -> Ints:
        """How many rows of each late class (given for all rows) pass each filter."""
        found = np.bincount(late[self.rows] * len(self.bits) + self.codes, minlength=classes * len(self.bits))
        counted: Ints = found.reshape(classes, len(self.bits)) @ self.bits.astype(np.int64)
        return counted


class Split(NamedTuple):
    """Slices that are told apart by signature, and the slice of each row of a bundle."""

    slices: Slices
    rows: Ints


def split_slices(every: Slices, slices: Ints, bundle: Bundle, filters: Sequence[str]) -> Split:
    """`slices` are those of the bundle's rows, as positions in `every`; `filters` are the ids of the group's."""
    table, ids = numbered(filters, bundle.bits)
    count = len(ids)
    pairs, rows = compact(slices * count + bundle.codes, len(every.start_us) * count)
    return Split(every.take(pairs // count)._replace(signed=Signed(ids[pairs % count], table)), rows)


class _Test(NamedTuple):
    """A bin per row, and for each part of a condition the bins that pass it."""

    codes: Ints
    bins: int
    passing: Mapping[Hashable, Mask]


_Filters: TypeAlias = Sequence[tuple[Hashable, ...]]
"""For each filter the parts that all must hold: conditions, or positions of masks."""


def classify(rows: Rows, filters: Sequence[Expression | None], cells: int) -> list[Bundle]:
    """The bundles of a chunk; `cells` is its number of cells without filters."""
    parts = [parts_of(condition) for condition in filters]
    tests = _tests(rows, dict.fromkeys(part for condition in parts for part in condition))
    return _bundles(parts, tests, rows.count, cells)


def classify_masks(masks: Sequence[Mask], filters: Sequence[int], rows: int, cells: int) -> list[Bundle]:
    """The same where it is known which of `rows` rows pass: `filters` are positions in `masks`, -1 where all do."""
    tests = [_Test(mask.astype(np.int64), 2, {i: np.array([False, True])}) for i, mask in enumerate(masks)]
    return _bundles([() if i < 0 else (i,) for i in filters], tests, rows, cells)


def _bundles(parts: _Filters, tests: Sequence[_Test], rows: int, cells: int) -> list[Bundle]:
    owner = {part: i for i, test in enumerate(tests) for part in test.passing}
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, condition in enumerate(parts):
        groups.setdefault(tuple(sorted({owner[part] for part in condition})), []).append(position)
    open_, bundles = _Combined.none(rows), []
    for needed, members in sorted(groups.items(), key=lambda item: (len(item[0]), item[0])):
        alone = math.prod(tests[i].bins for i in needed)
        both = open_.joined(tests, [i for i in needed if i not in open_.tests])
        apart = min(rows, cells * open_.combinations) + min(rows, cells * alone)
        together = min(rows, cells * both.combinations)
        if open_.members and (both.combinations > MOST_SIGNATURES or together > apart):
            bundles.append(open_.bundle(tests, parts))
            both = _Combined.none(rows).joined(tests, needed)
        open_ = both._replace(members=[*both.members, *members])
    bundles.append(open_.bundle(tests, parts))
    return [bundle for bundle in bundles if len(bundle.rows)]


class _Combined(NamedTuple):
    """Combinations of the bins of some tests: the one of each row, and its bin in each test."""

    tests: tuple[int, ...]
    codes: Ints
    combinations: int
    bins: Ints
    members: list[int]

    @staticmethod
    def none(rows: int) -> _Combined:
        """One combination, of no test."""
        return _Combined((), np.zeros(rows, np.int64), 1, np.zeros((1, 0), np.int64), [])

    def joined(self, tests: Sequence[_Test], more: Sequence[int]) -> _Combined:
        """With the bins of more tests."""
        codes, bins = self.codes, self.bins
        for i in more:
            test = tests[i]
            found, codes = compact(codes * test.bins + test.codes, max(len(bins) * test.bins, 1))
            bins = np.column_stack([bins[found // test.bins], found % test.bins])
        return _Combined((*self.tests, *more), codes, max(len(bins), 1), bins, list(self.members))

    def bundle(self, tests: Sequence[_Test], filters: _Filters) -> Bundle:
        """Which filters each combination passes; combinations that pass the same ones are one."""
        bits = np.zeros((len(self.bins), len(filters)), bool)
        place = {i: column for column, i in enumerate(self.tests)}
        held = {
            part: passing[self.bins[:, place[i]]] for i in self.tests for part, passing in tests[i].passing.items()
        }
        for position in self.members:
            passed = np.ones(len(bits), bool)
            for part in filters[position]:
                passed &= held[part]
            bits[:, position] = passed
        packed = np.packbits(bits, axis=1)
        _, first, same = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        codes = same.reshape(-1)[self.codes]
        bits = bits[first]
        some = np.asarray(bits.any(axis=1))
        rows = np.flatnonzero(some[codes])
        renumbered = np.cumsum(some) - 1
        return Bundle(rows, renumbered[codes[rows]], bits[some])


def _tests(rows: Rows, parts: Sequence[Expression] | Mapping[Expression, None]) -> list[_Test]:
    families: dict[Expression, dict[Expression, tuple[str, Literal]]] = {}
    tests = []
    for part in parts:
        member = _member(part)
        if member is not None:
            value, op, constant = member
            families.setdefault(value, {})[part] = op, constant
        else:
            tests.append(_alone(rows, part))
    for value, members in families.items():
        if len(members) == 1:
            tests.append(_alone(rows, next(iter(members))))
        else:
            tests.append(_family(rows, value, members))
    return tests


def _member(part: Expression) -> tuple[Expression, str, Literal] | None:
    """A comparison with a constant as (value, operator, constant): what can be one of a family."""
    if not isinstance(part, Call) or part.op not in _FLIPPED:
        return None
    left, right = part.args
    op = part.op
    if isinstance(left, Literal):
        left, right, op = right, left, _FLIPPED[op]
    if not isinstance(right, Literal) or isinstance(left, Literal) or right.text is None:
        return None
    if left.type != right.type or left.type not in _RANKED or (left.type == "string" and op != "eq"):
        return None
    return left, op, right


def _alone(rows: Rows, part: Expression) -> _Test:
    true = rows.evaluator(part).is_true()
    if not true.ndim:  # of no row in particular
        return _Test(np.zeros(rows.count, np.int64), 1, {part: np.array([bool(true)])})
    return _Test(rows.take(true).astype(np.int64), 2, {part: np.array([False, True])})


def _family(rows: Rows, value: Expression, members: Mapping[Expression, tuple[str, Literal]]) -> _Test:
    """Bin 0: NULL or raised. With the constants in order, 1 + 2 j lies below the j-th (and above the one before),
    2 + 2 j is equal to it.
    """
    values = rows.evaluator(value)
    if value.type == "string":
        codes, places, bins = _text_bins(values, [constant for _, constant in members.values()])
    else:
        codes, places, bins = _number_bins(values, [constant for _, constant in members.values()])
    unknown = values.null | values.error
    if unknown.any():
        codes = np.where(unknown, 0, codes)
    every = np.arange(bins)
    passing: dict[Hashable, Mask] = {}
    for (part, (op, _)), place in zip(members.items(), places.tolist(), strict=True):
        equal = 2 + 2 * place
        held = {
            "lt": every < equal, "le": every <= equal, "eq": every == equal, "gt": every > equal, "ge": every >= equal,
        }[op]  # fmt: skip
        passing[part] = held & (every > 0)
    return _Test(rows.take(codes), bins, passing)


def _number_bins(values: Values, constants: Sequence[Literal]) -> tuple[Ints, Ints, int]:
    ordered = _ordered(np.asarray(values.data))
    limits = _ordered(np.array([constant.value for constant in constants], np.asarray(values.data).dtype))
    distinct = np.unique(limits)
    below = np.searchsorted(distinct, ordered)
    equal = distinct[np.minimum(below, len(distinct) - 1)] == ordered
    return 1 + 2 * below + equal, np.searchsorted(distinct, limits), 2 * len(distinct) + 2


def _ordered(data: Array) -> Ints:
    """Numbers as int64 in SQL's order."""
    return order_codes(data) if data.dtype.kind == "f" else data.astype(np.int64)


def _text_bins(values: Values, constants: Sequence[Literal]) -> tuple[Ints, Ints, int]:
    texts = [constant.text for constant in constants]
    distinct = list(dict.fromkeys(texts))
    data = pa.array([values.data.as_py()]) if isinstance(values.data, pa.Scalar) else values.data
    found = np.asarray(pc.fill_null(pc.index_in(data, pa.array(distinct, pa.string())), -1)).astype(np.int64)
    places = {text: place for place, text in enumerate(distinct)}
    return np.where(found < 0, 1, 2 + 2 * found), np.array([places[text] for text in texts]), 2 * len(distinct) + 2
