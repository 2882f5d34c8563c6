"""Joins results of an aggregation with tables, and explodes their arrays, by one expression that Spark evaluates.

The value of the expression is an array with a struct for each row of a result (`Query.unnest`). Rows of a table are
inputs of the expression (`TableAbove`): an array of those that meet the equalities of the join. The other conditions,
and the outputs that read the table, are functions of the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Expression
from millpond.model.types import WINDOW, is_storable
from millpond.spark.analysis.aggregation_input import GENERATORS, JOINS
from millpond.spark.analysis.live_parameters import has_stand_in
from millpond.spark.analysis.result_expressions import TableAbove, projected_above
from millpond.spark.analysis.steps.step_boundaries import streaming_child
from millpond.spark.catalyst.cures import ONE_ROW, cast_cure
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    conjuncts,
    id_of,
    items,
    kind_of,
    optional,
    outputs,
    references,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected
from millpond.spark.sources.batch_tables import relation_text
from millpond.spark.sources.keyed_tables import keyed_in

_EQUALITIES = ("EqualTo", "EqualNullSafe")


class RowsAbove:
    """The rows that joins with tables, and `explode`, make of each result.

    `inline` replaces columns by the expressions that define them over the results. `needed` are the ids of the columns
    that are read. The tables are added to `tables`.
    """

    def __init__(
        self, catalyst: Catalyst, inline: Callable[[JavaObject], JavaObject], needed: Collection[int],
        tables: dict[int, TableAbove],
    ) -> None:  # fmt: skip
        self._catalyst, self._inline, self._needed, self._tables = catalyst, inline, needed, tables
        self._rows: JavaObject | None = None
        self._columns: list[JavaObject] = []
        self._texts: list[str] = []
        self._variables = 0

    @property
    def text(self) -> str:
        """What makes rows, for people; empty if nothing does."""
        return " ".join(self._texts)

    def reads(self, expression: JavaObject) -> bool:
        """Whether an expression reads columns of the rows."""
        own = {id_of(column) for column in self._columns}
        return any(id_of(column) in own for column in references(self._inline(expression)))

    def join(self, node: JavaObject) -> tuple[JavaObject | None, list[JavaObject]]:
        """Join the rows with a table; returns a condition that the join adds, and aliases of columns that it defines.

        Raises:
            UnsupportedQuery: the join is of a kind that keeps no result, or the table cannot be read here.
        """
        catalyst, stream = self._catalyst, streaming_child(node)
        side = node.right() if stream.fastEquals(node.left()) else node.left()
        kind, condition = kind_of(node.joinType()), optional(node.condition())
        if keyed_in(side) is not None:
            raise UnsupportedQuery(
                "Results are joined with rows of Redis, which is not supported.",
                "Join them below the aggregation, and group by their columns.",
            )
        if has_stand_in(str(side.toString())):
            raise UnsupportedQuery(
                "A table that is joined with results is filtered by a live parameter.", "Filter the results."
            )
        if kind == "LeftSingle":
            raise UnsupportedQuery("A sub-query may have more than one row for a result.", ONE_ROW)
        parts = [] if condition is None else [self._inline(part) for part in conjuncts(condition)]
        left = stream.fastEquals(node.left())
        if left and kind in ("LeftSemi", "LeftAnti", "ExistenceJoin"):
            found, _ = self._partners(side, parts, ())
            size = catalyst.make("Size", found, False)
            some = catalyst.make("GreaterThan", size, catalyst.make("Literal", 0, catalyst.types.IntegerType))
            if kind == "ExistenceJoin":
                return None, [catalyst.alias(some, "exists", node.joinType().exists())]
            return some if kind == "LeftSemi" else catalyst.make("Not", some), []
        if kind not in JOINS or kind == ("RightOuter" if left else "LeftOuter"):
            raise UnsupportedQuery(
                f"A join of this kind ({node.joinType().sql()}) is not supported.",
                "Write results [INNER | LEFT | LEFT SEMI | LEFT ANTI] JOIN table ON ….",
            )
        found, columns = self._partners(side, parts, self._needed)
        self._add(found, columns, outer=not JOINS[kind])
        on = "" if condition is None else f" ON {condition.sql()}"
        self._texts.append(f"{'' if JOINS[kind] else 'LEFT '}JOIN {relation_text(side)}{on}")
        return None, []

    def generate(self, node: JavaObject) -> None:
        """Add a row for each element of an array or map.

        Raises:
            UnsupportedQuery: the function is not `explode` or one of its kind.
        """
        generator, columns = node.generator(), items(node.generatorOutput())
        kind = kind_of(generator)
        if kind not in GENERATORS:
            raise UnsupportedQuery(
                f"The rows of {kind.lower()} are not supported.", "Use explode, posexplode or inline, outer or not."
            )
        array, make = self._inline(generator.child()), self._catalyst.make
        is_map = type_of(array).startswith("map<")
        array = make("MapEntries", array) if is_map else array

        def row(element: JavaObject, *place: JavaObject) -> JavaObject:
            fields = is_map or kind == "Inline"
            parts = [_field(self._catalyst, element, i) for i in range(len(columns) - len(place))] if fields else []
            return self._struct([*place, *(parts or [element])])

        made = self._lambda("ArrayTransform", array, row, 2 if kind == "PosExplode" else 1)
        self._add(make("If", make("IsNull", array), self._empty(columns), made), columns, outer=bool(node.outer()))
        self._texts.append(f"LATERAL VIEW {'OUTER ' if node.outer() else ''}{generator.sql()}")

    def filtered(self, condition: JavaObject) -> JavaObject | None:
        """Keep only rows that meet a condition; returns the condition if it is one on results."""
        if not self.reads(condition):
            return condition
        assert self._rows is not None
        inlined = self._inline(condition)
        self._rows = self._lambda("ArrayFilter", self._rows, lambda row: self._of_row(inlined, row))
        self._texts.append(f"WHERE {condition.sql()}")
        return None

    def array(self, outputs: Sequence[JavaObject]) -> JavaObject:
        """The array with a struct of some columns for each row, over the columns of the results and of `tables`."""
        assert self._rows is not None
        values = [self._inline(output) for output in outputs]
        values = [value.child() if kind_of(value) == "Alias" else value for value in values]

        def row(element: JavaObject) -> JavaObject:
            return self._struct([self._of_row(value, element) for value in values])

        return self._lambda("ArrayTransform", self._rows, row)

    def _partners(
        self, side: JavaObject, parts: Sequence[JavaObject], needed: Collection[int]
    ) -> tuple[JavaObject, list[JavaObject]]:
        """The array of the rows of a table that meet conditions, and its columns."""
        own = {id_of(column) for column in outputs(side)}
        keys, probes, null_safe, rest = list[JavaObject](), list[JavaObject](), list[bool](), list[JavaObject]()
        for part in parts:
            pair = self._equal(part, own)
            if pair is None:
                rest.append(part)
                continue
            keys.append(pair[0])
            probes.append(pair[1])
            null_safe.append(kind_of(part) == "EqualNullSafe")
        read = {id_of(column) for part in rest for column in references(part)} | {*needed}
        columns = [column for column in outputs(side) if id_of(column) in read]
        rows = self._catalyst.alias(self._catalyst.make("CreateArray", [self._struct(columns)]), "rows").toAttribute()
        self._tables[id_of(rows)] = TableAbove(side, tuple(columns), tuple(keys), tuple(probes), tuple(null_safe))
        condition = self._catalyst.every(rest)
        found = self._lambda("ArrayFilter", rows, lambda row: self._over(condition, columns, row))
        return found, columns

    def _equal(self, part: JavaObject, own: Collection[int]) -> tuple[JavaObject, JavaObject] | None:
        """The sides of an equality between a table's columns and columns of results; None for other conditions."""
        if kind_of(part) not in _EQUALITIES:
            return None
        rows = {id_of(column) for column in self._columns}
        for key, probe in (children(part), children(part)[::-1]):
            of_key, of_probe = ({id_of(column) for column in references(one)} for one in (key, probe))
            if of_key and of_key <= {*own} and not of_probe & (rows | {*own} | self._tables.keys()):
                return key, probe
        return None

    def _add(self, found: JavaObject, columns: Sequence[JavaObject], *, outer: bool) -> None:
        """Join the rows with the rows `found`, which may depend on their columns; `outer`: or else with NULLs."""
        make = self._catalyst.make
        if outer:
            none = make("EqualTo", make("Size", found, False), make("Literal", 0, self._catalyst.types.IntegerType))
            found = make("If", none, make("CreateArray", [self._nothing(columns)]), found)
        if self._rows is None:
            self._rows, self._columns = found, [*columns]
            return
        before = len(self._columns)

        def joined(row: JavaObject) -> JavaObject:
            def both(partner: JavaObject) -> JavaObject:
                fields = [_field(self._catalyst, row, place) for place in range(before)]
                fields += [_field(self._catalyst, partner, place) for place in range(len(columns))]
                return self._struct(fields)

            return self._lambda("ArrayTransform", self._of_row(found, row), both)

        self._rows = make("Flatten", self._lambda("ArrayTransform", self._rows, joined))
        self._columns += columns

    def _of_row(self, expression: JavaObject, row: JavaObject) -> JavaObject:
        return self._over(expression, self._columns, row)

    def _over(self, expression: JavaObject, columns: Sequence[JavaObject], row: JavaObject) -> JavaObject:
        """The expression with fields of a struct in place of columns."""
        catalyst = self._catalyst
        return catalyst.substitute(
            expression,
            [
                catalyst.alias(_field(catalyst, row, place), str(column.name()), column)
                for place, column in enumerate(columns)
            ],
        )

    def _struct(self, values: Sequence[JavaObject]) -> JavaObject:
        """A struct of values; without values, its field is TRUE, as a struct has at least one."""
        catalyst, parts = self._catalyst, list[JavaObject]()
        for place, value in enumerate(values or [catalyst.literal(True)]):
            parts += [catalyst.literal(f"c{place}"), value]
        return catalyst.make("CreateNamedStruct", parts)

    def _nothing(self, columns: Sequence[JavaObject]) -> JavaObject:
        return self._struct([self._catalyst.make("Literal", None, column.dataType()) for column in columns])

    def _empty(self, columns: Sequence[JavaObject]) -> JavaObject:
        one = self._catalyst.make("CreateArray", [self._nothing(columns)])
        return self._lambda("ArrayFilter", one, lambda _row: self._catalyst.literal(False))

    def _lambda(
        self, kind: str, array: JavaObject, body: Callable[..., JavaObject], arguments: int = 1
    ) -> JavaObject:  # fmt: skip
        """A function of the elements of an array; with two arguments, the body gets the place of the element, too."""
        catalyst = self._catalyst
        types = [array.dataType().elementType(), catalyst.types.IntegerType][:arguments]
        variables = []
        for kind_of_value in types:
            self._variables += 1
            identity = catalyst.alias(array, "row").exprId()
            held = catalyst.java_class("java.util.concurrent.atomic.AtomicReference")()
            variables.append(
                catalyst.make("NamedLambdaVariable", f"row{self._variables}", kind_of_value, True, identity, held)
            )
        return catalyst.make(kind, array, catalyst.make("LambdaFunction", body(*variables), variables, False))


def unnested_above(
    catalyst: Catalyst, rows: RowsAbove, outputs: Sequence[JavaObject], meanings: Callable[[JavaObject], Expression],
    tables: Mapping[int, TableAbove],
) -> Projected:  # fmt: skip
    """The array with a struct of some outputs for each row of a result; see `projected_above`.

    Raises:
        UnsupportedQuery: an output has a type that is not supported, or as `projected_above`.
    """
    for output in outputs:
        if not is_storable(type_of(output)) or type_of(output) == WINDOW:
            what = f"The column {output.name()} has the type {type_of(output)}, which is not supported."
            raise UnsupportedQuery(what, cast_cure(type_of(output)))
    array = rows.array(outputs)
    return projected_above(catalyst, array, array, meanings, tables, rows.text)


def _field(catalyst: Catalyst, row: JavaObject, place: int) -> JavaObject:
    return catalyst.make("GetStructField", row, place, catalyst.none)
