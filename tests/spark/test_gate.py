"""The gate: no text may read files, settings or methods, and ordinary queries pass."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kit.inputs.attacks import ATTACKS, GOOD, RELATIONS
from kit.inputs.gate import gate
from millpond.errors import MillpondError, QueryRefused, QuerySyntaxError, QueryTypeError
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.frontend.gate import judge, parse

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


@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: text[:60])
def test_what_could_harm_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises((QueryRefused, QuerySyntaxError)) as caught:
        gate(spark, text, RELATIONS)
    assert caught.value.what


@pytest.mark.parametrize("text", UNPARSED)
def test_text_that_does_not_parse_is_a_syntax_error(spark: SparkSession, text: str) -> None:
    with pytest.raises(QuerySyntaxError):
        gate(spark, text, RELATIONS)


def test_a_refusal_names_the_piece_of_the_users_text(spark: SparkSession) -> None:
    with pytest.raises(QueryRefused, match=r"java_method at line 2, column 9 \(`java_method\('a', 'it''s'\)`\)"):
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


def test_the_error_of_an_unknown_function_suggests_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(QueryRefused, match=r"Did you mean: .*stddev_pop"):
        gate(spark, "SELECT stdev_pop(amount) FROM tx", RELATIONS)


def test_the_error_of_an_unknown_stream_suggests_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(QueryTypeError, match=r"no stream othr at line 1, column 15 \(`othr`\)\. Did you mean: other\?"):
        gate(spark, "SELECT a FROM othr", RELATIONS)
    with pytest.raises(QueryTypeError, match=r"No stream is declared\. The stream of a DataFrame has no name"):
        gate(spark, "SELECT a FROM clicks", frozenset(["stream_2d933771"]))


def test_a_cte_is_known_only_where_it_is_in_scope(spark: SparkSession) -> None:
    inner = "WITH secret AS (SELECT * FROM tx) SELECT * FROM secret"
    with pytest.raises(QueryTypeError, match="no stream secret"):
        gate(spark, f"WITH a AS ({inner}) SELECT * FROM secret", RELATIONS)


def test_nothing_known_is_refused_for_reasons_of_its_own(spark: SparkSession) -> None:
    with pytest.raises(MillpondError, match="No stream is declared"):
        gate(spark, "SELECT a FROM tx", [])
