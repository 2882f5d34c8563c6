"""Checks that this Spark has every private name that `catalyst` uses, by using each once before a query is read.

That takes a tenth of a second, so it happens once in each JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import MillpondError, SetupError
from millpond.spark.catalyst.checked_values import checked, sized
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    analysed,
    attributes_of,
    computed_in,
    delay_ms,
    eval_mode,
    id_of,
    kind_of,
    span_of,
    window_mark,
)
from millpond.spark.catalyst.text_span import TextSpan

_TEXT = "SELECT a + 1 FROM b"
_KEY = "_millpond_checked"


def self_check(spark: SparkSession) -> None:
    """Use every private name once in each JVM.

    Raises:
        SetupError: this Spark lacks one of the names, or the session is not a classic one.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        raise SetupError("Millpond needs a classic Spark session; this one is Spark Connect.", "Drop `.remote(…)`.")
    jvm: JavaObject = spark._jsparkSession._gateway_client
    if _KEY in jvm.__dict__:
        return
    doors = Catalyst(spark)
    frame = spark.range(1).selectExpr("id", "cast(id AS timestamp) AS ts")
    # An aggregation of a batch frame uses every name that a streaming one uses.
    plan = doors.clean(analysed(frame.groupBy("ts").agg({"id": "sum"})))
    attribute = analysed(frame).output().apply(0)
    steps: dict[str, Callable[[], object]] = {
        "SessionState.sqlParser": lambda: _same(
            span_of(doors.parse(_TEXT).projectList().apply(0).child()), TextSpan(_TEXT, 7, 12)
        ),
        "SparkSession.cloneSession": doors.analysis_session,
        "PhysicalAggregation": lambda: doors.aggregation(plan)[1][0].resultAttribute(),
        "CollapseProject.buildCleanedProjectList": lambda: doors.substitute(
            attribute, [doors.alias(doors.named(attribute, "i"), "id", attribute)]
        ),
        "BindReferences": lambda: doors.probe([attribute], attribute, 1 << 40),
        "IntervalUtils.stringToInterval": lambda: doors.interval_us("1 day 2 seconds"),
        "LogicalPlan.output": lambda: attributes_of(plan),
        "Project.projectList": lambda: _same([kind_of(one) for one in computed_in(analysed(frame))], ["Alias"]),
        "Attribute.metadata": lambda: (delay_ms(attribute), window_mark(attribute), id_of(attribute)),
        "evalMode": lambda: eval_mode(analysed(frame.selectExpr("cast(id AS int)")).projectList().apply(0).child()),
        "Expression.eval": lambda: doors.constant(_literal(doors)),
        "SessionCatalog": lambda: doors.adopt(doors, doors.temporary()),
        "TryEval": lambda: frame.select(doors.column(doors.present(doors.attempt(doors.not_null(attribute))))),
        "Size": lambda: doors.make("Size", attribute, False),
        "NamedLambdaVariable": lambda: frame.select(
            doors.column(checked(doors, doors.make("ConcatWs", [doors.literal("b")]), partial(sized, doors), 1))
        ),
        "Dataset.ofRows": lambda: doors.frame(analysed(frame)),
        "Expression": lambda: (doors.is_expression(attribute), doors.is_iterable(attribute.qualifier())),
    }
    for name, step in steps.items():
        try:
            step()
        except MillpondError:
            raise
        except (Py4JError, PySparkException, TypeError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise SetupError(
                f"Spark {pyspark.__version__} has no `{name}` as Millpond uses it: {reason}.",
                "Install pyspark 4.3.",
            ) from error
    jvm.__dict__[_KEY] = True


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise TypeError(f"it returns {found} for {expected}")


def _literal(doors: Catalyst) -> JavaObject:
    return analysed(doors.spark.range(1).selectExpr("1 + 1 AS a")).projectList().apply(0).child()
