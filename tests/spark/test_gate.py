"""The gate: no text may read files, settings or methods, and ordinary queries pass."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from millpond.errors import MillpondError, QueryRefused, QuerySyntaxError, QueryTypeError
from millpond.spark.catalyst import Catalyst
from millpond.spark.gate import gate, judge, parse

RELATIONS = ("tx", "other")
W = "window(ts, '1 hour')"

GOOD = [
    f"SELECT count(*) FROM tx GROUP BY {W}",
    f"SELECT customer, {W} AS w, sum(amount) FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL",
    f"SELECT customer, sum(amount) FROM tx WHERE kind = 'pos' AND amount > 10 GROUP BY customer, {W}",
    f"SELECT customer, count(*) n FROM tx GROUP BY 1, {W} HAVING count(*) > 3",
    f"SELECT t.customer, avg(t.amount) FROM tx AS t GROUP BY t.customer, {W}",
    f"WITH p AS (SELECT * FROM tx WHERE kind = 'pos') SELECT count(*) FROM p GROUP BY {W}",
    f"WITH tx AS (SELECT * FROM tx WHERE kind = 'pos') SELECT count(*) FROM tx GROUP BY {W}",
    f"SELECT count(*) FROM (SELECT *, amount * 2 AS a2 FROM tx) WHERE a2 > 3 GROUP BY {W}",
    f"SELECT sum(CASE WHEN kind = 'pos' THEN amount ELSE 0 END) FROM tx GROUP BY {W}",
    f"SELECT count(*) FILTER (WHERE kind LIKE 'p%') FROM tx GROUP BY {W}",
    f"SELECT count(*) FROM tx WHERE kind IN ('a', 'b') AND x IS NOT NULL GROUP BY {W}",
    f"SELECT count(*) FROM tx WHERE amount BETWEEN 1 AND 2 OR NOT kind <=> 'a' GROUP BY {W}",
    f"SELECT cast(amount AS int) AS c, count(*) FROM tx GROUP BY ALL, {W}",
    f"SELECT try_cast(x AS double) AS c, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT payload.card.bin, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT items[0].price, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT exists(items, i -> i.price > 1) AS e, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT from_json(raw, 'a INT').a AS a, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT date_trunc('day', ts) AS d, hour(ts), count(*) FROM tx GROUP BY 1, 2, {W}",
    f"SELECT extract(HOUR FROM ts) AS h, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT approx_count_distinct(merchant), max_by(merchant, ts) FROM tx GROUP BY {W}",
    f"SELECT count(DISTINCT merchant), first(kind), collect_set(kind) FROM tx GROUP BY {W}",
    f"SELECT coalesce(x, 'none') AS c, nvl(kind, 'k'), count(*) FROM tx GROUP BY 1, 2, {W}",
    f"SELECT if(amount > 1, 'hi', 'lo') AS c, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT upper(trim(kind)) AS k, length(kind), count(*) FROM tx GROUP BY 1, 2, {W}",
    f"SELECT kind || '-' || x AS k, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT count(*) FROM tx WHERE kind RLIKE '^p' GROUP BY {W}",
    f"SELECT -amount + 1 - 2 * 3 / 4 % 5 AS a, count(*) FROM tx GROUP BY 1, {W}",
    f"SELECT round(avg(amount), 2) AS a, sqrt(max(amount)) FROM tx GROUP BY {W}",
    "SELECT count(*) FROM tx GROUP BY window(timeColumn => ts, windowDuration => '1 hour')",
    "SELECT count(*) FROM tx GROUP BY window(ts, INTERVAL 1 HOUR, INTERVAL '10' MINUTE)",
    "SELECT count(*) FROM tx GROUP BY session_window(ts, '5 minutes')",
    f"SELECT count(*) FROM tx JOIN other ON tx.id = other.id GROUP BY {W}",
    f"SELECT count(*) FROM (SELECT * FROM tx UNION ALL SELECT * FROM other) GROUP BY {W}",
    f"FROM tx |> WHERE amount > 1 |> AGGREGATE count(*) AS n GROUP BY {W}",
    f"SELECT count(*) FROM TX GROUP BY {W} -- a comment; with a semicolon",
]

REFUSED = [
    "SELECT '${spark.app.name}' FROM tx",
    "SELECT count(*) FROM text.`/etc/passwd`",
    "SELECT count(*) FROM parquet.`/tmp/x`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT java_method('java.lang.System', 'exit', 1) FROM tx",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM tx",
    "SELECT try_reflect('java.lang.System', 'getenv', 'HOME') FROM tx",
    "SELECT `java_method`('java.lang.System', 'getenv', 'HOME') FROM tx",
    "SELECT system.builtin.java_method('java.lang.System', 'getenv', 'HOME') FROM tx",
    "SELECT IDENTIFIER('java_' || 'method')('java.lang.System', 'getenv', 'HOME') FROM tx",
    "SELECT schema_of_json(java_method('java.lang.System', 'getenv', 'HOME')) FROM tx",
    "SELECT (SELECT max(x) FROM other) FROM tx",
    "SELECT count(*) FROM tx WHERE id IN (SELECT id FROM other)",
    "SELECT count(*) FROM tx WHERE EXISTS (SELECT 1 FROM other)",
    "SELECT * FROM range(1000000000)",
    "SELECT * FROM VALUES (1), (2)",
    "SELECT 1",
    "SELECT * FROM tx, LATERAL (SELECT 1)",
    "SELECT * FROM tx LATERAL VIEW explode(items) t AS i",
    "SELECT explode(sequence(1, 1000000000)) FROM tx",
    "SELECT repeat('x', 1000000000) FROM tx",
    "SELECT lpad('x', 1000000000, 'y') FROM tx",
    "SELECT sum(amount) OVER (PARTITION BY kind) FROM tx",
    "SELECT TRANSFORM (customer) USING 'cat' AS c FROM tx",
    "SELECT count(*) FROM tx ORDER BY 1",
    "SELECT * FROM tx LIMIT 3",
    "SELECT input_file_name() FROM tx",
    "SELECT current_user(), version() FROM tx",
    "SELECT now() FROM tx",
    "SELECT rand() FROM tx",
    "SELECT uuid() FROM tx",
    "SELECT my_udf(customer) FROM tx",
    "SELECT read_files('/etc') FROM tx",
    "SET spark.sql.ansi.enabled = false",
    "ADD JAR '/tmp/evil.jar'",
    "CREATE TABLE a (b INT) USING parquet",
    "DROP TABLE tx",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT * FROM tx",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "CACHE TABLE tx",
    "SHOW TABLES",
    "EXPLAIN SELECT * FROM tx",
    "DESCRIBE tx",
    "SELECT * FROM spark_catalog.default.secret",
    "SELECT * FROM tx WITH (emit = 'final')",
    "SELECT " + "(" * 200 + "1" + ")" * 200 + " FROM tx",
    "SELECT '" + "x" * 30_000 + "' FROM tx",
    "SELECT " + " + ".join(["amount"] * 2000) + " FROM tx",
    "SELECT " + ", ".join(["amount"] * 2700) + " FROM tx",
]

UNPARSED = [
    "",
    "SELECT",
    "SELEC 1",
    "SELECT a FROM tx; DROP TABLE tx",
    "SELECT count(*) FROM tx EMIT CHANGES",
    "SELECT 'open FROM tx",
]


@pytest.mark.parametrize("text", GOOD)
def test_ordinary_queries_pass(spark: SparkSession, text: str) -> None:
    assert gate(spark, text, RELATIONS) is not None


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_what_could_harm_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises((QueryRefused, QuerySyntaxError)) as caught:
        gate(spark, text, RELATIONS)
    assert caught.value.what


@pytest.mark.parametrize("text", UNPARSED)
def test_text_that_does_not_parse_is_a_syntax_error(spark: SparkSession, text: str) -> None:
    with pytest.raises(QuerySyntaxError):
        gate(spark, text, RELATIONS)


def test_a_refusal_names_the_piece_of_the_users_text(spark: SparkSession) -> None:
    with pytest.raises(QueryRefused, match=r"the function java_method at 2:9 `java_method\('a', 'it''s'\)`"):
        gate(spark, "SELECT customer,\n        java_method('a', 'it''s') FROM tx", RELATIONS)


def test_only_what_the_session_registered_is_known_besides(spark: SparkSession) -> None:
    """Its temporary views, its Python and SQL functions: nothing of the catalogue, nothing of the JVM, none of ours."""
    spark.range(1).createOrReplaceTempView("registered_view")
    spark.range(1).createOrReplaceGlobalTempView("global_view")
    spark.udf.register("registered_udf", lambda x: x, "string")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION registered_sql(x INT) RETURNS INT RETURN x + 1")
    found = Catalyst(spark).temporary()
    assert "registered_view" in found.views and "global_view" not in found.views
    assert {"registered_udf", "registered_sql"} <= {*found.functions}
    assert not {"java_method", "reflect", "version", "abs"} & {*found.functions}
    plan = parse(Catalyst(spark), "SELECT registered_udf(x), registered_sql(1) FROM registered_view")
    judge(plan, found.views, found.functions)
    hidden = ("SELECT a.b.registered_udf(x) FROM registered_view", "SELECT 1 FROM global_temp.global_view")
    for text in hidden:
        with pytest.raises(QueryRefused):
            judge(parse(Catalyst(spark), text), found.views, found.functions)


def test_an_unknown_function_is_told_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(QueryRefused, match=r"Did you mean: .*stddev_pop"):
        gate(spark, "SELECT stdev_pop(amount) FROM tx", RELATIONS)


def test_an_unknown_stream_is_told_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(QueryTypeError, match=r"no stream othr at 1:15 `othr`\. Did you mean: other\?"):
        gate(spark, "SELECT a FROM othr", RELATIONS)


def test_a_cte_is_known_only_where_it_is_in_scope(spark: SparkSession) -> None:
    inner = "WITH secret AS (SELECT * FROM tx) SELECT * FROM secret"
    with pytest.raises(QueryTypeError, match="no stream secret"):
        gate(spark, f"WITH a AS ({inner}) SELECT * FROM secret", RELATIONS)


def test_nothing_known_is_refused_for_reasons_of_its_own(spark: SparkSession) -> None:
    with pytest.raises(MillpondError, match="none is declared"):
        gate(spark, "SELECT a FROM tx", [])
