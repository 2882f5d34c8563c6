"""Texts that make much of little: refused where constants do it, held at a limit where an event does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import QueryRefused
from millpond.spark.catalyst.value_bounds import VALUE_BYTES, accepted
from millpond.spark.frontend.frontend import FrontEnd

EVENTS = "CREATE TABLE ev (k STRING, n BIGINT, a ARRAY<STRING>, ts TIMESTAMP) USING json OPTIONS (path '{}');"
MANY = "array(" + ",".join(map(str, range(32))) + ")"
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


def test_rows_of_constants_are_refused(front: FrontEnd) -> None:
    views = " ".join(f"LATERAL VIEW explode(split('{LONG}', ', ')) t{i} AS e{i}" for i in (1, 2))
    with pytest.raises(QueryRefused, match=r"makes up to 9,006,001 rows of each event"):
        front.query_from_sql("rows", f"SELECT n FROM STREAM ev {views}".replace(LONG, LONG[:9000]))


def test_what_grows_with_each_name_is_refused_and_not_put_in(front: FrontEnd) -> None:
    for text, shown in (
        (chain("concat(x, x) AS x, y", 25), r"134,217,\d+ parts when each column stands for what defines it"),
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
