"""Spark's private names: every one that Millpond leans on, and nothing else, stands in this file.

`Catalyst` wraps one classic session. Plans and expressions are objects of the JVM (`JavaObject`); the small
functions below read them, the methods build or rewrite them. `self_check` exercises each name once, so that
a Spark that renamed one is refused at the start, with its version, and not in the middle of a query.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import pyspark
from py4j.java_gateway import get_field, is_instance_of
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.udf import UserDefinedFunction

from millpond.errors import MillpondError, SetupError

JavaObject: TypeAlias = Any
"""A plan, an expression or another object of the JVM."""

_PACKAGE = "org.apache.spark.sql.catalyst."
_EXPRESSION = _PACKAGE + "expressions.Expression"
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_WATERMARK = "spark.watermarkDelayMs"
_HIDDEN = "__metadata_col"
WINDOW_MARK = "spark.timeWindow"
_SESSION = "spark.sessionWindow"
_SHOWN = 80


class Place(NamedTuple):
    """A piece of SQL text: `text[start:stop]`."""

    text: str
    start: int
    stop: int

    def __str__(self) -> str:
        """Line, column and the piece itself, on one line, cut when it is long."""
        piece = " ".join(self.piece.split())
        piece = piece if len(piece) <= _SHOWN else f"{piece[: _SHOWN - 1]}…"
        return f"line {self.line}, column {self.column} (`{piece}`)"

    @property
    def line(self) -> int:
        """The line, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """The column, from 1."""
        return self.start - self.text.rfind("\n", 0, self.start)

    @property
    def piece(self) -> str:
        """The text itself."""
        return self.text[self.start : self.stop]


def kind_of(node: JavaObject) -> str:
    """The simple class name of a node: `Aggregate`, `EqualTo`, …"""
    return str(node.getClass().getSimpleName()).rstrip("$")


