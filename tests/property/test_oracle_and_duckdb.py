"""Two judges that share no code but the lateness rule must agree: the naive twin and DuckDB."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from kit.inputs.cases import BIGINTS, DOUBLES, EXTREMES, OF_OTHER_TESTS, TEXTS, Case, Menu, decimals, random_case
from kit.inputs.examples import examples
from kit.inputs.strategies import cases_of
from kit.judges import duckdb_judge
from kit.judges.duckdb_expressions import Unsupported, translate
from kit.naive.expressions import Raised, evaluate
from kit.naive.queries import windows
from millpond.errors import OverflowedError
from millpond.kernels.columns import arrow_type
from millpond.model.aggregates import LOGGED, Aggregate
from millpond.model.expressions import Call, Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.types import is_decimal
from millpond.model.windows import Sliding
from millpond.plan.groups.aggregate_functions import FUNCTIONS, PAIRED
from millpond.testing.compare import Tolerance, assert_same_rows

PROPERTY = settings(suppress_health_check=list(HealthCheck))


def outcome(judge: Callable[..., list[dict[str, Any]]], query: Query, case: Case, drained: bool) -> Any:
    try:
        return judge(query, case.epochs, drained=drained)
    except (Raised, OverflowedError) as error:
        return type(error).__name__


def judge_case(case: Case) -> Counter[str]:
    """Compare the judges on every query of the case; returns how much was compared, and what was skipped."""
    seen: Counter[str] = Counter()
    for whole in case.queries:
        query, lost = duckdb_judge.mirrored(whole)
        seen["aggregates skipped"] += lost
        try:
            found = [outcome(duckdb_judge.answer, query, case, drained) for drained in (False, True)]
            assert duckdb_judge.counts(query, case.epochs) == windows.counts(query, case.epochs)
        except Unsupported:
            seen["queries skipped"] += 1
            continue
        for drained, rows in zip((False, True), found, strict=True):
            expected = outcome(windows.answer, query, case, drained)
            if isinstance(expected, str) or isinstance(rows, str):
                assert rows == expected, query
                seen["raised"] += 1
            else:
                assert_same_rows(expected, rows, about=str(query))
                seen["rows"] += len(rows)
        seen["compared"] += 1
    return seen


@settings(PROPERTY, max_examples=examples(12))
@given(case=cases_of(max_queries=3))
def test_the_judges_agree_to_the_last_bit_on_small_nasty_streams(case: Case) -> None:
    judge_case(case)


def test_the_judges_agree_on_seeded_cases_and_few_queries_are_skipped() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += judge_case(random_case(seed, 60, 3, menu=Menu(events=False)))
    assert seen["compared"] + seen["queries skipped"] == 36
    assert seen["queries skipped"] < 8, seen
    assert seen["aggregates skipped"] < 18, seen
    assert seen["rows"] > 1200, seen


def test_the_judges_agree_on_a_larger_case() -> None:
    assert judge_case(random_case(8, 3000, 4))["rows"] > 1000


def test_duckdb_s_own_sums_and_deviations_are_near_the_exact_ones() -> None:
    price = Column("amount", "double")
    functions = ("sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop")
    aggregates = tuple(Aggregate(function, price, None, "double") for function in functions)
    functions += PAIRED
    whole = Call("cast", (Column("g", "bigint"),), "double")
    few = call("lt", (Column("g", "bigint"), literal(6, "bigint")), "boolean")
    some = call("and", (few, call("ge", (Column("g", "bigint"), literal(0, "bigint")), "boolean")), "boolean")
    aggregates += tuple(Aggregate(function, price, some, "double", whole) for function in PAIRED)
    query = Query(
        name="q", stream="events", event_time="ts", delay_us=0, window=Sliding(60_000_000, 20_000_000),
        keys=(Column("k", "string"),), aggregates=aggregates,
        output=(
            Named("start", Column("window.start", "timestamp")),
            Named("k", Column("key:0", "string")),
            *(Named(function, Column(f"agg:{i}", "double")) for i, function in enumerate(functions)),
        ),
    )  # fmt: skip
    case = random_case(3, 2000, 0)
    rows = windows.answer(query, case.epochs, drained=True)
    native = duckdb_judge.answer(query, case.epochs, drained=True, floats="native")
    near = Tolerance(relative=1e-9, absolute=1e-6)
    assert_same_rows(rows, native, tolerances=dict.fromkeys(functions, near))


_BOOLEAN, _DOUBLE, _INTEGER = "boolean", "double", "bigint"
_CASES = [
    *((op, _DOUBLE, _BOOLEAN) for op in ("eq", "lt", "le", "gt", "ge", "same", "in")),
    *((op, _DOUBLE, _DOUBLE) for op in ("add", "subtract", "multiply", "divide", "remainder", "pow")),
    *((op, _DOUBLE, _DOUBLE) for op in ("least", "greatest", "coalesce")),
    *((op, _INTEGER, _INTEGER) for op in ("add", "subtract", "multiply", "remainder", "least", "greatest")),
    *((op, _INTEGER, "int") for op in ("add", "subtract", "multiply")),
    *((op, _INTEGER, _BOOLEAN) for op in ("eq", "lt", "same", "in")),
    *((op, "string", _BOOLEAN) for op in ("eq", "lt", "ge", "same", "startswith", "endswith", "contains")),
    *((op, _BOOLEAN, _BOOLEAN) for op in ("and", "or", "eq", "lt", "same", "in")),
    ("concat", "string", "string"),
    *((op, kind, _BOOLEAN) for op in ("eq", "lt", "same", "in") for kind in ("decimal(10,2)", "decimal(38,6)")),
    *((op, kind, kind) for op in ("least", "greatest", "coalesce") for kind in ("decimal(10,2)", "decimal(38,6)")),
    *((op, "decimal(10,2)", "decimal(11,2)") for op in ("add", "subtract")),
    ("multiply", "decimal(10,2)", "decimal(21,4)"),
]
_ONE = [
    *((op, _DOUBLE, _DOUBLE) for op in ("negate", "abs", "sqrt", "exp", "ln", "log10")),
    *((op, _DOUBLE, _INTEGER) for op in ("floor", "ceil")),
    *((op, _INTEGER, _INTEGER) for op in ("negate", "abs")),
    *(("cast", _DOUBLE, kind) for kind in ("tinyint", "smallint", "int", "bigint", _BOOLEAN)),
    *(("cast", _INTEGER, kind) for kind in ("tinyint", "int", _DOUBLE, _BOOLEAN, "string")),
    *(("cast", _BOOLEAN, kind) for kind in ("int", _DOUBLE, "string")),
    *(("cast", "timestamp", kind) for kind in ("int", _INTEGER, _DOUBLE)),
    *((op, kind, kind) for op in ("negate", "abs") for kind in ("decimal(10,2)", "decimal(38,6)")),
    *(("cast", "decimal(38,6)", kind) for kind in (_DOUBLE, "decimal(10,2)", "decimal(38,20)", "decimal(20,0)")),
    *(("cast", _INTEGER, kind) for kind in ("decimal(10,2)", "decimal(38,6)")),
    ("isnan", _DOUBLE, _BOOLEAN), ("isnull", _DOUBLE, _BOOLEAN), ("isnotnull", "string", _BOOLEAN),
    ("not", _BOOLEAN, _BOOLEAN), ("length", "string", "int"),
]  # fmt: skip
_POOLS: dict[str, tuple[Any, ...]] = {
    _DOUBLE: (*DOUBLES, -9.3e18, 2147483647.5, 2147483648.0, -2147483648.9, 127.9, 128.0, -128.9, 3.0, None),
    _INTEGER: (*BIGINTS, 127, 128, -128, -129, 2**31 - 1, -(2**31), -(2**31) - 1, None),
    "timestamp": (*BIGINTS, -1, 1_500_000, -1_500_000, None),
    "string": (*sorted(set(TEXTS)), None),
    _BOOLEAN: (True, False, None),
    **{kind: (*decimals(kind), *decimals(kind, EXTREMES), None) for kind in ("decimal(10,2)", "decimal(38,6)")},
}
_NEARLY = Tolerance(relative=1e-14)
"""Powers and logarithms differ in the last bits from library to library, Java's included."""


