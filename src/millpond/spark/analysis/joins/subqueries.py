"""Rewrites sub-queries of a plan (EXISTS, IN, scalar ones) to joins, mostly by the rules of Spark's own optimiser."""

from __future__ import annotations

import re
from functools import partial, reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.spark.analysis.joins.plan_nodes import join, logical, renamed
from millpond.spark.analysis.steps.step_boundaries import joins_streams
from millpond.spark.catalyst.cures import ONE_ROW
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    computed_in,
    conjuncts,
    expressions,
    id_of,
    items,
    kind_of,
    once,
    optional,
    outputs,
    references,
    text_of,
)

_OF_STREAMS = "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY"
_WITHOUT_FROM = "optimizer.OptimizeOneRowRelationSubquery"
"""Puts the expressions of sub-queries without FROM in their place: `(SELECT 5)`, `LATERAL (SELECT a * 2 AS b)`."""

_RULES = ("PullupCorrelatedPredicates", "RewritePredicateSubquery", "RewriteCorrelatedScalarSubquery")
_SEMI = ("LeftSemi", "LeftAnti")
_NESTED = ("ScalarSubquery", "Exists")
_NODE, _UNRESOLVED = re.compile(r"^[ :+-]*[~']*\w+"), re.compile(r"'([A-Za-z_][\w.]*)")
MOST_NESTED = 4
"""The most sub-queries within each other; the inner ones become joins when the outer ones are joins."""
_EXISTENCE = "org.apache.spark.sql.catalyst.plans.ExistenceJoin"


def frame_of(catalyst: Catalyst, text: str) -> DataFrame:
    """The frame of a query text. Its sub-queries may read streams, which Spark's own check of the text refuses.

    Raises:
        PySparkException: Spark refuses the text for another reason.
        QueryTypeError: a name is unknown, or a type is wrong.
        UnsupportedQuery: see `without_subqueries`.
    """
    try:
        return catalyst.spark.sql(text)
    except PySparkException as error:
        if error.getCondition() != _OF_STREAMS:
            raise
        analyser = catalyst.spark._jsparkSession.sessionState().analyzer()
        plan = analyser.execute(catalyst.parse(text))
        if not plan.resolved():
            rows = (_NODE.sub("", line, count=1) for line in str(plan.toString()).splitlines())
            names = dict.fromkeys(name for row in rows for name in _UNRESOLVED.findall(row))
            raise QueryTypeError(
                f"Spark cannot resolve a name, or an expression with it: {', '.join(names)}.",
                "Check names and types.",
            ) from error
        return catalyst.frame(without_subqueries(catalyst, catalyst.clean(plan)))


