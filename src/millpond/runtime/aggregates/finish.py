"""Computes the final value of each aggregate function from its merged measures, over whole columns.

A measure is a mergeable partial aggregate, such as a sum or a count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import UnsetType

from millpond.arrays import Ints, Wide
from millpond.kernels.arithmetic import round_half_up
from millpond.kernels.columns import Array, Mask, Values
from millpond.model.aggregates import APPROX_DISTINCT, Aggregate
from millpond.model.types import digits_of, is_decimal, is_float, is_integer
from millpond.plan.groups.aggregate_functions import FUNCTIONS, PAIRED, result_type
from millpond.plan.groups.plan import Measure
from millpond.runtime.aggregates.correlations import OF_PAIRS, Pairs
from millpond.runtime.aggregates.hyperloglog import estimates
from millpond.state.layout.cells import from_order_codes, registers_of, words_of
from millpond.state.numbers.exact_moments import fourth_numerators, third_numerators
from millpond.state.numbers.exact_sums import SHIFT, Words, covariance_numerators, normalise, to_doubles, to_integers
from millpond.state.numbers.int128 import beyond, divided, of_words, widened

_DIGITS_AVERAGED_IN_DOUBLES = 11
"""The largest precision of decimals whose average Spark computes in doubles (rule `DecimalAggregates`).

Spark adds 4 digits to the scale; 15 digits fit a double exactly."""


def finish(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints]) -> Values:
    """The aggregate's value in each row, from the columns of its measures (see `plan.groups.aggregate_functions`).

    `Values.error` is true where the exact sum is out of the range of its type; with `OR_NULL` the value is NULL there.
    """
    values = FINISH[aggregate.function](aggregate, measures, columns, columns[f"{measures[-1].id}:n"])
    return values if isinstance(aggregate.parameters, UnsetType) else Values(values.data, values.null | values.error)


def _count(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    return Values(count)


def _sum(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    measure = measures[0]
    if is_integer(measure.type):
        total, outside = to_integers(_words(measure, columns, count))
        return Values(total, count == 0, outside & (count > 0))
    if is_decimal(measure.type):
        unscaled, beyond_type = _decimal_sum(measure, columns, count)
        return Values(unscaled, count == 0, beyond_type)
    return Values(_real_sum(measure, columns, count), count == 0)


def _avg(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    measure = measures[0]
    if is_integer(measure.type):
        total = to_doubles(_words(measure, columns, count), SHIFT["integer"])
    elif is_decimal(measure.type):
        return _decimal_avg(aggregate, measure, columns, count)
    else:
        total = _real_sum(measure, columns, count)
    return Values(total / np.maximum(count, 1), count == 0)


def _decimal_sum(measure: Measure, columns: Mapping[str, Ints], count: Ints) -> tuple[Wide, Mask]:
    """The sum, and where it exceeds the type of sums."""
    total, outside = of_words(_words(measure, columns, count))
    return total, outside | beyond(total, digits_of(result_type("sum", measure.type)).precision)


def _decimal_avg(aggregate: Aggregate, measure: Measure, columns: Mapping[str, Ints], count: Ints) -> Values:
    """The average, rounded half up to the result's scale; up to 11 digits it is computed in doubles, as in Spark."""
    given, result = digits_of(measure.type), digits_of(aggregate.type)
    if given.precision <= _DIGITS_AVERAGED_IN_DOUBLES:
        doubles = to_doubles(_words(measure, columns, count), SHIFT["integer"])
        quotient = doubles / np.maximum(count, 1) / 10.0**given.scale
        unscaled = np.rint(round_half_up(quotient, result.scale) * 10.0**result.scale)
        return Values(widened(unscaled.astype(np.int64)), count == 0)
    total, outside = _decimal_sum(measure, columns, count)
    mean, too_large = divided(total, result.scale - given.scale, np.maximum(count, 1))
    return Values(mean, count == 0, outside | too_large | beyond(mean, result.precision))


def _words(measure: Measure, columns: Mapping[str, Ints], like: Ints) -> Words:
    words = words_of(measure.id, columns)
    return normalise(words) if words else {0: np.zeros_like(like)}


def _real_sum(measure: Measure, columns: Mapping[str, Ints], count: Ints) -> Array:
    total = to_doubles(_words(measure, columns, count), SHIFT["double"])
    return _with_special(measure, columns, total)


def _with_special(measure: Measure, columns: Mapping[str, Ints], total: Array) -> Array:
    """Replaces sums of rows with infinities or NaN, which are counted separately, by the result that these imply."""
    found = {name: columns.get(f"{measure.id}:{name}") for name in ("nan", "inf", "-inf")}
    positive, negative, nan = found["inf"], found["-inf"], found["nan"]
    if positive is not None:
        total = np.where(positive > 0, np.inf, total)
    if negative is not None:
        total = np.where(negative > 0, -np.inf, total)
    if positive is not None and negative is not None:
        total = np.where((positive > 0) & (negative > 0), np.nan, total)
    return total if nan is None else np.where(nan > 0, np.nan, total)


