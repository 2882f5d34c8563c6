"""Wraps the private classes and methods of Spark's analyser that Millpond uses.

`Catalyst` wraps one classic session. Plans and expressions are objects of the JVM (`JavaObject`). The functions below
read them, and the methods build or rewrite them; `selfcheck` uses each name once. Every call is a round trip to the
JVM. So values that never change are read only once, or for many objects in one call.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

from py4j.java_gateway import JavaObject as GatewayObject
from py4j.java_gateway import get_field
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction

from millpond.spark.catalyst.analysis_threads import raise_if_abandoned
from millpond.spark.catalyst.data_types import calendar_us, type_text
from millpond.spark.catalyst.text_span import TextSpan
from millpond.spark.driver_classes.catalyst_trees import load_with, loader_of, references_of
from millpond.spark.driver_classes.jvm_names import class_named

JavaObject: TypeAlias = Any
"""A plan, an expression or another object of the JVM."""

T = TypeVar("T")

_PACKAGE = "org.apache.spark.sql.catalyst."
_CLASSIC = "org.apache.spark.sql.classic."
_EXPRESSION = _PACKAGE + "expressions.Expression"
_ITERABLE = "scala.collection.IterableOnce"
_UTILS = "org.apache.spark.util.Utils"
_TYPES = "py4j.reflection.TypeUtil"
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_EAGER = "spark.sql.parser.eagerEvalOfUnresolvedInlineTable"
_WATERMARK = "spark.watermarkDelayMs"
_HIDDEN = "__metadata_col"
WINDOW_MARK = "spark.timeWindow"
_SESSION = "spark.sessionWindow"
_MARK = "\x01"
_ORIGIN = re.compile(r"Origin\([^,]*,[^,]*,Some\((\d+)\),Some\((\d+)\),")


class Attribute(NamedTuple):
    """A column of a plan; a `hidden` column, such as `_metadata`, is returned by its source only on request."""

    id: int
    name: str
    type: str
    hidden: bool
    metadata: dict[str, Any]


def once(node: JavaObject, name: str, read: Callable[[JavaObject], T]) -> T:
    """The cached result of `read` for an object that never changes, because each call is a round trip to the JVM."""
    found: T = node.__dict__[name] if name in node.__dict__ else node.__dict__.setdefault(name, read(node))
    return found


def kind_of(node: JavaObject) -> str:
    """The simple class name of a node: `Aggregate`, `EqualTo`, …"""
    raise_if_abandoned()
    return once(node, "_kind", _kind)


def _kind(node: JavaObject) -> str:
    loader = loader_of(node)
    if loader is not None and loader.load(node):
        return str(node.__dict__["_kind"])
    return str(class_named(node._gateway_client, _UTILS).getFormattedClassName(node))


def items(sequence: JavaObject) -> list[JavaObject]:
    """The elements of a Scala sequence."""
    loader = loader_of(sequence)
    found = None if loader is None else loader.items(sequence)
    return [sequence.apply(i) for i in range(sequence.size())] if found is None else found


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
    return once(node, "_children", lambda one: items(one.children()))


def expressions(plan: JavaObject) -> list[JavaObject]:
    """The expressions of a plan node."""
    return once(plan, "_expressions", lambda one: items(one.expressions()))


def nodes_of(tree: JavaObject) -> Iterator[JavaObject]:
    """All nodes of a plan or an expression: parents before children, from left to right."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def outputs(plan: JavaObject) -> list[JavaObject]:
    """The output attributes of a plan."""
    return once(plan, "_outputs", lambda one: items(one.output()))


def attributes_of(plan: JavaObject) -> list[Attribute]:
    """The columns of `outputs`."""
    def read(node: JavaObject) -> list[Attribute]:
        found = ((one, _metadata(one)) for one in outputs(node))
        return [Attribute(id_of(one), str(one.name()), type_of(one), _HIDDEN in data, data) for one, data in found]
    return once(plan, "_attributes", read)


def computed_in(project: JavaObject) -> list[JavaObject]:
    """The elements of a `Project` that are computed, not passed through unchanged from its child."""
    below = {_column(one) for one in outputs(project.child())}
    return [one for one in expressions(project) if kind_of(one) != "AttributeReference" or _column(one) not in below]


