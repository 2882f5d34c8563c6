"""Computes a query in DuckDB: a second judge, which shares only the lateness rule with the naive twin.

DuckDB evaluates expressions in any order and stops at the first error; Spark evaluates row by row. So each expression
is translated twice: to its value, which never fails, and to whether Spark would fail. Integers are BIGINT, arithmetic
uses HUGEINT, times are BIGINT microseconds, decimals are DECIMAL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any, Literal, TypeAlias

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling
from msgspec.structs import replace

from kit.judges.duckdb_expressions import Sql, Unsupported, either, quoted, translate
from kit.judges.duckdb_pairs import EXACT_PAIRS, shape
from kit.naive.queries.windows import Batch, Raised, late_marks
from millpond.errors import OverflowedError
from millpond.model.aggregates import APPROX_DISTINCT, Aggregate
from millpond.model.expressions import Column, Expression, Foreign, columns_of, walk
from millpond.model.query import Query
from millpond.model.types import digits_of, is_decimal, is_float, is_integer
from millpond.model.windows import Calendar, Cumulating, Framed, Session

_Exact: TypeAlias = Callable[[Sequence[float] | None], float | None]
Floats: TypeAlias = Literal["exact", "native"]
"""How sums, averages and variances of doubles are computed: by correctly rounded `fsum`, or by DuckDB itself."""


def answer(
    query: Query, epochs: Sequence[Batch], *, drained: bool = False, floats: Floats = "exact"
) -> list[dict[str, Any]]:
    """All rows that `query` has emitted after `epochs`, computed by DuckDB.

    With `floats="native"` compare with a tolerance: DuckDB's sums of doubles depend on their order.

    Raises:
        Unsupported: DuckDB cannot mirror a part of the query.
        Raised: HAVING or an output expression raises.
        OverflowedError: an integer sum left its type.
    """
    script = _Script(query, floats)
    db = _connection(query, epochs)
    _check_sums(query, db, f"{script.grouped(drained)} SELECT * FROM sums")
    cursor = db.execute(f"{script.grouped(drained)} {script.results()}")
    names = [column[0] for column in cursor.description or ()]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    if any(row.pop("_raised") for row in rows):
        raise Raised(f"HAVING or an output expression of {query.name} raises")
    return rows


def counts(query: Query, epochs: Sequence[Batch]) -> dict[str, int]:
    """How many events were read, and how many met each fate, counted by DuckDB.

    Raises:
        Unsupported: DuckDB cannot mirror a part of the query.
    """
    script = _Script(query, "exact")
    judged = f"{script.judged()} SELECT _fate, count(*) FROM judged GROUP BY ALL"
    found = _connection(query, epochs).execute(judged).fetchall()
    result = {"applied": 0, "late": 0, "dead": 0, "filtered": 0, **dict(found)}
    return {"read": sum(result.values()), **result}


def mirrored(query: Query) -> tuple[Query, int]:
    """The query without the aggregates that DuckDB cannot compute, and their number.

    They are replaced by `count(*)`, so that positions stay; outputs that use them are left out.
    """
    lost = {f"agg:{i}" for i, wanted in enumerate(query.aggregates) if not _is_mirrored(wanted)}
    counted = Aggregate("count", None, None, "bigint")
    aggregates = [counted if f"agg:{i}" in lost else wanted for i, wanted in enumerate(query.aggregates)]
    having = None if query.having is None or columns_of(query.having) & lost else query.having
    output = [column for column in query.output if not columns_of(column.expression) & lost]
    kept = replace(query, aggregates=tuple(aggregates), output=tuple(output), having=having)
    return kept, len(lost)


def _is_mirrored(wanted: Aggregate) -> bool:
    if wanted.function == APPROX_DISTINCT or wanted.logged:  # other hashes, registers and rules for ties
        return False
    try:
        for expression in (*wanted.arguments, wanted.filter):
            if expression is not None:
                translate(expression)
    except Unsupported:
        return False
    return True


# --- the script --------------------------------------------------------------------------------------------


_NATIVE = ("count", "min", "max", "bit_and", "bit_or", "bit_xor")
"""Functions that DuckDB answers as Spark does."""


class _Script:
    """The SQL of one query, as a chain of common table expressions over the table `events`."""

    def __init__(self, query: Query, floats: Floats) -> None:
        self._query = query
        self._floats = floats
        self._keys = [translate(key) for key in query.keys]
        self._filters = [None if a.filter is None else translate(a.filter) for a in query.aggregates]
        self._arguments = [[translate(argument) for argument in a.arguments] for a in query.aggregates]

    def judged(self) -> str:
        """Each event with its fate."""
        where = Sql("TRUE") if self._query.where is None else translate(self._query.where)
        return f"""
            WITH judged AS (SELECT *, CASE
                WHEN {quoted(self._query.event_time)} IS NULL THEN 'dead'
                WHEN _late THEN 'late'
                WHEN {where.raised} THEN 'dead'
                WHEN ({where.value}) IS NOT TRUE THEN 'filtered'
                WHEN {self._rest_raises()} THEN 'dead'
                ELSE 'applied' END AS _fate FROM events)"""

    def _rest_raises(self) -> str:
        parts = [key.raised for key in self._keys]
        for chosen, arguments in zip(self._filters, self._arguments, strict=True):
            raised = either(*(argument.raised for argument in arguments)) if arguments else "FALSE"
            if chosen is not None:
                parts.append(chosen.raised)
                raised = f"(({chosen.value}) IS TRUE AND {raised})"
            parts.append(raised)
        return either(*parts)

    def grouped(self, drained: bool) -> str:
        """The aggregates of each closed window and key."""
        query, time = self._query, quoted(self._query.event_time)
        watermark = f"(SELECT max({time}) - {query.delay_us} FROM events)"
        closed = "" if drained else f"WHERE _end <= {watermark}"
        keys = [f"{_shown(key.value, e)} AS {quoted(f'key:{i}')}"
                for i, (key, e) in enumerate(zip(self._keys, query.keys, strict=True))]  # fmt: skip
        selected = ", ".join(["_start", "_end", *keys, *self._aggregates()])
        # A sum within the range of BIGINT, which is checked separately, is a BIGINT again.
        sums = [f"TRY_CAST({agg} AS {kind}) AS {agg}" for agg, kind in _bounded(query)]
        replaced = f"REPLACE ({', '.join(sums)})" if sums else ""
        return f"""{self.judged()},
            {self._placed(time)},
            sums AS (SELECT {selected} FROM placed {closed} GROUP BY ALL),
            grouped AS (SELECT * EXCLUDE (_start, _end) {replaced}, _start AS "window.start",
                _end AS "window.end", _end - 1 AS "window.time", {{'start': _start, 'end': _end}} AS "window"
                FROM sums)"""

    def _placed(self, time: str) -> str:
        """The table `placed`: events in each of their windows, [_start, _end)."""
        window = self._query.window
        if isinstance(window, Framed):
            raise Unsupported("a run of events")
        if isinstance(window, Session):
            own = window.own_end
            return self._in_sessions(time, f"{time} + {window.gap_us}" if own is None else translate(own).value)
        if isinstance(window, Calendar):
            raise Unsupported("a calendar")
        if isinstance(window, Cumulating):
            size, step, offset = window.size_us, window.step_us, window.offset_us
            return f"""
                started AS (SELECT *, {time} - ((({time} - {offset}) % {size}) + {size}) % {size} AS _start
                    FROM judged WHERE _fate = 'applied'),
                candidates AS (SELECT *, _start + unnest(range({step}, {size} + 1, {step})) AS _end FROM started),
                placed AS (SELECT * FROM candidates WHERE {time} < _end)"""
        size, slide, offset = window.size_us, window.slide_us, window.offset_us
        # A few candidates too many on both sides: DuckDB's integer division goes towards zero.
        first = f"({time} - {offset} - {size}) // {slide} - 2"
        last = f"({time} - {offset}) // {slide} + 3"
        return f"""
            candidates AS (SELECT *, {offset} + {slide} * unnest(range({first}, {last})) AS _start
                FROM judged WHERE _fate = 'applied'),
            placed AS (SELECT *, _start + {size} AS _end FROM candidates
                WHERE _start <= {time} AND {time} < _start + {size})"""

    def _in_sessions(self, time: str, end: str) -> str:
        """All events that are not late, together: none of them could join a session that was already closed."""
        pairs = zip(self._keys, self._query.keys, strict=True)
        keys = [f"{_shown(key.value, expression)} AS _k{i}" for i, (key, expression) in enumerate(pairs)]
        mine = ", ".join(["1", *(f"_k{i}" for i in range(len(keys)))])
        return f"""
            keyed AS (SELECT {", ".join(["*", *keys])} FROM judged WHERE _fate = 'applied'),
            parted AS (SELECT *, ({end}) AS _until, ({time} > max({end}) OVER (PARTITION BY {mine} ORDER BY {time}
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))::INT AS _new FROM keyed),
            numbered AS (SELECT *, sum(coalesce(_new, 1)) OVER (PARTITION BY {mine} ORDER BY {time}
                RANGE UNBOUNDED PRECEDING) AS _session FROM parted),
            placed AS (SELECT *, min({time}) OVER (PARTITION BY {mine}, _session) AS _start,
                max(_until) OVER (PARTITION BY {mine}, _session) AS _end FROM numbered)"""

    def _aggregates(self) -> Iterator[str]:
        parts = zip(self._query.aggregates, self._filters, self._arguments, strict=True)
        for i, (wanted, chosen, arguments) in enumerate(parts):
            condition = "TRUE" if chosen is None else f"({chosen.value}) IS TRUE"
            if not arguments:
                call = f"count(*) FILTER (WHERE {condition})"
            else:
                assert wanted.argument is not None
                first, *rest = (argument.value for argument in arguments)
                if rest:
                    call = self._of_pairs(wanted.function, first, rest[0], condition)
                else:
                    call = self._aggregate(wanted.function, wanted.argument.type, first, condition)
            yield f"{call} AS {quoted(f'agg:{i}')}"

    def _aggregate(self, function: str, kind: str, value: str, condition: str) -> str:
        tail = f"FILTER (WHERE {condition} AND ({value}) IS NOT NULL)"
        if is_decimal(kind) and function in ("sum", "avg"):
            precision, scale = digits_of(kind)
            return f"exact_decimal_{function}(list(({value})::VARCHAR) {tail}, {precision}, {scale})"
        if function in _NATIVE or (function == "sum" and is_integer(kind)):
            result = f"{function}({value}) {tail}"
            return f"{result} + 0.0" if is_float(kind) and function != "count" else result
        if function == "avg" and is_integer(kind):
            # Through text: DuckDB rounds some negative HUGEINTs to the wrong DOUBLE.
            return f"(sum({value}) {tail})::VARCHAR::DOUBLE / count({value}) {tail}"
        if self._floats == "native":
            return f"{function}(({value})::DOUBLE) {tail}"
        return f"CAST(exact_{function}(list(({value})::DOUBLE) {tail}) AS DOUBLE)"

    def _of_pairs(self, function: str, y: str, x: str, condition: str) -> str:
        tail = f"FILTER (WHERE {condition} AND ({y}) IS NOT NULL AND ({x}) IS NOT NULL)"
        if self._floats == "native":
            # DuckDB returns NaN for a division by a variance of zero
            return f"nullif({function}(({y})::DOUBLE, ({x})::DOUBLE) {tail}, 'NaN'::DOUBLE)"
        lists = f"list(({y})::DOUBLE) {tail}, list(({x})::DOUBLE) {tail}"
        return f"CAST(exact_{function}({lists}) AS DOUBLE)"

    def results(self) -> str:
        """The output columns of the rows that HAVING lets through, and `_raised`."""
        having = None if self._query.having is None else translate(self._query.having)
        columns = [translate(column.expression) for column in self._query.output]
        raised = either(*(column.raised for column in columns))
        if having is not None:
            raised = either(having.raised, f"(({having.value}) IS TRUE AND {raised})")
        selected = [f"({sql.value}) AS {quoted(c.name)}"
                    for sql, c in zip(columns, self._query.output, strict=True)]  # fmt: skip
        wanted = "" if having is None else f"WHERE ({having.value}) IS TRUE OR {having.raised}"
        return f"SELECT {', '.join(selected)}, ({raised}) AS _raised FROM grouped {wanted}"


def _shown(value: str, expression: Expression) -> str:
    return f"({value}) + 0.0::DOUBLE" if is_float(expression.type) else f"({value})"


def _bounded(query: Query) -> list[tuple[str, str]]:
    """Sums and averages of integers and decimals, which may overflow, with their types."""
    return [
        (quoted(f"agg:{i}"), wanted.type)
        for i, wanted in enumerate(query.aggregates)
        if wanted.function in ("sum", "avg") and (is_integer(wanted.type) or is_decimal(wanted.type))
    ]


def _check_sums(query: Query, db: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check sums for overflow of Spark's types; here integers are summed in HUGEINT and decimals as text."""
    for name, kind in _bounded(query):
        outside = f"{name} IS NOT NULL AND TRY_CAST({name} AS {kind}) IS NULL"
        if db.execute(f"SELECT 1 FROM ({sql}) WHERE {outside} LIMIT 1").fetchone():
            raise OverflowedError(f"A result is no {kind}.", "Cast its argument to double.")


