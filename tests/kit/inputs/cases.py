"""Generates random streams, epochs and queries over one test schema, from any source of randomness.

The same generator is used with hypothesis (`strategies.py`), which shrinks its choices, and for seeded cases of any
size. Queries deliberately use equal columns, filters, keys and windows, so that plans can share them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from millpond.model.aggregates import (
    APPROX_DISTINCT,
    DESCENDING,
    DIRECTIONS,
    DISTINCT_VALUES,
    LISTAGGS,
    LOGGED,
    Aggregate,
)
from millpond.model.expressions import Call, Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW, digits_of, exact_digits, is_decimal, is_float
from millpond.model.windows import Calendar, Cumulating, Session, Sliced, Sliding, Window
from millpond.plan.groups.aggregate_functions import DOUBLES as OF_DOUBLES
from millpond.plan.groups.aggregate_functions import FUNCTIONS, INTEGERS, PAIRED, result_type

SECOND = 1_000_000

STREAM = Stream(
    "events",
    (
        Field("k", "string"),
        Field("g", "bigint"),
        Field("f", "double"),
        Field("v", "int"),
        Field("amount", "double"),
        Field("flag", "boolean"),
        Field("ts", "timestamp"),
        Field("p", "decimal(10,2)"),
        Field("d", "decimal(38,6)"),
    ),
)
"""The stream of every random case: `f` contains all special doubles, `amount` and `p` prices, `k` skewed strings,
`d` decimals of up to 38 digits."""

TEXTS = ("a", "a", "a", "a", "b", "b", "", "ä", "a\u0308", "日本", "😀", "a b", "it's", "A", "zz", "ß")
DOUBLES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 0.1, math.nan, math.inf, -math.inf, 5e-324, -2.2250738585072014e-308,
    1.7976931348623157e308, -1e308, 1e300, 1e16, 1.0000000000000002, 1e-300, 9.223372036854775807e18,
    123456.789, 0.125, 2.675,
)  # fmt: skip
BIGINTS = (0, 1, 2, 3, -1, -7, 2**31, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63))
UNSCALED = (
    0, 1, -1, 5, -50, 99, 100, 12345, -(10**9) - 5, 10**10 - 1, 10**17, -(2**63), 2**63, 2**64, -(2**64) - 1,
    10**22 + 7, -(10**30) + 3, 10**32,
)  # fmt: skip
"""Unscaled decimals; a type uses only those that fit its number of digits."""
EXTREMES = (10**38 - 1, -(10**38) + 1, 10**37, 2**126)
"""More unscaled decimals, so large that sums and averages overflow their type."""
INTS = (0, 1, 2, 3, 5, 7, -1, -3, 100, 2**31 - 1, -(2**31))
BASES = (0, 1_700_000_000 * SECOND, -86_400 * SECOND, 45 * SECOND)
"""Start times of streams; the first is 1970, with events before it."""

WINDOWS = (
    Sliding(10 * SECOND, 10 * SECOND), Sliding(7 * SECOND, 7 * SECOND, 3 * SECOND + 1),
    Sliding(45 * SECOND, 15 * SECOND), Sliding(45 * SECOND, 15 * SECOND, 7 * SECOND),
    Sliding(60 * SECOND, 20 * SECOND), Sliding(7 * SECOND, 3 * SECOND), Sliding(5 * SECOND, 4_999_999, 17),
    Sliding(60 * SECOND, 60 * SECOND), Sliding(1 * SECOND, 1 * SECOND),
)  # fmt: skip
UNEQUAL: tuple[Window, ...] = (
    Cumulating(60 * SECOND, 20 * SECOND, 7 * SECOND), Cumulating(80 * SECOND, 2 * SECOND),
    Calendar("date", "-00:00:25"), Calendar("month", "Africa/Monrovia"),
)  # fmt: skip
"""Windows that differ in length; in 1970, days of the first zone and months of the second begin at odd times."""
SESSIONS = (
    Session(5 * SECOND), Session(5 * SECOND), Session(2 * SECOND), Session(15 * SECOND), Session(60 * SECOND),
    Session(1), Session(1_500_001),
)  # fmt: skip
DELAYS = (0, 1, 5 * SECOND, 5 * SECOND, 30 * SECOND, 3600 * SECOND)

T = TypeVar("T")


class Dice(Protocol):
    """A source of randomness: `random.Random`, or an adapter of hypothesis."""

    def choice(self, seq: Sequence[T], /) -> T:
        """One of the options."""

    def randint(self, a: int, b: int, /) -> int:
        """An integer from `a` to `b`, both included."""


class Case(NamedTuple):
    """A stream cut into epochs, and queries over it."""

    epochs: list[list[dict[str, Any]]]
    queries: list[Query]


class Menu(NamedTuple):
    """The features that random queries may use; a test turns off those that the tested part does not support."""

    summed: tuple[str, ...] = ("v", "amount", "f", "g", "p", "d")
    """Columns of which queries may compute sums, averages and variances."""
    raising: bool = True
    """Whether expressions may fail for some rows."""
    variance: bool = True
    """Whether queries may use variances, standard deviations, functions of two columns and approximate functions."""
    moments: bool = True
    """Whether queries may use skewness and kurtosis, which take more time than all else in an epoch of few events."""
    events: bool = True
    """Whether queries may use functions that are computed from the event log."""
    windows: tuple[Window, ...] = WINDOWS
    """The windows to choose from."""


EVERYTHING = Menu()
WITH_SESSIONS = Menu(windows=(*SESSIONS, *SESSIONS, *WINDOWS))


# --- expressions -------------------------------------------------------------------------------------------

_COLUMNS = {field.name: Column(field.name, field.type) for field in STREAM.columns}
_SMALL: dict[str, Sequence[Any]] = {
    "bigint": BIGINTS, "int": INTS, "double": DOUBLES, "string": TEXTS, "boolean": (True, False),
}  # fmt: skip


def _chance(dice: Dice, one_in: int) -> bool:
    return dice.randint(1, one_in) == one_in


def cast_to(expression: Expression, kind: str) -> Expression:
    """The expression in type `kind`, with the cast that Spark would insert."""
    return expression if expression.type == kind else Call("cast", (expression,), kind)


def decimals(kind: str, unscaled: Sequence[int] = UNSCALED) -> list[Decimal]:
    """The decimals of a type; numbers that do not fit it are left out."""
    precision, scale = digits_of(kind)
    return [Decimal(f"{number}E-{scale}") for number in unscaled if abs(number) < 10**precision]


def _constant(dice: Dice, kind: str) -> Expression:
    pool = decimals(kind) if is_decimal(kind) else _SMALL[kind]
    return literal(None if _chance(dice, 15) else dice.choice(pool), kind)


def _is_comparable(kind: str) -> bool:
    return kind in _SMALL or is_decimal(kind)


def number(dice: Dice, menu: Menu, column: Column) -> Expression:
    """A numeric expression around `column`; without `menu.raising` it fails for no row."""
    if is_decimal(column.type):
        return _decimal(dice, menu, column)
    kind = "double" if is_float(column.type) else "bigint"
    wide = cast_to(column, kind)
    shape = dice.randint(0, 14)
    if shape == 0 and menu.raising:
        return call(dice.choice(("add", "subtract", "multiply")), (wide, _constant(dice, kind)), kind)
    if shape == 1 and menu.raising:
        divisor = _COLUMNS[dice.choice(("v", "amount", "f"))]
        operator = dice.choice(("divide", "remainder"))
        return Call(operator, (cast_to(column, "double"), cast_to(divisor, "double")), "double")
    if shape == 2 and menu.raising:
        return Call(dice.choice(("negate", "abs")), (column,), column.type)
    if shape == 3 and menu.raising:
        return Call("cast", (column,), dice.choice(("int", "tinyint", "bigint")))
    if shape == 4 and menu.raising:
        return Call(dice.choice(("floor", "ceil")), (cast_to(column, "double"),), "bigint")
    if shape == 5:
        choice = (condition(dice, menu, 1), wide, _constant(dice, kind))
        return Call("case", choice[: dice.choice((2, 3))], kind)
    if shape == 6:
        return Call(dice.choice(("least", "greatest", "coalesce")), (wide, _constant(dice, kind)), kind)
    if shape == 7:
        return Call("multiply", (cast_to(column, "double"), literal(0.01, "double")), "double")
    if shape == 8:
        return Call("sqrt", (cast_to(column, "double"),), "double")
    if shape == 9:
        return Call("round", (cast_to(column, "double"), literal(dice.randint(-1, 3), "int")), "double")
    return column


def _decimal(dice: Dice, menu: Menu, column: Column) -> Expression:
    """A numeric expression around a column of decimals; only a narrowing cast can fail."""
    shape, kind = dice.randint(0, 9), column.type
    constant = _constant(dice, kind)
    if shape == 0:
        operator = dice.choice(("add", "subtract", "multiply"))
        exact = exact_digits(operator, digits_of(kind), digits_of(kind))
        return column if exact.precision > 38 else call(operator, (column, constant), exact.type)
    if shape == 1:
        return Call(dice.choice(("negate", "abs")), (column,), kind)
    if shape == 2 and menu.raising:
        return cast_to(column, dice.choice(("decimal(6,1)", "decimal(38,20)", "decimal(20,0)")))
    if shape == 3:
        return Call("case", (condition(dice, menu, 1), column, constant)[: dice.choice((2, 3))], kind)
    if shape == 4:
        return Call(dice.choice(("least", "greatest", "coalesce")), (column, constant), kind)
    if shape == 5:
        return cast_to(column, "double")
    if shape == 6:
        return cast_to(_COLUMNS["v"], "decimal(12,2)")
    return column


def condition(dice: Dice, menu: Menu, depth: int = 2) -> Expression:
    """A boolean expression over the columns."""
    if depth and _chance(dice, 3):
        parts = tuple(condition(dice, menu, depth - 1) for _ in range(dice.randint(2, 3)))
        return call(dice.choice(("and", "or")), parts, "boolean")
    shape = dice.randint(0, 9)
    if shape == 0 and depth:
        return Call("not", (condition(dice, menu, depth - 1),), "boolean")
    if shape == 1:
        inner = number(dice, menu, _COLUMNS[dice.choice(("v", "p"))]) if _chance(dice, 2) else _COLUMNS["g"]
        return Call(dice.choice(("isnull", "isnotnull", "ran")), (inner,), "boolean")
    if shape == 2:
        return Call("isnan", (_COLUMNS[dice.choice(("f", "amount"))],), "boolean")
    if shape == 3:
        return _COLUMNS["flag"]
    if shape == 4:
        operator = dice.choice(("startswith", "endswith", "contains"))
        return Call(operator, (_COLUMNS["k"], _constant(dice, "string")), "boolean")
    name = dice.choice(("k", "g", "f", "v", "amount", "flag", "p", "d"))
    column = _COLUMNS[name]
    if shape == 5:
        options = tuple(_constant(dice, column.type) for _ in range(dice.randint(1, 4)))
        return Call("in", (column, *options), "boolean")
    if shape == 6 and name not in ("k", "flag"):
        left = number(dice, menu, column)
        if _is_comparable(left.type):
            return call(dice.choice(("lt", "ge", "same")), (left, _constant(dice, left.type)), "boolean")
        return Call("isnull", (left,), "boolean")
    operator = dice.choice(("eq", "lt", "le", "gt", "ge", "same"))
    return call(operator, (column, _constant(dice, column.type)), "boolean")


def key(dice: Dice, menu: Menu) -> Expression:
    """A grouping expression."""
    shape = dice.randint(0, 9)
    if shape <= 5:
        return _COLUMNS[dice.choice(("k", "k", "k", "g", "v", "f", "flag", "p", "d"))]
    if shape == 6:
        return condition(dice, menu, 0)
    if shape == 7:
        operator = dice.choice(("length", "upper", "lower"))
        return Call(operator, (_COLUMNS["k"],), "int" if operator == "length" else "string")
    if shape == 8:
        return Call("concat", (_COLUMNS["k"], literal("-", "string"), _COLUMNS["k"]), "string")
    return number(dice, menu, _COLUMNS[dice.choice(("g", "v", "f", "p"))])


# --- queries -----------------------------------------------------------------------------------------------


def aggregate_of(function: str, argument: Expression | None, where: Expression | None = None) -> Aggregate:
    """An aggregate with the argument cast and the result typed as Spark does."""
    if function == "count" or argument is None:
        return Aggregate("count", argument, where, "bigint")
    if not FUNCTIONS[function].accepts.includes(argument.type):
        argument = cast_to(argument, "double")
    return Aggregate(function, argument, where, result_type(function, argument.type))


def _aggregate(dice: Dice, menu: Menu) -> Aggregate:
    where = condition(dice, menu, 1) if _chance(dice, 4) else None
    if menu.events and _chance(dice, 4):
        return logged_aggregate(dice, menu, where)
    bits = [one.name for one in FUNCTIONS.values() if one.accepts is INTEGERS]
    functions = ["count", "count", "sum", "sum", "min", "max", "avg", *bits]
    if menu.variance:
        doubles = [one.name for one in FUNCTIONS.values() if one.accepts is OF_DOUBLES and not one.paired]
        functions += [name for name in doubles if menu.moments or name not in ("skewness", "kurtosis")]
    if menu.variance and _chance(dice, 6):
        return _pair(dice, menu, where)
    if menu.variance and _chance(dice, 12):
        error = literal(dice.choice((0.05, 0.3, 0.15)), "double")
        return Aggregate(APPROX_DISTINCT, dice.choice(list(_COLUMNS.values())), where, "bigint", error)
    function = dice.choice(functions)
    if function == "count" and _chance(dice, 2):
        return aggregate_of("count", None, where)
    if function in ("count", "min", "max"):
        text = ("k",) if function == "count" else ()  # min and max of text are not supported yet
        column = _COLUMNS[dice.choice((*text, "g", "f", "v", "amount", "flag", "ts", "p", "d"))]
        return aggregate_of(function, column, where)
    if function in bits:
        return aggregate_of(function, _COLUMNS[dice.choice(("v", "g"))], where)
    argument = number(dice, menu, _COLUMNS[dice.choice(menu.summed)])
    # Sums of wide integers overflow their type, which ends the query, so they are rare.
    if function == "sum" and argument.type == "bigint" and not (menu.raising and _chance(dice, 6)):
        argument = _COLUMNS["v"]
    if function in ("sum", "avg") and argument.type == "decimal(38,6)" and not (menu.raising and _chance(dice, 2)):
        argument = _COLUMNS["p"]
    return aggregate_of(function, argument, where)


OF_OTHER_TESTS = ("product", *DISTINCT_VALUES[2:])
"""Functions that random cases lack; test_event_aggregates.py and test_tallies.py compare them with their twins."""


_LOGGED = (*(name for name in LOGGED if name not in OF_OTHER_TESTS), "min", "max")


def logged_aggregate(
    dice: Dice, menu: Menu, where: Expression | None, functions: Sequence[str] = _LOGGED
) -> Aggregate:
    """A function that is computed from the event log or from tallies."""
    function = dice.choice(functions)
    column = _COLUMNS["k" if function in ("min", "max") else dice.choice(("k", "v", "amount", "flag", "ts", "p", "d"))]
    if function in DISTINCT_VALUES:
        plain = FUNCTIONS[function.removesuffix("_distinct")]
        names = ["v", "g"] if plain.accepts is INTEGERS else [one for one in menu.summed if one in ("v", "amount", "p")]
        argument: Expression = _COLUMNS[dice.choice(names)]
        argument = cast_to(argument, "double") if plain.accepts is OF_DOUBLES else argument
        return Aggregate(function, argument, where, plain.result(argument.type))
    if function == "count_distinct":
        other = _COLUMNS[dice.choice(("k", "v", "amount"))]
        return Aggregate(function, column, where, "bigint", other if _chance(dice, 2) else UNSET)
    if function in ("min_by", "max_by"):
        other, most = _COLUMNS[dice.choice(("v", "amount", "k", "p"))], (literal(dice.randint(1, 3), "int"),)
        if _chance(dice, 2):
            return Aggregate(function, column, where, column.type, other)
        return Aggregate(function, column, where, f"array<{column.type}>", other, most)
    if function in LISTAGGS:
        return _listagg(dice, function, where)
    if function == "histogram_numeric":
        column = _COLUMNS[dice.choice(("v", "amount", "f", "ts"))]
        kind = f"array<struct<x:{column.type},y:double>>"
        return Aggregate(function, column, where, kind, UNSET, (literal(dice.randint(2, 4), "int"),))
    if function in ("collect_list", "collect_set"):
        return Aggregate(function, column, where, f"array<{column.type}>")
    downwards = (literal(DESCENDING, "string"),)
    if function == "mode" and _chance(dice, 2):
        return Aggregate(function, column, where, column.type, UNSET, downwards)
    if "percentile" not in function:
        return Aggregate(function, column, where, column.type)
    column = _COLUMNS[dice.choice(("v", "amount", "p"))]
    fractions = tuple(literal(dice.choice((0.0, 0.25, 0.5, 0.9, 1.0)), "double") for _ in range(dice.randint(1, 2)))
    kind = column.type if function == "approx_percentile" else "double"
    kind = f"array<{kind}>" if len(fractions) > 1 else kind
    given = fractions + downwards if function != "approx_percentile" and _chance(dice, 2) else fractions
    return Aggregate(function, column, where, kind, UNSET, given)


def _listagg(dice: Dice, function: str, where: Expression | None) -> Aggregate:
    by = [_COLUMNS[dice.choice(("v", "amount", "p", "k"))] for _ in range(dice.randint(0, 2))]
    by = by if function == "listagg" else [_COLUMNS["k"] for _ in by[:1]]
    given = [dice.choice((", ", "")), *(dice.choice(DIRECTIONS) for _ in by)]
    parameters = tuple(literal(one, "string") for one in given)
    other, more = by[0] if by else UNSET, tuple(by[1:]) or UNSET
    return Aggregate(function, _COLUMNS["k"], where, "string", other, parameters, more)


def _pair(dice: Dice, menu: Menu, where: Expression | None) -> Aggregate:
    """A function of two columns; often of the same columns, so that plans can share measures."""

    def side() -> Expression:
        some = number(dice, menu, _COLUMNS[dice.choice(menu.summed)])
        return cast_to(_COLUMNS[dice.choice(("v", "amount"))] if _chance(dice, 3) else some, "double")

    return Aggregate(dice.choice(PAIRED), side(), where, "double", side())


def _output(dice: Dice, keys: Sequence[Expression], aggregates: Sequence[Aggregate]) -> tuple[Named, ...]:
    columns = [Named("w", Column("window", WINDOW))]
    if _chance(dice, 3):
        columns = [Named(part, Column(f"window.{part}", "timestamp")) for part in ("start", "end", "time")]
    columns += [Named(f"key{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(keys)]
    columns += [Named(f"agg{i}", Column(f"agg:{i}", agg.type)) for i, agg in enumerate(aggregates)]
    numbers = [column for column in columns if column.expression.type in ("bigint", "double")
               or is_decimal(column.expression.type)]  # fmt: skip
    if numbers and _chance(dice, 2):
        left, right = (cast_to(dice.choice(numbers).expression, "double") for _ in range(2))
        # Never divide by zero: an output that fails ends the query.
        safe = Call("case", (call("same", (right, literal(0.0, "double")), "boolean"),
                             literal(None, "double"), right), "double")  # fmt: skip
        operator = dice.choice(("add", "subtract", "multiply", "divide"))
        columns.append(Named("mixed", Call(operator, (left, safe), "double")))
    return tuple(columns)


def _having(dice: Dice, aggregates: Sequence[Aggregate]) -> Expression | None:
    usable = [(i, agg) for i, agg in enumerate(aggregates) if _is_comparable(agg.type)]
    if not usable or not _chance(dice, 4):
        return None
    i, chosen = dice.choice(usable)
    operator = dice.choice(("gt", "le", "same"))
    return call(operator, (Column(f"agg:{i}", chosen.type), _constant(dice, chosen.type)), "boolean")


def query(dice: Dice, name: str = "q0", menu: Menu = EVERYTHING) -> Query:
    """A random query over `STREAM`."""
    keys = tuple(key(dice, menu) for _ in range(dice.choice((0, 1, 1, 1, 2))))
    aggregates = tuple(_aggregate(dice, menu) for _ in range(dice.randint(1, 4)))
    return Query(
        name=name,
        stream=STREAM.name,
        event_time="ts",
        delay_us=dice.choice(DELAYS),
        window=dice.choice(menu.windows),
        keys=keys,
        aggregates=aggregates,
        output=_output(dice, keys, aggregates),
        where=condition(dice, menu) if _chance(dice, 2) else None,
        having=_having(dice, aggregates),
    )


def query_set(dice: Dice, size: int, menu: Menu = EVERYTHING) -> list[Query]:
    """`size` queries with different names that often have equal keys, filters and aggregates, so that groups form."""
    made: list[Query] = []
    for i in range(size):
        fresh = query(dice, f"q{i}", menu)
        if made and _chance(dice, 2):
            # A sibling: the keys and aggregates of another query with its own window, delay and filter.
            other = dice.choice(made)
            fresh = Query(
                name=fresh.name, stream=other.stream, event_time=other.event_time, delay_us=fresh.delay_us,
                window=fresh.window, keys=other.keys, aggregates=other.aggregates, output=other.output,
                where=dice.choice((fresh.where, other.where)), having=other.having,
            )  # fmt: skip
        made.append(fresh)
    return made


def by_window(queries: Sequence[Query]) -> list[Query]:
    """The queries, of which every second one that can judges late events by their windows."""
    made: list[Query] = []
    for number, one in enumerate(queries):
        window = one.window
        whole = window.size_us % window.slide_us == 0 if isinstance(window, Sliding) else isinstance(window, Sliced)
        fits = whole and one.deduplicated is None
        made.append(replace(one, late_by="window") if fits and number % 2 == 0 else one)
    return made


# --- seeded cases ------------------------------------------------------------------------------------------


def random_case(seed: int, events: int, queries: int, *, epochs: int = 8, menu: Menu = EVERYTHING) -> Case:
    """A reproducible case of any size: `events` rows in `epochs` batches and an empty one, and queries."""
    dice = random.Random(seed)
    base = dice.choice(BASES)
    keys = [f"user-{i}" for i in range(max(1, events // 50))]
    rows = [_event(dice, base + i * 300 * SECOND // max(1, events), keys) for i in range(events)]
    cuts = sorted(dice.randint(0, events) for _ in range(epochs - 1))
    batches = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, events], strict=True)]
    batches.insert(dice.randint(0, len(batches)), [])
    return Case(batches, query_set(dice, queries, menu))


def _event(dice: random.Random, time: int, keys: Sequence[str]) -> dict[str, Any]:
    disorder = dice.choice((0, 0, 0, 1, 3, 8, 40)) * SECOND
    jitter = dice.choice((0, 0, dice.randint(0, 999_999)))
    row = {
        "k": dice.choice(TEXTS) if dice.random() < 0.6 else keys[int(len(keys) * dice.random() ** 3)],
        "g": dice.choice((dice.randint(0, 5), dice.choice(BIGINTS))),
        "f": dice.choice((dice.gauss(0, 1), dice.choice(DOUBLES))),
        "v": dice.randint(-5, 100) if dice.random() < 0.95 else dice.choice(INTS),
        "amount": dice.randint(0, 100_000) / 100,
        "flag": dice.random() < 0.5,
        "ts": (time - disorder) // SECOND * SECOND + jitter,
        "p": Decimal(dice.randint(-100, 100_000)).scaleb(-2),
        "d": dice.choice(decimals("decimal(38,6)", EXTREMES if dice.random() < 0.02 else UNSCALED)),
    }
    rare = {"k": 0.05, "g": 0.1, "f": 0.1, "v": 0.05, "amount": 0.02, "flag": 0.1, "ts": 0.005, "p": 0.05, "d": 0.1}
    return {name: None if dice.random() < rare[name] else value for name, value in row.items()}