def items(sequence: JavaObject) -> list[JavaObject]:
    """The elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def pairs(mapping: JavaObject) -> Iterator[tuple[str, str]]:
    """The entries of a Scala map of strings."""
    entries = mapping.iterator()
    while entries.hasNext():
        entry = entries.next()
        yield str(entry._1()), str(entry._2())


def optional(option: JavaObject) -> JavaObject | None:
    """The value of a Scala option, or None."""
    return option.get() if option.isDefined() else None


def children(node: JavaObject) -> list[JavaObject]:
    """The children of a plan or an expression."""
    return items(node.children())


def type_of(expression: JavaObject) -> str:
    """The SQL type of a resolved expression; `simpleString` would cut long structs."""
    return str(expression.dataType().catalogString())


def place_of(node: JavaObject) -> Place | None:
    """Where the node stands in the SQL text it was parsed from, if it was."""
    origin = node.origin()
    start, stop, text = (
        optional(origin.startIndex()),
        optional(origin.stopIndex()),
        optional(origin.sqlText()),
    )
    return None if start is None or stop is None or text is None else Place(text, start, stop + 1)


def conjuncts(expression: JavaObject) -> list[JavaObject]:
    """`a AND b AND …` in parts."""
    if kind_of(expression) != "And":
        return [expression]
    return [part for child in children(expression) for part in conjuncts(child)]


def references(expression: JavaObject) -> list[JavaObject]:
    """The attributes that an expression reads."""
    return items(expression.references().toSeq())


def text_of(expression: JavaObject) -> str:
    """The expression as its user wrote it, or as Spark prints it; a column by its name."""
    if kind_of(expression) == "AttributeReference":
        return str(expression.name())
    place = place_of(expression)
    return str(expression.sql()) if place is None else place.piece


def id_of(attribute: JavaObject) -> int:
    """The expression id of an attribute or alias; unique within a JVM."""
    return int(attribute.exprId().id())


def delay_ms(attribute: JavaObject) -> int | None:
    """The watermark delay an attribute carries, if any."""
    metadata = attribute.metadata()
    return int(metadata.getLong(_WATERMARK)) if metadata.contains(_WATERMARK) else None


def window_mark(attribute: JavaObject) -> str | None:
    """`time` or `session` for the column of a window, else None."""
    metadata = attribute.metadata()
    return "time" if metadata.contains(WINDOW_MARK) else "session" if metadata.contains(_SESSION) else None


def is_hidden(attribute: JavaObject) -> bool:
    """Whether an attribute is no column of its source, but told by it when asked (`_metadata`)."""
    return bool(attribute.metadata().contains(_HIDDEN))


def eval_mode(expression: JavaObject) -> str:
    """`ANSI`, `TRY` or `LEGACY`: how arithmetic, casts and aggregates meet overflow and zero."""
    return str(expression.evalMode().toString())


def command_of(function: JavaObject) -> bytes:
    """The bytes by which Spark sends a `PythonUDF` to its workers."""
    return bytes(function.func().command().unsafeArray())


def analysed(frame: DataFrame) -> JavaObject:
    """The analysed plan of a classic DataFrame."""
    return frame._jdf.queryExecution().analyzed()


def unlog() -> None:
    """Keep PySpark from printing each error of a query as a page of JSON beside raising it, from here on."""
    for logger in _loggers():
        logger.disabled = True


@contextmanager
def unlogged() -> Iterator[None]:
    """The same for a while, in a session that is not ours."""
    before = [(logger, logger.disabled) for logger in _loggers()]
    unlog()
    try:
        yield
    finally:
        for logger, disabled in before:
            logger.disabled = disabled


def _loggers() -> list[PySparkLogger]:
    return [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
class Temporary(NamedTuple):
    """Names of what lives as long as a session: its temporary views, its Python and SQL functions."""

    views: tuple[str, ...]
    functions: tuple[str, ...]


class Catalyst:
    """The private doors of one classic Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._jvm: JavaObject = spark._jvm
        self._session: JavaObject = spark._jsparkSession
        self._modules: dict[str, JavaObject] = {}
        self._classes: dict[str, JavaObject] = {}

    def analysis_session(self) -> SparkSession:
        """A clone of the session in which streams need no names: analysing there leaves the user's alone."""
        clone = self.clone()
        clone.conf.set(_EVOLUTION, "false")
        clone.conf.set("spark.sql.ansi.enabled", "true")  # the only arithmetic that the runtime repeats
        clone.conf.set("spark.sql.variable.substitute", "false")  # ${env:...} would be read while parsing
        return clone

    def clone(self) -> SparkSession:
        """A session with the same views and settings, whose own changes stay its own."""
        return SparkSession(self.spark.sparkContext, self._session.cloneSession())

    def parse(self, text: str) -> JavaObject:
        """The unresolved plan of a statement; resolves, reads and runs nothing.

        Raises:
            ParseException: it is no Spark SQL.
        """
        return self._session.sessionState().sqlParser().parsePlan(text)

    def temporary(self) -> Temporary:
        """The views and functions that this session's user registered in it."""
        catalog = self._session.sessionState().catalog()
        views = [str(view.table()) for view in items(catalog.listLocalTempViews("*"))]
        functions = {}
        for function in items(catalog.listTemporaryFunctions()):
            if optional(function.database()) is None:
                functions[str(function.funcName())] = str(catalog.lookupFunctionInfo(function).getSource())
        mine = (name for name, source in functions.items() if source in ("python_udf", "sql_udf"))
        return Temporary(tuple(views), tuple(mine))

    def adopt(self, other: Catalyst, found: Temporary) -> None:
        """Make temporary views and functions of another session known in this one."""
        theirs, mine = other._session.sessionState(), self._session.sessionState()
        for view in found.views:
            mine.catalog().createTempView(view, theirs.catalog().getRawTempView(view).get(), True)
        for name in found.functions:
            scope = (self._jvm.scala.Option.apply(part) for part in ("session", "system"))
            identity = self._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, *scope)
            builder = theirs.functionRegistry().lookupFunctionBuilder(identity).get()
            information = theirs.functionRegistry().lookupFunction(identity).get()
            mine.functionRegistry().registerFunction(identity, information, builder)

    def clean(self, plan: JavaObject) -> JavaObject:
        """The analysed plan without CTEs, views, pipes, aliases of relations and replaceable expressions."""
        inline = self._jvm.java.lang.Class.forName(_PACKAGE + "optimizer.InlineCTE").getConstructors()[0]
        flags = [True] + [False] * (inline.getParameterCount() - 1)
        plan = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*flags).apply(plan)
        for rule in (
            "analysis.EliminateSubqueryAliases",
            "analysis.EliminateView",
            "expressions.EliminatePipeOperators",
            "optimizer.EliminateSQLFunctionNode",
            "optimizer.ReplaceExpressions",
            "optimizer.RewriteWithExpression",
        ):
            plan = self._module(rule).apply(plan)
        return plan

    def aggregation(self, plan: JavaObject) -> tuple[list[JavaObject], list[JavaObject], list[JavaObject]]:
        """Keys, distinct aggregates and result columns of an `Aggregate`, as Spark's planner splits it."""
        found = self._module("planning.PhysicalAggregation").unapply(plan).get()
        return items(found._1()), items(found._2()), items(found._3())

    def substitute(self, expression: JavaObject, definitions: Sequence[JavaObject]) -> JavaObject:
        """The expression with attributes replaced by the aliases that define them."""
        if not definitions:
            return expression
        collapse = self._module("optimizer.CollapseProject")
        replaced = collapse.buildCleanedProjectList(self._seq([self.alias(expression, "e")]), self._seq(definitions))
        return replaced.apply(0).child()

    def alias(self, expression: JavaObject, name: str, like: JavaObject | None = None) -> JavaObject:
        """`expression AS name`, with the expression id of the attribute `like` or a new one."""
        identity = self._class("NamedExpression").newExprId() if like is None else like.exprId()
        return self._class("Alias")(expression, name, identity, self._seq([]), self._none, self._seq([]))

    def named(self, attribute: JavaObject, name: str) -> JavaObject:
        """The attribute called `name`, without the name of its relation."""
        return attribute.withName(name).withQualifier(self._seq([]))

    def boolean(self, name: str) -> JavaObject:
        """A new attribute of type boolean."""
        return self.alias(self.literal(True), name).toAttribute()

    def literal(self, value: bool | str) -> JavaObject:
        """A boolean or text constant."""
        types = self._jvm.org.apache.spark.sql.types.DataTypes
        kind = types.BooleanType if isinstance(value, bool) else types.StringType
        return self._class("Literal").create(value, kind)

    def every(self, conditions: Sequence[JavaObject]) -> JavaObject:
        """`a AND b AND …`; TRUE for none."""
        if not conditions:
            return self.literal(True)
        found = conditions[0]
        for condition in conditions[1:]:
            found = self._class("And")(found, condition)
        return found

    def labelled(self, label: str, text: JavaObject) -> JavaObject:
        """The text of an expression behind `label:`; NULL is empty."""
        return self._class("ConcatWs")(self._seq([self.literal(":"), self.literal(label), text]))

    def tried(self, expression: JavaObject) -> JavaObject:
        """The expression, or NULL where it raises."""
        return self._class("TryEval")(expression)

    def rebuilt(self, node: JavaObject, parts: Sequence[JavaObject]) -> JavaObject:
        """The node with other children."""
        return node.withNewChildren(self._seq(parts))

    def probe(self, expression: JavaObject, attribute: JavaObject, value: int) -> int:
        """The integer an expression over one column has for a value above 2^31 (else py4j sends an int)."""
        row = self._jvm.org.apache.spark.sql.catalyst.InternalRow.fromSeq(
            self._seq([self._jvm.java.lang.Long.valueOf(value)])
        )
        attributes = self._class("package$AttributeSeq")(self._seq([attribute]))
        bound = self._module("expressions.BindReferences").bindReference(expression, attributes, False)
        return int(bound.eval(row))

    def constant(self, expression: JavaObject) -> bool | int | float | str | None:
        """The value of a foldable expression of a simple type; days for dates, µs for timestamps."""
        value = expression.eval(None)
        if isinstance(value, float) and type_of(expression) == "float":
            # py4j sends a float as its short decimal text
            return float(struct.unpack("f", struct.pack("f", value))[0])
        return value if value is None or isinstance(value, bool | int | float) else str(value.toString())

    def numbers(self, expression: JavaObject) -> list[float]:
        """The value of a foldable expression of doubles: one, or those of an array."""
        value = expression.eval(None)
        return [float(one) for one in (value.toDoubleArray() if type_of(expression).startswith("array<") else [value])]

    def interval_us(self, text: str) -> tuple[int, int]:
        """Months and microseconds of an interval in any of Spark's spellings."""
        string = self._jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
        return calendar_us(self._module("util.IntervalUtils").stringToInterval(string))

    def fixed_interval(self, expression: JavaObject) -> tuple[int, int, int]:
        """Months, days and microseconds of an interval that is the same for every row."""
        found = expression.eval(None)
        return int(get_field(found, "months")), int(get_field(found, "days")), int(get_field(found, "microseconds"))

    def is_expression(self, value: JavaObject) -> bool:
        """Whether an object of the JVM is a Catalyst expression."""
        return bool(is_instance_of(self.spark.sparkContext._gateway, value, _EXPRESSION))

    def is_iterable(self, value: JavaObject) -> bool:
        """Whether an object of the JVM is a Scala collection or option."""
        return bool(is_instance_of(self.spark.sparkContext._gateway, value, "scala.collection.IterableOnce"))

    def size(self, expression: JavaObject) -> JavaObject:
        """How many elements an array or a map has."""
        return self._class("Size")(expression, False)

    def not_null(self, expression: JavaObject) -> JavaObject:
        """`expression IS NOT NULL`."""
        return self._class("IsNotNull")(expression)

    def attempt(self, expression: JavaObject) -> JavaObject:
        """`{v: expression}`, or NULL where evaluating it raises."""
        return self.tried(self._class("CreateNamedStruct")(self._seq([self.literal("v"), expression])))

    def insisted(self, attempt: JavaObject) -> JavaObject:
        """The `v` of an attempt; raises where it is NULL."""
        return self._class("GetStructField")(self.present(attempt), 0, self._none)

    def present(self, expression: JavaObject) -> JavaObject:
        """The expression; raises where it is NULL."""
        return self._class("objects").AssertNotNull(expression, self._seq([]))

    def called(self, function: UserDefinedFunction, arguments: Sequence[JavaObject]) -> JavaObject:
        """A Python function applied to expressions."""
        return function._judf.builder(self._seq(arguments))

    def column(self, expression: JavaObject) -> Column:
        """A `Column` of PySpark for an expression."""
        return ClassicColumn(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def frame(self, plan: JavaObject) -> DataFrame:
        """A DataFrame for a plan."""
        return ClassicFrame(self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._session, plan), self.spark)

    def _module(self, name: str) -> JavaObject:
        if name not in self._modules:
            found = self._jvm.java.lang.Class.forName(f"{_PACKAGE}{name}$")
            self._modules[name] = found.getField("MODULE$").get(None)
        return self._modules[name]

    def _seq(self, values: Iterable[JavaObject]) -> JavaObject:
        return self._to_seq(list(values))

    # each step of a name is a call of the JVM, so it is gone once
    @cached_property
    def _to_seq(self) -> JavaObject:
        return self._jvm.PythonUtils.toSeq

    @cached_property
    def _none(self) -> JavaObject:
        return self._jvm.scala.Option.empty()

    def _class(self, name: str) -> JavaObject:
        """A class of Catalyst's expressions."""
        if name not in self._classes:
            self._classes[name] = getattr(self._jvm.org.apache.spark.sql.catalyst.expressions, name)
        return self._classes[name]