def _column(one: JavaObject) -> tuple[int, str, int | None]:
    return id_of(one), str(one.name()), delay_ms(one)


def type_of(expression: JavaObject) -> str:
    """The SQL type of a resolved expression."""
    kind_of(expression)  # loads it, mostly with its type
    return once(expression, "_type", lambda one: type_text(one.dataType()))


def span_of(node: JavaObject) -> TextSpan | None:
    """The position of the node in the SQL text it was parsed from; None if it was not parsed."""
    return once(node, "_span", _span_of)


def _span_of(node: JavaObject) -> TextSpan | None:
    if "_place" in node.__dict__:  # the node was loaded
        place = node.__dict__["_place"]
        return None if place is None else TextSpan(*place)
    origin = node.origin()
    found = _ORIGIN.match(str(origin.toString()))
    text = None if found is None else optional(origin.sqlText())
    return None if found is None or text is None else TextSpan(text, int(found[1]), int(found[2]) + 1)


def name_parts(node: JavaObject) -> list[str]:
    """The parts of the name of a function or relation that is not resolved."""
    return once(node, "_parts", _name_parts)


def _name_parts(node: JavaObject) -> list[str]:
    relation = kind_of(node) == "UnresolvedRelation"
    return list(map(str, items(node.multipartIdentifier() if relation else node.nameParts())))


def conjuncts(expression: JavaObject) -> list[JavaObject]:
    """The parts of `a AND b AND …`."""
    if kind_of(expression) != "And":
        return [expression]
    return [part for child in children(expression) for part in conjuncts(child)]


def references(expression: JavaObject) -> list[JavaObject]:
    """The attributes that an expression reads."""
    return once(expression, "_references", lambda one: references_of(one, items))


def text_of(expression: JavaObject) -> str:
    """The expression as the user wrote it, or else as Spark prints it; a column is shown by its name."""
    kind = kind_of(expression)
    if kind in ("AttributeReference", "Alias"):
        return str(expression.name()) if kind == "AttributeReference" else text_of(expression.child())
    span = span_of(expression)
    return str(expression.sql()) if span is None else span.piece


def id_of(attribute: JavaObject) -> int:
    """The expression id of an attribute or alias; unique within a JVM."""
    kind_of(attribute)  # loads it with its id
    return once(attribute, "_id", lambda one: int(one.exprId().id()))


def delay_ms(attribute: JavaObject) -> int | None:
    """The watermark delay an attribute carries, if any."""
    found = _metadata(attribute).get(_WATERMARK)
    return None if found is None else int(found)


def timed_column(columns: Iterable[JavaObject]) -> JavaObject | None:
    """The first column with a watermark; None if there is none."""
    return next((column for column in columns if delay_ms(column) is not None), None)


def window_mark(attribute: JavaObject) -> str | None:
    """`time` or `session` for the column of a window, else None."""
    metadata = _metadata(attribute)
    return "time" if WINDOW_MARK in metadata else "session" if _SESSION in metadata else None


def _metadata(attribute: JavaObject) -> dict[str, Any]:
    def read(one: JavaObject) -> dict[str, Any]:
        return dict(json.loads(one.__dict__.get("_json") or one.metadata().json()))
    return once(attribute, "_metadata", read)


def eval_mode(expression: JavaObject) -> str:
    """`ANSI`, `TRY` or `LEGACY`: how arithmetic, casts and aggregates handle overflow and division by zero."""
    return str(expression.evalMode().toString())


def analysed(frame: DataFrame) -> JavaObject:
    """The analysed plan of a classic DataFrame."""
    return frame._jdf.queryExecution().analyzed()


class Temporary(NamedTuple):
    """Names of objects that live as long as a session: temporary views, and Python and SQL functions."""

    views: tuple[str, ...]
    functions: tuple[str, ...]