def _variance(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    """Variances, standard deviations and `regr_sxx`.

    They are exact except for one rounding each of `n Σx² − (Σx)²`, of the divisor and of the quotient (and of the
    root).
    """
    sums, squares = (_words(measure, columns, count) for measure in measures[:2])
    numerator = covariance_numerators(count, sums, sums, squares)
    ddof = 1 if aggregate.function.endswith("_samp") else 0
    divisor = count if aggregate.function == "regr_sxx" else count * (count - ddof)
    with np.errstate(invalid="ignore"):
        result = numerator / np.maximum(divisor, 1).astype(np.float64)
        if aggregate.function.startswith("stddev"):
            result = np.sqrt(result)
    return Values(np.where(_not_finite(measures[0], columns, count), np.nan, result), count <= ddof)


def _skewness_or_kurtosis(
    aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints
) -> Values:
    """Skewness and kurtosis; NULL where all values are equal."""
    sums = [_words(measure, columns, count) for measure in measures[:-1]]
    not_finite = _not_finite(measures[0], columns, count)
    spread = covariance_numerators(count, sums[0], sums[0], sums[1])
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        mantissa, exponent = np.frexp(np.where((spread == 0) | np.isinf(spread), 1.0, spread))
        uneven = exponent & 1  # keeps the exponent even, so that its root is exact
        mantissa, exponent = mantissa * (1 + uneven), exponent - uneven
        if aggregate.function == "skewness":
            data = np.ldexp(third_numerators(count, sums), -3 * exponent // 2) / (mantissa * np.sqrt(mantissa))
        else:
            data = np.ldexp(fourth_numerators(count, sums), -2 * exponent) / (mantissa * mantissa) - 3.0
    return Values(np.where(not_finite | np.isinf(spread), np.nan, data), (count == 0) | (~not_finite & (spread == 0)))


def _not_finite(measure: Measure, columns: Mapping[str, Ints], count: Ints) -> Mask:
    """Where a sum has an infinite or NaN input, which the exact sum leaves out."""
    found = np.zeros(count.shape, bool)
    for name in (f"{measure.id}:{part}" for part in ("nan", "inf", "-inf")):
        if name in columns:
            found |= columns[name] > 0
    return found


def _distinct(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    measure = measures[0]
    return Values(estimates(registers_of(measure.id, columns), measure.precision, len(count)))


def _pairs(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    """Functions of two arguments, from the sums in their row of `FUNCTIONS`: those of y, then those of x."""
    found = {}
    for kind, measure in zip(FUNCTIONS[aggregate.function].measures, measures, strict=True):
        found[kind] = measure
    words = {kind: _words(measure, columns, count) for kind, measure in found.items() if kind != "count"}
    sums, squares = ("sum", "other sum"), ("squares", "other squares")
    yy, xx = (
        covariance_numerators(count, words[sums[i]], words[sums[i]], words[squares[i]]) if squares[i] in words else None
        for i in (0, 1)
    )
    mean_y, mean_x = (to_doubles(words[one], SHIFT["double"]) / np.maximum(count, 1) for one in sums)
    odd_y, odd_x = (_not_finite(found[one], columns, count) for one in sums)
    yx = covariance_numerators(count, words["sum"], words["other sum"], words["products"])
    return OF_PAIRS[aggregate.function](aggregate.function, Pairs(count, yx, yy, xx, mean_y, mean_x, odd_y, odd_x))


def _one_column(aggregate: Aggregate, measures: Sequence[Measure], columns: Mapping[str, Ints], count: Ints) -> Values:
    measure = measures[0]
    codes = columns[f"{measure.id}:{measure.kind}"]
    if is_decimal(measure.type):
        return Values(codes, count == 0)
    if not is_float(measure.type):
        return Values(codes > 0 if measure.type == "boolean" else codes, count == 0)
    values = from_order_codes(np.where(count > 0, codes, 0))
    return Values(values.astype(np.float32) if measure.type == "float" else values, count == 0)


FINISH: dict[str, Callable[[Aggregate, Sequence[Measure], Mapping[str, Ints], Ints], Values]] = {
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    **dict.fromkeys(("min", "max", "bit_and", "bit_or", "bit_xor"), _one_column),
    **dict.fromkeys(("var_samp", "var_pop", "stddev_samp", "stddev_pop", "regr_sxx"), _variance),
    **dict.fromkeys(("skewness", "kurtosis"), _skewness_or_kurtosis),
    APPROX_DISTINCT: _distinct,
    **dict.fromkeys(PAIRED, _pairs),
}
"""How each function of `FUNCTIONS` is computed from its merged measures, by name."""
