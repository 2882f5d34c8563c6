"""Texts that make large values from small ones: refused for constants, limited at run time for events."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.costs.counted_calls import CountedCalls
from kit.judges.interpreted import interpreted_rows
from millpond import Pond
from millpond.errors import QueryRefused
from millpond.spark.catalyst import user_scalars
from millpond.spark.catalyst.private_names import analysed, items
from millpond.spark.catalyst.value_bounds import VALUE_BYTES, Limiter, Size, accepted
from millpond.spark.frontend.frontend import FrontEnd

EVENTS = "CREATE TABLE ev (k STRING, n BIGINT, a ARRAY<STRING>, ts TIMESTAMP) USING json OPTIONS (path '{}');"
MANY = "array(" + ",".join(map(str, range(32))) + ")"
FEW = "array(" + ",".join(map(str, range(16))) + ")"
LONG = ", ".join(["a"] * 4000)

CONSTANT = {
    "aggregate": f"length(aggregate({MANY}, 'xxxxxxxx', (a, e) -> concat(a, a)))",
    "reduce of arrays": f"size(reduce({MANY}, array('x'), (a, e) -> concat(a, a)))",
    "within a struct": f"aggregate({MANY}, struct('x' AS s), (a, e) -> struct(concat(a.s, a.s) AS s)).s",
    "replace": "length(replace(replace('{}', 'a', '{}'), 'b', '{}'))".format("a" * 60, "b" * 3000, "c" * 3000),
    "regexp_replace": "regexp_replace(regexp_replace('{}', 'a', '{}'), 'b', '{}')".format(
        "a" * 60, "b" * 3000, "c" * 3000
    ),
    "pattern of groups": f"regexp_replace('{'a' * 5000}', '(.*)', '{'$1' * 400}')",
    "nested lambdas": f"size(transform({MANY}, a -> transform({MANY}, b -> transform({MANY}, c -> transform({MANY},"
    f" d -> transform({MANY}, e -> a + n))))))",
}

OF_EVENTS = {
    "doubled": "length(aggregate(split(k, ''), 'x', (a, e) -> concat(a, a)))",
    "doubled_arrays": "size(aggregate(split(k, ''), array('x'), (a, e) -> concat(a, a)))",
    "replaced": "length(replace(k, 'a', k))",
    "by_pattern": "length(regexp_replace(k, 'a', k))",
    "repeated": "size(transform(split(k, ''), e -> concat(e, k)))",
    "plain": "length(concat(k, upper(k), replace(k, 'a', 'bb')))",
}


def chain(step: str, deep: int) -> str:
    """A WITH in which each step names the one before twice."""
    steps = ", ".join(f"s{i} AS (SELECT {step} FROM s{i - 1})" for i in range(1, deep + 1))
    return f"WITH s0 AS (SELECT k AS x, n AS y FROM STREAM ev), {steps} SELECT x FROM s{deep}"


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    front = FrontEnd(spark.newSession())
    front.load_file(EVENTS.format(tmp_path_factory.mktemp("limits")))
    return front


@pytest.mark.parametrize("expression", CONSTANT.values(), ids=CONSTANT)
def test_constants_that_make_much_are_refused_with_numbers(front: FrontEnd, expression: str) -> None:
    with pytest.raises(QueryRefused, match=r"makes up to [\d,]+ bytes of constants; 1,048,576 are|takes more than 20,"):
        front.query_from_sql("much", f"SELECT {expression} AS x, n FROM STREAM ev")


def nested(deep: int, start: str, step: str, array: str = MANY) -> str:
    """`aggregate` in the lambda of `aggregate`, so that each level multiplies the rounds of the ones in it."""
    for level in range(deep):
        start = f"aggregate({array}, {start}, (a{level}, e{level}) -> {step.format(a=f'a{level}', more=start)})"
    return start


@pytest.mark.parametrize(
    "text",
    [
        f"length({nested(6, 'k', 'concat({a}, {more})', FEW)})",
        nested(6, "0", "{a} + {more}", FEW),
        f"length(aggregate({FEW}, k, (a9, e9) -> {nested(3, 'a9', 'concat({a}, {more})', FEW)}))",
    ],
    ids=["texts", "numbers", "of an outer value"],
)
def test_the_visits_of_aggregates_within_each_other_do_not_multiply(
    front: FrontEnd, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = CountedCalls(monkeypatch, Limiter, "_visit")
    try:
        front.query_from_sql("deep", f"SELECT n, {text} AS x FROM STREAM ev")
    except QueryRefused as refused:
        assert "takes more than" in str(refused)
    else:
        assert "a9" in text
    assert visits.count < 20_000, "each level visits its body once per round of its own"


@settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bounds_that_are_computed_once_are_those_computed_each_time(
    spark: SparkSession, front: FrontEnd, data: st.DataObject
) -> None:
    values, text = ["k", "'x'"], "{}"
    for level in range(data.draw(st.integers(1, 3))):
        array = data.draw(st.sampled_from(["array(1, 2, 3)", "split(k, '')"][: 1 if level else 2]))  # 3 or 64 rounds
        start = data.draw(st.sampled_from(values))
        values.append(f"a{level}")
        step = f"concat(a{level}, {data.draw(st.sampled_from(values))}, {{}})"
        text = text.format(f"aggregate({array}, {start}, (a{level}, e{level}) -> {step})")
    text = text.format(data.draw(st.sampled_from(values)))
    [column] = items(analysed(spark.sql(f"SELECT {text} AS x FROM VALUES ('') AS t(k)")).projectList())

    def bound() -> tuple[Size, str]:
        found = Limiter(front._catalyst, refuses=False)._visit(column, {}, 1.0)
        return found.size, re.sub(r"#\d+", "", found.node.toString())  # without ids, which are new each time

    once = bound()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Limiter, "_computed_once", Limiter._higher)
        assert bound() == once


def test_a_nest_of_aggregates_that_was_accepted_before_is_checked(front: FrontEnd) -> None:
    with accepted():
        text = nested(4, "k", "concat({a}, {more})")
        front.query_from_sql("old_nest", f"SELECT n, length({text}) AS x FROM STREAM ev")
    assert any("too large" in str(one.expression.toString()) for one in front.foreigns.values())


def test_rows_of_constants_are_refused(front: FrontEnd) -> None:
    views = " ".join(f"LATERAL VIEW explode(split('{LONG}', ', ')) t{i} AS e{i}" for i in (1, 2))
    with pytest.raises(QueryRefused, match=r"makes up to 9,006,001 rows of each event"):
        front.query_from_sql("rows", f"SELECT n FROM STREAM ev {views}".replace(LONG, LONG[:9000]))


def test_what_grows_with_each_name_is_refused_and_not_put_in(front: FrontEnd) -> None:
    for text, shown in (
        (chain("concat(x, x) AS x, y", 25), r"134,217,\d+ parts when computed columns are inlined"),
        (chain("x, y + y AS y", 40).replace("SELECT x FROM s40", "SELECT y FROM s40"), r"\d+ parts"),
        (
            "SELECT k AS x0, " + ", ".join(f"concat(x{i}, x{i}) AS x{i + 1}" for i in range(25)) + " FROM STREAM ev",
            r"x25 alone 134,217,726 of them",
        ),
        ("FROM STREAM ev |> SELECT k AS x " + "|> SELECT concat(x, x) AS x " * 25, r"x alone 67,108,\d+|\d+ parts"),
        (chain("x, y", 0).replace("SELECT x FROM s0", "SELECT x FROM s0"), ""),
        (
            "WITH s0 AS (SELECT k FROM STREAM ev), "
            + ", ".join(f"s{i} AS (SELECT k FROM s{i - 1} UNION ALL SELECT k FROM s{i - 1})" for i in range(1, 61))
            + " SELECT k FROM s60",
            r"more than 10\^15 relations and steps",
        ),
        (chain("concat(x, x) AS x, y", 9), r"puts together 512 texts of an event"),
    ):
        text = text.replace("FROM STREAM ev),  SELECT", "FROM STREAM ev) SELECT")
        if not shown:
            assert front.query_from_sql("fine", text).name == "fine"
            continue
        with pytest.raises(QueryRefused, match=shown):
            front.query_from_sql("chain", text)
    assert front.query_from_sql("short", chain("concat(x, x) AS x, y", 7)).name == "short"


def test_views_that_name_views_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    front = FrontEnd(spark.newSession())
    front.load_file(EVENTS.format(tmp_path))
    front.view("u0", "SELECT k FROM STREAM ev")
    with pytest.raises(QueryRefused, match="relations and steps"):
        for i in range(1, 30):
            front.view(f"u{i}", f"SELECT k FROM u{i - 1} UNION ALL SELECT k FROM u{i - 1}")


def test_values_that_an_event_makes_too_large_are_dead_and_others_are_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    small, large = "banana", "a" * 40_000
    lines = [{"k": k, "n": n, "a": [k, "x"], "ts": "2023-11-14T22:13:20Z"} for n, k in enumerate([small, large, None])]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source))
        for name, expression in OF_EVENTS.items():
            pond.add(name, f"SELECT n, {expression} AS x FROM STREAM ev")
        pond.run()
        found = {name: {row["n"]: row["x"] for row in pond.table(name).to_pylist()} for name in OF_EVENTS}
        dead = {name: counts.whole.dead for name, counts in pond.counts().items()}
    for name, expression in OF_EVENTS.items():
        [(value,)] = spark.sql(f"SELECT {expression} FROM VALUES ('{small}') AS t(k)").collect()
        assert found[name][0] == value, name
        assert (1 in found[name], dead[name]) == ((True, 0) if name == "plain" else (False, 1)), name
    assert found["plain"][1] == 4 * len(large) and found["replaced"][2] is None
    assert len(large) ** 2 > VALUE_BYTES


def test_a_text_that_was_accepted_before_is_held_at_the_limit_where_it_is_evaluated(front: FrontEnd) -> None:
    with accepted():
        text = f"SELECT n, {CONSTANT['aggregate']} AS x FROM STREAM ev"
        front.query_from_sql("old", text)
    assert any("too large" in str(one.expression.toString()) for one in front.foreigns.values())


ROWS_OF_EVENTS = {
    "nested": "SELECT n, e FROM STREAM ev LATERAL VIEW explode(a) t AS one LATERAL VIEW explode(split(one, '')) u AS e",
    "crossed": "SELECT n, e FROM STREAM ev LATERAL VIEW explode(a) t AS d LATERAL VIEW explode(a) u AS e",
    "outer": "SELECT n, e FROM STREAM ev LATERAL VIEW OUTER explode(a) t AS d LATERAL VIEW OUTER explode(a) u AS e",
    "mixed": "SELECT n, e FROM STREAM ev LATERAL VIEW explode(a) t AS d LATERAL VIEW OUTER posexplode(a) u AS p, e",
    "united": "SELECT n, e FROM (SELECT n, e FROM STREAM ev LATERAL VIEW explode(a) t AS d LATERAL VIEW explode(a) u"
    " AS e UNION ALL SELECT n, k AS e FROM STREAM ev)",
    "once": "SELECT n, e FROM STREAM ev LATERAL VIEW explode(a) t AS e",
}


def test_an_event_that_generators_make_too_many_rows_of_is_dead(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    many = ["xy" * 200] * 400
    lines = [{"k": "k", "n": 0, "a": ["ab", "c"]}, {"k": "k", "n": 1, "a": many}, {"k": "k", "n": 2, "a": []}]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source))
        for name, text in ROWS_OF_EVENTS.items():
            pond.add(name, text)
        pond.run()
        found = {name: pond.table(name).to_pylist() for name in ROWS_OF_EVENTS}
        dead = {name: counts.whole.dead for name, counts in pond.counts().items()}
    for name, text in ROWS_OF_EVENTS.items():
        if name != "once":
            every = spark.read.schema("k STRING, n BIGINT, a ARRAY<STRING>").json(str(source))
            every.where("n <> 1").createOrReplaceTempView("ev")
            expected = interpreted_rows(spark.sql(text.replace("STREAM ", "")))
            kept = [row for row in found[name] if row["n"] != 1]
            assert sorted(map(str, kept)) == sorted(str(row.asDict()) for row in expected), name
    assert {name: sum(row["n"] == 1 for row in rows) for name, rows in found.items()} == {
        "nested": 0, "crossed": 0, "outer": 0, "mixed": 0, "united": 1, "once": 400,
    }  # fmt: skip
    assert {name: count > 0 for name, count in dead.items()} == {name: name != "once" for name in ROWS_OF_EVENTS}


def test_patterns_of_exponential_time_are_refused_with_the_part_that_makes_them_so(front: FrontEnd) -> None:
    for call in (
        "k RLIKE '^(a+)+$'", "regexp_like(k, '(a|a)*b')", "regexp_replace(k, '(x+x+)+y', '')", "split(k, '(b|b)*,')[0]",
        "regexp_extract(k, concat('(a', '+)+b'), 1)",
    ):  # fmt: skip
        with pytest.raises(QueryRefused, match=r"take 2\^n steps .* `\([abx|+]+\)[+*]` can match") as refused:
            front.query_from_sql("slow", f"SELECT n, {call} AS x FROM STREAM ev")
        assert "possessive" in refused.value.cure
    with pytest.raises(QueryRefused, match=r"2\^n"):
        front.query_from_sql("slow", "SELECT n FROM STREAM ev WHERE k RLIKE '^(a+)+$'")
    assert front.query_from_sql("linear", "SELECT n FROM STREAM ev WHERE k RLIKE '^(a+b)+$'").name == "linear"


def test_patterns_of_a_constant_text_that_take_very_many_steps_are_refused(front: FrontEnd) -> None:
    text, like = f"'{'x' * 40}y'", f"'{'%x' * 20}z'"
    for call in (
        f"t LIKE {like}", f"t ILIKE {like}", f"t NOT LIKE ALL ('a', {like})", f"split(t, '{'.*x' * 9}z')[0]",
        f"concat('a', CAST(t LIKE ANY ({like}, 'a') AS STRING))", f"concat(lower('A'), t) LIKE {like}",
    ):  # fmt: skip
        with pytest.raises(QueryRefused, match=r"may take n\^\d+ steps .* which is a constant"):
            front.query_from_sql("slow", f"SELECT n, {call} AS x FROM (SELECT n, {text} AS t FROM STREAM ev)")
    text = "'ab' LIKE '%a%' AND 'abc' RLIKE 'a.*b.*c.*' AND k LIKE '%a%b%c%d%'"
    assert front.query_from_sql("fast", f"SELECT n FROM STREAM ev WHERE {text}").name == "fast"


def test_a_text_too_long_for_a_recursive_pattern_is_dead(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = [{"k": k, "n": n, "a": ["(a|b)*c"]} for n, k in enumerate(["abac", "ab" * 4_000, "ab" * 500_000 + "c"])]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    expressions = {
        "constant": "k RLIKE '(a|b)*c'",
        "nested": "k RLIKE '((a|b)(d|e)?)*c'",
        "column": "k RLIKE a[0]",
        "replaced": "length(regexp_replace(k, '(?:a|b){2,}+', '')) = 1",
        "plain": "k RLIKE 'a.*c'",
    }
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source))
        for name, expression in expressions.items():
            pond.add(name, f"SELECT n, {expression} AS x FROM STREAM ev")
        pond.run()
        found = {name: {row["n"]: row["x"] for row in pond.table(name).to_pylist()} for name in expressions}
        dead = {name: counts.whole.dead for name, counts in pond.counts().items()}
    short, every = {0: True, 1: False}, {0: True, 1: False, 2: True}
    assert found == {"constant": short, "nested": short, "column": short, "replaced": every, "plain": every}
    assert dead == {"constant": 1, "nested": 1, "column": 1, "replaced": 0, "plain": 0}


def test_a_function_that_hangs_makes_its_events_dead_and_other_queries_continue(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_scalars, "CALL_SECONDS", 1.0)
    source = tmp_path / "in"
    source.mkdir()
    for file, first, end in ((1, 0, 200), (2, 200, 210), (3, 210, 220)):
        path = source / f"{file}.json"
        path.write_text("\n".join(json.dumps({"k": "abc", "n": n}) for n in range(first, end)))
        os.utime(path, (1_700_000_000 + file,) * 2)

    def spin(n: int) -> int:
        while n % 2:
            pass
        return n + 1

    hangs = F.udf(lambda n: spin(n), "bigint")  # hints of types, as text, are not for Spark
    rows = spark.readStream.schema("k STRING, n BIGINT").option("maxFilesPerTrigger", 1).json(str(source))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.add("hanging", rows.select("n", hangs("n").alias("x")))
        pond.add("plain", rows.select("n", F.reverse("k").alias("x")))
        pond.run()
        found = {name: pond.table(name).to_pylist() for name in ("hanging", "plain")}
        counts = {name: counts.whole for name, counts in pond.counts().items()}
        quarantined, lost = pond.problems()
    assert found["plain"] == [{"n": n, "x": "cba"} for n in range(220)]
    assert found["hanging"] == [{"n": n, "x": n + 1} for n in range(0, 6, 2)]
    assert (counts["hanging"].dead, counts["plain"].dead) == (197, 0), "it was called after its quarantine"
    assert lost.failure and "Query hanging did not count 197 of the 200 events it read" in lost.text
    assert quarantined.failure and str(quarantined) == (
        "[MP-FUNCTION] Query hanging is quarantined and emits no more rows: The function <lambda> did not answer "
        "within 1 s, 3 times. Mend it, drop the query, and add it again."
    )