class Catalyst:
    """The private interfaces of one classic Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._client: JavaObject = self.spark._jsparkSession._gateway_client
        self._session: JavaObject = spark._jsparkSession
        load_with(spark)

    def analysis_session(self) -> SparkSession:
        """A clone of the session in which streams need no names; analyses there do not affect the user's session."""
        clone = self.clone()
        clone.conf.set(_EVOLUTION, "false")
        clone.conf.set("spark.sql.ansi.enabled", "true")  # the only arithmetic that the runtime reproduces
        clone.conf.set("spark.sql.variable.substitute", "false")  # ${env:...} would be read while parsing
        clone.conf.set(_EAGER, "false")  # Spark would compute the rows of VALUES while it parses them
        return clone

    def clone(self) -> SparkSession:
        """A session with the same views and settings; changes to it do not affect the original."""
        return SparkSession(self.spark.sparkContext, self._session.cloneSession())

    def parse(self, text: str) -> JavaObject:
        """The unresolved plan of a statement; nothing is resolved, read or run.

        The parser takes its settings from the active session, which is therefore another one meanwhile.

        Raises:
            ParseException: the text is not valid Spark SQL.
        """
        sessions = self.java_class(_CLASSIC + "SparkSession")
        before = optional(sessions.getActiveSession())
        sessions.setActiveSession(self._parsing)
        try:
            return self._parser.parsePlan(text)
        finally:
            if before is None:
                sessions.clearActiveSession()
            else:
                sessions.setActiveSession(before)

    @cached_property
    def _parser(self) -> JavaObject:
        return self._parsing.sessionState().sqlParser()

    @cached_property
    def _parsing(self) -> JavaObject:
        """This session if it is one for analysis, else a clone that is."""
        lazy = self._session.conf().get(_EAGER) == "false"
        return self._session if lazy else self.analysis_session()._jsparkSession

    def temporary(self) -> Temporary:
        """The views and functions that this session's user registered in it."""
        catalog = self._session.sessionState().catalog()
        shown = str(catalog.listLocalTempViews("*").mkString(_MARK))
        views = [name[1:-1].replace("``", "`") for name in shown.split(_MARK) if name]
        functions = {}
        for function in items(catalog.listTemporaryFunctions()):
            if optional(function.database()) is None:
                functions[str(function.funcName())] = str(catalog.lookupFunctionInfo(function).getSource())
        mine = (name for name, source in functions.items() if source in ("python_udf", "sql_udf"))
        return Temporary(tuple(views), tuple(mine))

    def adopt(self, other: Catalyst, found: Temporary) -> None:
        """Register temporary views and functions of another session in this one."""
        theirs, mine = other._session.sessionState(), self._session.sessionState()
        for view in found.views:
            mine.catalog().createTempView(view, theirs.catalog().getRawTempView(view).get(), True)
        for name in found.functions:
            scope = (self.option(part) for part in ("session", "system"))
            identity = self.java_class(_PACKAGE + "FunctionIdentifier")(name, *scope)
            builder = theirs.functionRegistry().lookupFunctionBuilder(identity).get()
            information = theirs.functionRegistry().lookupFunction(identity).get()
            mine.functionRegistry().registerFunction(identity, information, builder)

    def clean(self, plan: JavaObject) -> JavaObject:
        """The analysed plan without CTEs, views, pipes, aliases of relations and replaceable expressions."""
        plan = self._inline.apply(plan)
        for rule in (
            "analysis.EliminateSubqueryAliases", "analysis.EliminateView", "expressions.EliminatePipeOperators",
            "optimizer.EliminateSQLFunctionNode", "optimizer.ReplaceExpressions",
            "optimizer.ReplaceUpdateFieldsExpression", "optimizer.RewriteWithExpression",
        ):  # fmt: skip
            plan = self.module(rule).apply(plan)
        return plan

    def aggregation(self, plan: JavaObject) -> tuple[list[JavaObject], list[JavaObject], list[JavaObject]]:
        """Keys, distinct aggregates and result columns of an `Aggregate`, as Spark's planner splits it."""
        found = self.module("planning.PhysicalAggregation").unapply(plan).get()
        return items(found._1()), items(found._2()), items(found._3())

    def substitute(self, expression: JavaObject, definitions: Sequence[JavaObject]) -> JavaObject:
        """The expression with attributes replaced by the aliases that define them."""
        if not definitions:
            return expression
        if (loader := loader_of(expression)) is not None:
            return loader.substitute(expression, definitions)
        collapse = self.module("optimizer.CollapseProject")
        replaced = collapse.buildCleanedProjectList(self.seq([self.alias(expression, "e")]), self.seq(definitions))
        return replaced.apply(0).child()

    def alias(self, expression: JavaObject, name: str, like: JavaObject | None = None) -> JavaObject:
        """`expression AS name`, with the expression id of the attribute `like` or a new one."""
        identity = self._class("NamedExpression").newExprId() if like is None else like.exprId()
        return self._class("Alias")(expression, name, identity, self.seq([]), self.none, self.seq([]))

    def named(self, attribute: JavaObject, name: str) -> JavaObject:
        """The attribute renamed to `name`, without the name of its relation."""
        return attribute.withName(name).withQualifier(self.seq([]))

    def boolean(self, name: str) -> JavaObject:
        """A new attribute of type boolean."""
        return self.alias(self.literal(True), name).toAttribute()

    def literal(self, value: bool | str) -> JavaObject:
        """A boolean or text constant."""
        name = "BooleanType" if isinstance(value, bool) else "StringType"
        return self._class("Literal").create(value, once(self.types, name, lambda types: getattr(types, name)))

    def make(self, name: str, *arguments: JavaObject) -> JavaObject:
        """A new expression of a Catalyst class; a list is passed as a Scala sequence."""
        return self._class(name)(*(self.seq(one) if isinstance(one, list) else one for one in arguments))

    def every(self, conditions: Sequence[JavaObject]) -> JavaObject:
        """`a AND b AND …`; TRUE if there are no conditions."""
        if not conditions:
            return self.literal(True)
        return reduce(self._class("And"), conditions)

    def tried(self, expression: JavaObject) -> JavaObject:
        """The expression, or NULL if evaluating it raises."""
        return self._class("TryEval")(expression)

    def rebuilt(self, node: JavaObject, parts: Sequence[JavaObject]) -> JavaObject:
        """The node with other children; the node itself if none of them differs."""
        same = all(new is old for new, old in zip(parts, children(node), strict=True))
        return node if same else node.withNewChildren(self.seq(parts))

    def probe(self, parts: Iterable[JavaObject], attribute: JavaObject, value: int) -> list[int]:
        """Evaluate integer expressions over one column for a value above 2^31 (py4j sends smaller ones as int)."""
        row = once(self._client, f"_millpond_row_{value}", lambda _client: self.java_class(
            _PACKAGE + "InternalRow").fromSeq(self.seq([self.java_class("java.lang.Long").valueOf(value)])))
        attributes = self._class("package$AttributeSeq")(self.seq([attribute]))
        bind = self.module("expressions.BindReferences").bindReference
        return [int(bind(part, attributes, False).eval(row)) for part in parts]

    def constant(self, expression: JavaObject) -> bool | int | float | str | None:
        """The value of a foldable expression of a simple type; days for dates, µs for timestamps."""
        value = expression.eval(None)
        if isinstance(value, float) and type_of(expression) == "float":
            # py4j sends a float as its shortest decimal text
            return float(struct.unpack("f", struct.pack("f", value))[0])
        return value if value is None or isinstance(value, bool | int | float) else str(value.toString())

    def numbers(self, expression: JavaObject) -> list[float]:
        """The value of a foldable expression as a list: one double, or the doubles of an array."""
        value = expression.eval(None)
        return [float(one) for one in (value.toDoubleArray() if type_of(expression).startswith("array<") else [value])]

    def interval_us(self, text: str) -> tuple[int, int]:
        """Months and microseconds of an interval in any of Spark's spellings."""
        given = self.java_class("org.apache.spark.unsafe.types.UTF8String").fromString(text)
        return calendar_us(self.module("util.IntervalUtils").stringToInterval(given))

    def default(self, column: str, kind: StructType, sql: str) -> str:
        """The constant, as SQL, that `DEFAULT sql` gives a column of `kind`'s only type, or AnalysisException."""
        of = self._session.parseDataType(kind.json()).apply(0).dataType()
        return str(self.module("util.ResolveDefaultColumns").analyze(column, of, sql, "CREATE TABLE").sql())

    def fixed_interval(self, expression: JavaObject) -> tuple[int, int, int]:
        """Months, days and microseconds of an interval that is the same for every row."""
        found = expression.eval(None)
        return int(get_field(found, "months")), int(get_field(found, "days")), int(get_field(found, "microseconds"))

    def is_expression(self, value: JavaObject) -> bool:
        """Whether an object of the JVM is a Catalyst expression."""
        return self._is_a(_EXPRESSION, value)

    def is_iterable(self, value: JavaObject) -> bool:
        """Whether an object of the JVM is a Scala collection or option."""
        return self._is_a(_ITERABLE, value)

    def _is_a(self, kind: str, one: JavaObject) -> bool:
        return isinstance(one, GatewayObject) and bool(self.java_class(_TYPES).isInstanceOf(kind, one))

    def not_null(self, expression: JavaObject) -> JavaObject:
        """`expression IS NOT NULL`."""
        return self._class("IsNotNull")(expression)

    def attempt(self, expression: JavaObject) -> JavaObject:
        """`{v: expression}`, or NULL if evaluating it raises."""
        return self.tried(self._class("CreateNamedStruct")(self.seq([self.literal("v"), expression])))

    def present(self, expression: JavaObject) -> JavaObject:
        """The expression; raises if its value is NULL."""
        return self._class("objects.AssertNotNull")(expression, self.seq([]))

    def called(self, function: UserDefinedFunction, arguments: Sequence[JavaObject]) -> JavaObject:
        """A Python function applied to expressions."""
        return function._judf.builder(self.seq(arguments))

    def column(self, expression: JavaObject) -> Column:
        """A `Column` of PySpark for an expression."""
        return ClassicColumn(self.java_class(_CLASSIC + "ExpressionUtils").column(expression))

    def frame(self, plan: JavaObject) -> DataFrame:
        """A DataFrame for a plan."""
        return ClassicFrame(self.java_class(_CLASSIC + "Dataset").ofRows(self._session, plan), self.spark)

    def module(self, name: str) -> JavaObject:
        """A Scala object of Catalyst, such as a rule."""
        known = self._client.__dict__.setdefault("_millpond_modules", {})
        if name not in known:
            found = self.java_class("java.lang.Class").forName(f"{_PACKAGE}{name}$")
            known[name] = found.getField("MODULE$").get(None)
        return known[name]

    def seq(self, values: Iterable[JavaObject]) -> JavaObject:
        """A Scala sequence."""
        given, loader = list(values), loader_of(self._session)
        made = loader.sequence(given) if given and loader is not None else None
        return made if made is not None else self._to_seq(given) if given else self._nothing

    # A member of a class is looked up by a call to the JVM, so each is resolved only once.
    @cached_property
    def _to_seq(self) -> JavaObject:
        return self.java_class("org.apache.spark.api.python.PythonUtils").toSeq

    @cached_property
    def _nothing(self) -> JavaObject:
        return self._to_seq([])

    @cached_property
    def none(self) -> JavaObject:
        """Scala's `None`."""
        return self.java_class("scala.Option").empty()

    @cached_property
    def option(self) -> JavaObject:
        """Scala's `Option`."""
        return self.java_class("scala.Option").apply

    @cached_property
    def types(self) -> JavaObject:
        """Spark's simple types, by their names."""
        return self.java_class("org.apache.spark.sql.types.DataTypes")

    @cached_property
    def _inline(self) -> JavaObject:
        rule = self.java_class("java.lang.Class").forName(_PACKAGE + "optimizer.InlineCTE").getConstructors()[0]
        flags = [True] + [False] * (rule.getParameterCount() - 1)
        return self.java_class(_PACKAGE + "optimizer.InlineCTE")(*flags)

    def _class(self, name: str) -> JavaObject:
        return self.java_class(f"{_PACKAGE}expressions.{name}")

    def java_class(self, name: str) -> JavaObject:
        """A class by its full name."""
        return class_named(self._client, name)