@pytest.mark.parametrize(("arity", "op", "source", "kind"), [
    *((2, *case) for case in _CASES), *((1, *case) for case in _ONE),
])  # fmt: skip
def test_each_operator_agrees_on_every_pair_of_nasty_values(arity: int, op: str, source: str, kind: str) -> None:
    raising = Call("divide", (literal(1.0, "double"), literal(0.0, "double")), "double")
    plain = Call(op, tuple(Column(name, source) for name in "ab"[:arity]), kind)
    guarded = Call("case", (Call("same", (plain, plain), "boolean"), plain, literal(None, kind)), kind)
    broken = Call(op, (*plain.args[:-1], Call("cast", (raising,), source)), kind)
    rows = [dict(zip("ab", pair, strict=False)) for pair in itertools.product(_POOLS[source], repeat=arity)]
    held = arrow_type(source) if source in ("double", "string", "boolean") or is_decimal(source) else pa.int64()
    table = pa.table({name: pa.array([row[name] for row in rows], held) for name in "ab"[:arity]})
    expressions = [plain, guarded]
    if arity == 2 and source in ("double", "bigint"):
        expressions.append(broken)
    for expression in expressions:
        sql = translate(expression)
        with duckdb.connect() as db:
            db.register("pairs", table)
            found = db.execute(f"SELECT {sql.value}, {sql.raised} FROM pairs").fetchall()
        for row, (value, raised) in zip(rows, found, strict=True):
            try:
                expected = evaluate(expression, row)
            except Raised:
                assert raised is True, row
                continue
            assert raised is False, row
            tolerance = _NEARLY if op in ("pow", "exp", "ln", "log10") else Tolerance()
            assert tolerance.allows(expected, value), (row, expected, value)


