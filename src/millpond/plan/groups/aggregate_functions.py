"""The aggregate functions of SQL: one row per function, with its measures, types and spellings.

The plan takes the measures of a function from here, Spark's analysis its class and the accepted types, the gate its
spellings. How a value is computed from measures is in `runtime.aggregates.finish`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millpond.model.aggregates import APPROX_DISTINCT, DISTINCT_VALUES, NTH, ORDERED
from millpond.model.functions import PREFIX
from millpond.model.types import MOST_DIGITS, TIMES, Digits, digits_of, is_decimal, is_integer, is_number


class Types(NamedTuple):
    """A set of SQL types, and what error messages call it."""

    text: str
    includes: Callable[[str], bool]


ANY = Types("values of any type", lambda _: True)
INTEGERS = Types("integers", is_integer)
DOUBLES = Types("numbers, as doubles", lambda kind: kind == "double")
NUMBERS = Types("numbers", lambda kind: is_number(kind) or is_decimal(kind))
ORDERABLE = Types(
    "numbers, times, dates, booleans and strings",  # strings are compared in the event log
    lambda kind: NUMBERS.includes(kind) or kind in (*TIMES, "boolean"),
)


class Function(NamedTuple):
    """An aggregate function whose partial results merge; `name` is Spark's canonical name.

    `spark` is the class of Spark's expression. `measures` are kinds of measures (see `plan.groups.measure_kinds`), in
    the order that `runtime.aggregates.finish` expects; the last one counts the values that took part, where needed,
    and `other` is the measure of the second argument. `result` gives the type over values of a type. `sql` are the
    names by which query texts call the function, those included that Spark replaces by it.
    """

    name: str
    spark: str
    measures: tuple[str, ...]
    result: Callable[[str], str]
    accepts: Types
    sql: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """Whether the function takes pairs; it skips events for which either value is NULL."""
        return any(kind.startswith("other ") for kind in self.measures)


def _bigint(_: str) -> str:
    return "bigint"


def _double(_: str) -> str:
    return "double"


def _same(kind: str) -> str:
    return kind


def _sum(kind: str) -> str:
    return "bigint" if is_integer(kind) else _more_digits(kind, 10, 0) if is_decimal(kind) else "double"


def _average(kind: str) -> str:
    return _more_digits(kind, 4, 4) if is_decimal(kind) else "double"


def _more_digits(kind: str, precision: int, scale: int) -> str:
    given = digits_of(kind)
    return Digits(min(MOST_DIGITS, given.precision + precision), min(MOST_DIGITS, given.scale + scale)).type


_SPREAD = ("sum", "squares", "count")
_SHAPE = ("sum", "squares", "power3", "power4", "count")
_PRODUCT = ("sum", "other sum", "products", "count")
_SLOPE = ("sum", "other sum", "other squares", "products", "count")
_CORRELATION = ("sum", "squares", "other sum", "other squares", "products", "count")

_AVERAGES = ("avg", "mean", "try_avg", "regr_avgx", "regr_avgy")

_ROWS = (
    Function("count", "Count", ("count",), _bigint, ANY, ("count", "count_if", "regr_count")),
    Function("sum", "Sum", ("sum", "count"), _sum, NUMBERS, ("sum", "try_sum")),
    Function("min", "Min", ("min", "count"), _same, ORDERABLE, ("min", "bool_and", "every")),
    Function("max", "Max", ("max", "count"), _same, ORDERABLE, ("max", "bool_or", "some", "any")),
    Function("avg", "Average", ("sum", "count"), _average, NUMBERS, _AVERAGES),
    Function("bit_and", "BitAndAgg", ("and", "count"), _same, INTEGERS, ("bit_and",)),
    Function("bit_or", "BitOrAgg", ("or", "count"), _same, INTEGERS, ("bit_or",)),
    Function("bit_xor", "BitXorAgg", ("xor", "count"), _same, INTEGERS, ("bit_xor",)),
    Function("stddev_samp", "StddevSamp", _SPREAD, _double, DOUBLES, ("stddev", "stddev_samp", "std")),
    Function("stddev_pop", "StddevPop", _SPREAD, _double, DOUBLES, ("stddev_pop",)),
    Function("var_samp", "VarianceSamp", _SPREAD, _double, DOUBLES, ("variance", "var_samp")),
    Function("var_pop", "VariancePop", _SPREAD, _double, DOUBLES, ("var_pop",)),
    Function("skewness", "Skewness", ("sum", "squares", "power3", "count"), _double, DOUBLES, ("skewness",)),
    Function("kurtosis", "Kurtosis", _SHAPE, _double, DOUBLES, ("kurtosis",)),
    Function("regr_sxx", "RegrReplacement", _SPREAD, _double, DOUBLES, ("regr_sxx", "regr_syy")),
    Function("corr", "Corr", _CORRELATION, _double, DOUBLES, ("corr",)),
    Function("covar_pop", "CovPopulation", _PRODUCT, _double, DOUBLES, ("covar_pop",)),
    Function("covar_samp", "CovSample", _PRODUCT, _double, DOUBLES, ("covar_samp",)),
    Function("regr_sxy", "RegrSXY", _PRODUCT, _double, DOUBLES, ("regr_sxy",)),
    Function("regr_slope", "RegrSlope", _SLOPE, _double, DOUBLES, ("regr_slope",)),
    Function("regr_intercept", "RegrIntercept", _SLOPE, _double, DOUBLES, ("regr_intercept",)),
    Function("regr_r2", "RegrR2", _CORRELATION, _double, DOUBLES, ("regr_r2",)),
    Function(APPROX_DISTINCT, "HyperLogLogPlusPlus", ("registers",), _bigint, ANY, (APPROX_DISTINCT,)),
)

FUNCTIONS = {function.name: function for function in _ROWS}
"""The functions whose partial results merge, by name; `regr_sxx` has one argument here."""

PAIRED = tuple(function.name for function in _ROWS if function.paired)
"""Functions of two arguments. Regression functions take (y, x)."""


class EventFunction(NamedTuple):
    """A function that is answered from the event log (see `model.aggregates.LOGGED`).

    `spark` is the class of Spark's expression, `distinct` are the classes that become this function with DISTINCT.
    `ordered`: the result depends on the order of events. `needs`: the positions of the arguments that must not be NULL,
    or the event is left out; None: all arguments.
    """

    name: str
    spark: str
    distinct: tuple[str, ...]
    sql: tuple[str, ...]
    ordered: bool = False
    needs: tuple[int, ...] | None = None


EVENT_FUNCTIONS: tuple[EventFunction, ...] = (
    EventFunction("count_distinct", "", ("Count",), ()),
    *(EventFunction(name, "", (FUNCTIONS[name.removesuffix("_distinct")].spark,), ()) for name in DISTINCT_VALUES),
    EventFunction("percentile", "Percentile", (), ("percentile", "percentile_cont", "median")),
    EventFunction("percentile_disc", "PercentileDisc", (), ("percentile_disc",)),
    EventFunction("approx_percentile", "ApproximatePercentile", (), ("percentile_approx", "approx_percentile")),
    EventFunction("mode", "Mode", (), ("mode",)),
    EventFunction("first", "First", (), ("first", "first_value", "any_value"), True, ()),
    EventFunction("last", "Last", (), ("last", "last_value"), True, ()),
    EventFunction("min_by", "MinBy", (), ("min_by",), True, (1,)),
    EventFunction("max_by", "MaxBy", (), ("max_by",), True, (1,)),
    EventFunction("collect_list", "CollectList", (), ("collect_list", "array_agg"), True),
    EventFunction("collect_set", "CollectSet", ("CollectList", "CollectSet"), ("collect_set",)),
    EventFunction("listagg", "ListAgg", (), ("listagg", "string_agg"), True, (0,)),
    EventFunction("listagg_distinct", "", ("ListAgg",), (), False, (0,)),  # the ordering value may be NULL
    EventFunction("histogram_numeric", "HistogramNumeric", (), ("histogram_numeric",)),
    EventFunction("product", "Product", (), ("product",), True),
)
"""The functions that are answered from the event log."""

_USER = EventFunction("", "", (), (), True, ())
_BY_NAME = {function.name: function for function in EVENT_FUNCTIONS}
_BY_NAME |= {name: EventFunction(name, "", (), ()) for name in FUNCTIONS}  # such as `min` of texts
_BY_NAME[NTH] = EventFunction(NTH, "", (), (), True, ())
_BY_NAME |= {name: EventFunction(name, "", (), (name,), False, ()) for name in ORDERED}


def event_function(name: str) -> EventFunction:
    """What the event log must know about a function; of a user function, all events and their order may matter.

    Raises:
        KeyError: there is no such function.
    """
    return _USER if name.startswith(PREFIX) else _BY_NAME[name]


_SQL = (*(function.sql for function in _ROWS), *(function.sql for function in EVENT_FUNCTIONS))

SPELLINGS = frozenset(name for names in _SQL for name in names)
"""The names by which query texts call the aggregate functions that are answered."""

ANSWERED = (
    ", ".join(name for names in _SQL for name in names[:1])
    + ", and those of DISTINCT numbers"
)
"""The aggregate functions that are answered, for error messages."""


def result_type(function: str, kind: str) -> str:
    """The type that Spark gives an aggregate over values of type `kind`.

    >>> result_type("sum", "decimal(10,2)"), result_type("avg", "decimal(38,6)"), result_type("min", "date")
    ('decimal(20,2)', 'decimal(38,10)', 'date')
    """
    return FUNCTIONS[function].result(kind)