def without_subqueries(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The analysed plan with joins instead of sub-queries.

    Raises:
        UnsupportedQuery: a scalar sub-query may have more than one row.
    """
    patterns = catalyst.module("trees.TreePattern")
    pattern = once(patterns, "_plan_expression", lambda one: one.PLAN_EXPRESSION())
    rewriter = _Rewriter(catalyst)
    if plan.containsPattern(pattern):
        plan = catalyst.module("analysis.CleanupAliases").apply(catalyst.module(_WITHOUT_FROM).apply(plan))
    for _ in range(MOST_NESTED):
        if not plan.containsPattern(pattern):
            return plan
        plan = rewriter.independent(plan)
        for rule in _RULES:
            plan = catalyst.module(f"optimizer.{rule}").apply(plan)
            if "DomainJoin" in str(plan.toString()):
                raise UnsupportedQuery(
                    "A sub-query aggregates rows that it compares with the event by something else than an equality.",
                    "Compare them by equalities, as in (SELECT max(v) FROM t WHERE t.k = s.k).",
                )
        plan = catalyst.clean(rewriter.split(plan))
    return plan


class _Rewriter:
    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._joined: set[int] = set()

    def independent(self, node: JavaObject) -> JavaObject:
        """The plan with joins instead of scalar sub-queries and EXISTS that do not depend on the event."""
        if kind_of(node) in ("Filter", "Project", "Aggregate"):
            node = self._aggregated(node)
        node = self._catalyst.rebuilt(node, [self.independent(child) for child in children(node)])
        if kind_of(node) not in ("Filter", "Project", "Aggregate"):
            return node
        nested = [one for part in expressions(node) for one in _nested_in(part)]
        for one in nested:
            if one.plan().isStreaming() and (kind_of(one) == "ScalarSubquery" or not children(one)):
                raise UnsupportedQuery(
                    f"The sub-query `{text_of(one)}` reads a stream, and has a value or no condition on the event.",
                    "Join the streams, or compare event times in the WHERE of EXISTS (SELECT …).",
                )
        found = {int(one.exprId().id()): one for one in nested if not children(one)}
        if not found:
            return node
        below, values = node.child(), {}
        for identity, one in found.items():
            if kind_of(one) == "Exists":
                values[identity] = self._catalyst.boolean("exists")
                kind = self._catalyst.java_class(_EXISTENCE)(values[identity])
            else:
                values[identity], kind = _value(one), self._catalyst.module("plans.LeftOuter")
            below = join(self._catalyst, below, one.plan(), kind, self._catalyst.literal(True))
        if kind_of(node) == "Filter":
            made = logical(self._catalyst, "Filter", self._valued(node.condition(), values), below)
            return logical(self._catalyst, "Project", outputs(node), made)
        lists = [node.projectList()] if kind_of(node) == "Project" else [
            node.groupingExpressions(), node.aggregateExpressions()
        ]  # fmt: skip
        given = [[self._valued(one, values) for one in items(several)] for several in lists]
        hint = [node.hint()] if kind_of(node) == "Aggregate" else []
        return logical(self._catalyst, kind_of(node), *given, below, *hint)

    def _aggregated(self, node: JavaObject) -> JavaObject:
        """The node with maxima in place of the scalar sub-queries that it compares with results of an aggregation.

        Each has one value, which does not depend on the event, so the maximum over the events of a group is the value.
        """
        filters, aggregate = list[JavaObject](), node
        while kind_of(aggregate) in ("Filter", "SubqueryAlias") or (kind_of(aggregate) == "Project" and not filters):
            filters.append(aggregate)
            aggregate = aggregate.child()
        if kind_of(aggregate) != "Aggregate" or not aggregate.isStreaming():
            return node
        parts = expressions(node) if aggregate is not node else items(node.aggregateExpressions())
        found = {
            int(one.exprId().id()): one for part in parts for one in _nested_in(part, "AggregateExpression")
            if kind_of(one) == "ScalarSubquery" and not children(one) and not one.plan().isStreaming()
        }  # fmt: skip
        if not found:
            return node
        make, catalyst = self._catalyst.make, self._catalyst
        largest = {identity: make("aggregate.Max", one).toAggregateExpression() for identity, one in found.items()}
        if aggregate is node:
            given = [self._valued(one, largest) for one in items(node.aggregateExpressions())]
            return logical(catalyst, "Aggregate", items(node.groupingExpressions()), given, node.child(), node.hint())
        named = {identity: catalyst.alias(one, "value") for identity, one in largest.items()}
        values = {identity: one.toAttribute() for identity, one in named.items()}
        made = logical(
            catalyst, "Aggregate", items(aggregate.groupingExpressions()),
            [*items(aggregate.aggregateExpressions()), *named.values()], aggregate.child(), aggregate.hint(),
        )  # fmt: skip
        for one in filters[:0:-1]:
            made = logical(catalyst, "Filter", one.condition(), made) if kind_of(one) == "Filter" else made
        if kind_of(node) == "Project":
            return logical(catalyst, "Project", [self._valued(one, values) for one in items(node.projectList())], made)
        made = logical(catalyst, "Filter", self._valued(node.condition(), values), made)
        return logical(catalyst, "Project", outputs(node), made)

    def split(self, node: JavaObject) -> JavaObject:
        """The plan in which each NOT IN of one value is several joins that Spark can compute by hashing.

        Spark's condition `a = b OR (a = b) IS NULL` compares each event with each row. It is TRUE for some row if
        `a = b` is, or if a row has no `b`, or if there is no `a` and there is a row.
        """
        node = self._catalyst.rebuilt(node, [self.split(child) for child in children(node)])
        if kind_of(node) != "Join" or node.right().isStreaming() or not node.left().isStreaming():
            return node
        kind, condition = kind_of(node.joinType()), optional(node.condition())
        if kind == "LeftOuter" and condition is not None:
            return self._distinct(node, condition)
        inner = node.left()
        while kind_of(inner) == "Project" and not computed_in(inner):
            inner = inner.child()
        if kind in _SEMI and joins_streams(inner) and kind_of(inner.joinType()) in _SEMI:
            # A join with a table is evaluated where events are read, below the join of streams.
            lower = self.split(self._catalyst.rebuilt(node, [inner.left(), node.right()]))
            return self._catalyst.rebuilt(inner, [lower, inner.right()])
        parts = [] if condition is None else conjuncts(condition)
        aware = [part for part in parts if _compared(part) is not None]
        if kind not in ("LeftAnti", "ExistenceJoin") or len(aware) != 1:
            return node
        equal = _compared(aware[0])
        assert equal is not None
        rest = [part for part in parts if part is not aware[0]]
        own = {id_of(column) for column in outputs(node.left())}
        sides = children(equal)
        mine, theirs = sides if {id_of(one) for one in references(sides[0])} <= own else sides[::-1]
        plan, conditions_met = node.left(), list[JavaObject]()
        make = self._catalyst.make
        for conditions, above in (
            ([equal], None),
            ([make("IsNull", theirs)] if theirs.nullable() else None, None),
            ([] if mine.nullable() else None, make("IsNull", mine)),
        ):
            if conditions is None:
                continue
            exists = self._catalyst.boolean("exists")
            kind_of_join = self._catalyst.java_class(_EXISTENCE)(exists)
            every = self._catalyst.every([*conditions, *rest])
            plan = join(self._catalyst, plan, node.right(), kind_of_join, every)
            conditions_met.append(exists if above is None else make("And", above, exists))
        either = reduce(partial(make, "Or"), conditions_met)
        if kind == "LeftAnti":
            plan = logical(self._catalyst, "Filter", make("Not", either), plan)
            return logical(self._catalyst, "Project", outputs(node), plan)
        *kept, marker = outputs(node)
        named = self._catalyst.alias(either, str(marker.name()), marker)
        return logical(self._catalyst, "Project", [*kept, named], plan)

    def _distinct(self, node: JavaObject, condition: JavaObject) -> JavaObject:
        """The join with new ids for columns that a lower join has, as two sub-queries over one table have the same."""
        ids = {id_of(column) for column in outputs(node.right())}
        twice, self._joined = ids & self._joined, ids | self._joined
        if not twice:
            return node
        fresh, layer = renamed(self._catalyst, node.right(), twice)
        once_only = [column for column in outputs(node.right()) if id_of(column) not in twice]
        right = logical(self._catalyst, "Project", [*once_only, *items(fresh.projectList())], node.right())
        joined = self._catalyst.substitute(condition, layer)
        return join(self._catalyst, node.left(), right, node.joinType(), joined)

    def _valued(self, expression: JavaObject, values: dict[int, JavaObject]) -> JavaObject:
        """The expression with columns instead of sub-queries, by their expression ids."""
        if kind_of(expression) in _NESTED:
            return values.get(int(expression.exprId().id()), expression)
        return self._catalyst.rebuilt(expression, [self._valued(part, values) for part in children(expression)])


def _nested_in(expression: JavaObject, outside: str = "") -> list[JavaObject]:
    """The scalar sub-queries and EXISTS in an expression; those without children do not depend on the event.

    `outside`: a kind of expressions that is not looked into.
    """
    if kind_of(expression) in _NESTED:
        return [expression]
    parts = () if kind_of(expression) == outside else children(expression)
    return [found for child in parts for found in _nested_in(child, outside)]


def _value(subquery: JavaObject) -> JavaObject:
    """The only column of a scalar sub-query.

    Raises:
        UnsupportedQuery: it may have more than one row.
    """
    most = optional(subquery.plan().maxRows())
    if most is None or int(most) > 1:
        raise UnsupportedQuery(f"The sub-query `{text_of(subquery)}` may have more than one row.", ONE_ROW)
    return outputs(subquery.plan())[0]


def _compared(part: JavaObject) -> JavaObject | None:
    """The equality in Spark's condition for NOT IN, `a = b OR (a = b) IS NULL`; None for other conditions."""
    if kind_of(part) != "Or":
        return None
    equal, missing = children(part)
    same = kind_of(equal) == "EqualTo" and kind_of(missing) == "IsNull" and missing.child().semanticEquals(equal)
    return equal if same else None