def calendar_us(interval: JavaObject) -> tuple[int, int]:
    """Months and microseconds of a `CalendarInterval`; a day is 24 hours, as in Spark's windows."""
    days, rest = int(get_field(interval, "days")), int(get_field(interval, "microseconds"))
    return int(get_field(interval, "months")), days * 86_400_000_000 + rest


def self_check(spark: SparkSession) -> None:
    """Use every private name once.

    Raises:
        SetupError: this Spark has no such name, or it is not a classic session.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        raise SetupError("Millpond needs a classic Spark session; this one is Spark Connect.", "Drop `.remote(…)`.")
    doors = Catalyst(spark)
    frame = spark.range(1).selectExpr("id", "cast(id AS timestamp) AS ts")
    # a window over a batch frame meets every name that a streaming one does
    plan = doors.clean(analysed(frame.groupBy("ts").agg({"id": "sum"})))
    attribute = analysed(frame).output().apply(0)
    steps: dict[str, Callable[[], object]] = {
        "SessionState.sqlParser": lambda: place_of(doors.parse("SELECT a FROM b").projectList().apply(0)),
        "SparkSession.cloneSession": doors.analysis_session,
        "PhysicalAggregation": lambda: doors.aggregation(plan)[1][0].resultAttribute(),
        "CollapseProject.buildCleanedProjectList": lambda: doors.substitute(
            attribute, [doors.alias(doors.named(attribute, "i"), "id", attribute)]
        ),
        "BindReferences": lambda: doors.probe(attribute, attribute, 1 << 40),
        "IntervalUtils.stringToInterval": lambda: doors.interval_us("1 day 2 seconds"),
        "Attribute.metadata": lambda: (
            delay_ms(attribute),
            window_mark(attribute),
            is_hidden(attribute),
            id_of(attribute),
        ),
        "evalMode": lambda: eval_mode(analysed(frame.selectExpr("cast(id AS int)")).projectList().apply(0).child()),
        "Expression.eval": lambda: doors.constant(_literal(doors)),
        "SessionCatalog": lambda: doors.adopt(doors, doors.temporary()),
        "TryEval": lambda: frame.select(doors.column(doors.insisted(doors.attempt(doors.not_null(attribute))))),
        "Size": lambda: doors.size(attribute),
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


def _literal(doors: Catalyst) -> JavaObject:
    return analysed(doors.spark.range(1).selectExpr("1 + 1 AS a")).projectList().apply(0).child()