# --- the table ---------------------------------------------------------------------------------------------

_ARROW = {
    "string": pa.string(), "boolean": pa.bool_(), "double": pa.float64(), "timestamp": pa.int64(),
    "tinyint": pa.int64(), "smallint": pa.int64(), "int": pa.int64(), "bigint": pa.int64(),
}  # fmt: skip


def _connection(query: Query, epochs: Sequence[Batch]) -> duckdb.DuckDBPyConnection:
    table = _table(query, epochs)
    return _database().register("events", table)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """The one database of this process: making its functions takes longer than a small query."""
    db = duckdb.connect()
    db.execute("SET threads = 1")
    db.execute("SET disabled_optimizers = 'expression_rewriter'")  # it rewrites -f < NaN to f > NaN
    for name, function in _EXACT.items():
        db.create_function(
            f"exact_{name}",
            _as_text(function),
            [duckdb.list_type(duckdb.sqltypes.DOUBLE)],
            duckdb.sqltypes.VARCHAR,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    for name, paired in EXACT_PAIRS.items():
        db.create_function(
            f"exact_{name}",
            paired,
            [duckdb.list_type(duckdb.sqltypes.DOUBLE)] * 2,
            duckdb.sqltypes.VARCHAR,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    for name, exact in (("sum", _decimal_sum), ("avg", _decimal_avg)):
        db.create_function(
            f"exact_decimal_{name}",
            exact,
            [duckdb.list_type(duckdb.sqltypes.VARCHAR), duckdb.sqltypes.INTEGER, duckdb.sqltypes.INTEGER],
            duckdb.sqltypes.VARCHAR,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    return db


def _table(query: Query, epochs: Sequence[Batch]) -> pa.Table:
    kinds = {query.event_time: "timestamp"}
    read = [e for e in (query.where, *query.keys) if e is not None]
    read += [e for a in query.aggregates for e in (*a.arguments, a.filter) if e is not None]
    for node in (node for expression in read for node in walk(expression)):
        if isinstance(node, Foreign):
            raise Unsupported(f"DuckDB does not know {node.sql}.")
        if isinstance(node, Column):
            kinds[node.name] = node.type
    if not all(kind in _ARROW or is_decimal(kind) for kind in kinds.values()):
        raise Unsupported(f"DuckDB's judge does not hold all of {sorted(set(kinds.values()))}.")
    rows = [row for batch in epochs for row in batch]
    held = {kind: pa.decimal128(*digits_of(kind)) if is_decimal(kind) else _ARROW[kind] for kind in kinds.values()}
    columns = {name: pa.array([row[name] for row in rows], held[kind]) for name, kind in kinds.items()}
    return pa.table({**columns, "_late": pa.array(late_marks(query, epochs), pa.bool_())})


# --- exact aggregates of doubles, written independently of the twin ----------------------------------------


def _as_text(function: _Exact) -> Callable[[Sequence[float] | None], str | None]:
    # DuckDB takes a NaN returned by Python for NULL; text keeps both apart, and `repr` keeps every bit.
    def textual(values: Sequence[float] | None) -> str | None:
        result = function(values)
        return None if result is None else repr(result)

    return textual


def _decimal_sum(texts: Sequence[str] | None, _precision: int, _scale: int) -> str | None:
    if texts is None:
        return None
    with localcontext(Context(prec=200)):
        return format(sum(map(Decimal, texts), Decimal()), "f")


def _decimal_avg(texts: Sequence[str] | None, precision: int, scale: int) -> str | None:
    """The average, rounded half up to four more decimals; for at most 11 digits computed in doubles, as Spark does."""
    total = _decimal_sum(texts, precision, scale)
    if total is None or texts is None:
        return None
    with localcontext(Context(prec=200)):
        if abs(Decimal(total)) >= Decimal(10) ** (min(38, precision + 10) - scale):
            return "overflow"
        mean = Decimal(total) / len(texts)
        if precision <= 11:
            mean = Decimal(repr(float(Decimal(total).scaleb(scale)) / len(texts) / 10**scale))
        return format(mean.quantize(Decimal(1).scaleb(-min(38, scale + 4)), ROUND_HALF_UP), "f")


def _nonfinite(values: Sequence[float]) -> float | None:
    special = {value for value in values if not math.isfinite(value)}
    if not special:
        return None
    return special.pop() if len(special) == 1 else math.nan


def _ieee(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _exact_sum(values: Sequence[float] | None) -> float | None:
    if values is None:
        return None
    special = _nonfinite(values)
    if special is not None:
        return special
    try:
        return math.fsum(values)
    except OverflowError:  # of an intermediate or of the final value
        return _ieee(sum(map(Fraction, values), Fraction()))


def _exact_avg(values: Sequence[float] | None) -> float | None:
    total = _exact_sum(values)
    return None if total is None or values is None else total / len(values)


def _exact_sxx(values: Sequence[float] | None) -> float | None:
    if values is None or _nonfinite(values) is not None:
        return None if values is None else math.nan
    exact, n = [Fraction(value) for value in values], len(values)
    return _ieee(n * sum(x * x for x in exact) - Fraction(sum(exact)) ** 2) / n


def _spread(values: Sequence[float] | None, missing: int) -> float | None:
    """The variance of `values`, divided by their number minus `missing`: n·Σx² - (Σx)² exactly, rounded, divided."""
    if values is None or len(values) <= missing:
        return None
    if _nonfinite(values) is not None:
        return math.nan
    exact, n = [Fraction(value) for value in values], len(values)
    return _ieee(n * sum(x * x for x in exact) - Fraction(sum(exact)) ** 2) / (n * (n - missing))


def _root(variance: float | None) -> float | None:
    return None if variance is None else math.sqrt(variance)


_EXACT: dict[str, _Exact] = {
    "sum": _exact_sum,
    "avg": _exact_avg,
    "var_samp": lambda values: _spread(values, 1),
    "var_pop": lambda values: _spread(values, 0),
    "stddev_samp": lambda values: _root(_spread(values, 1)),
    "stddev_pop": lambda values: _root(_spread(values, 0)),
    "regr_sxx": _exact_sxx,
    "skewness": lambda values: shape("skewness", values),
    "kurtosis": lambda values: shape("kurtosis", values),
}