def test_an_output_that_raises_raises_in_both() -> None:
    inverse = Call("divide", (literal(1.0, "double"), Column("agg:0", "double")), "double")
    query = Query(
        name="q", stream="events", event_time="ts", delay_us=0, window=Sliding(10, 10), keys=(),
        aggregates=(Aggregate("sum", Column("amount", "double"), None, "double"),),
        output=(Named("x", inverse),),
    )  # fmt: skip
    for judge in (windows.answer, duckdb_judge.answer):
        assert judge(query, [[{"ts": 1, "amount": 4.0}]], drained=True) == [{"x": 0.25}]
        with pytest.raises(Raised):
            judge(query, [[{"ts": 1, "amount": 0.0}]], drained=True)


def test_the_random_cases_reach_what_they_are_for() -> None:
    fates: Counter[str] = Counter()
    functions: set[str] = set()
    for seed in range(60):
        case = random_case(seed, 60, 4)
        assert len(case.queries) == 4
        assert sum(map(len, case.epochs)) == 60
        assert [] in case.epochs
        functions |= {aggregate.function for query in case.queries for aggregate in query.aggregates}
        for query in case.queries:
            fates.update(windows.counts(query, case.epochs))
    assert min(fates.values()) > 200
    assert functions == {*FUNCTIONS, *LOGGED} - {*OF_OTHER_TESTS}
    assert random_case(5, 50, 3) == random_case(5, 50, 3) or _has_nan(random_case(5, 50, 3))


def _has_nan(case: Case) -> bool:
    return any(
        isinstance(value, float) and math.isnan(value)
        for batch in case.epochs for row in batch for value in row.values()
    )  # fmt: skip


def test_a_menu_excludes_what_it_does_not_name() -> None:
    menu = Menu(summed=("v",), raising=False, variance=False, events=False)
    for seed in range(40):
        case = random_case(seed, 40, 4, menu=menu)
        for query in case.queries:
            summed = {a.function for a in query.aggregates} & {"var_samp", "stddev_pop"}
            assert not summed
            dead = sum(row["ts"] is None for batch in case.epochs for row in batch)
            assert windows.counts(query, case.epochs)["dead"] <= dead


def test_duckdb_is_kept_from_turning_a_comparison_with_nan_around() -> None:
    # Its expression rewriter makes `f > NaN` of `-f < NaN`.
    negative = Call("negate", (Column("f", "double"),), "double")
    below = Call("lt", (negative, literal(math.nan, "double")), "boolean")
    query = Query(
        name="q", stream="events", event_time="ts", delay_us=0, window=Sliding(10, 10), keys=(),
        where=below, aggregates=(Aggregate("count", None, None, "bigint"),),
        output=(Named("n", Column("agg:0", "bigint")),),
    )  # fmt: skip
    for judge in (windows.answer, duckdb_judge.answer):
        assert judge(query, [[{"ts": 1, "f": 1.0}, {"ts": 2, "f": math.nan}]], drained=True) == [{"n": 1}]
