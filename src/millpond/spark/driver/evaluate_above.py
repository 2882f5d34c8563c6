"""Evaluates expressions over the results of aggregations, between the two Python tasks of a fold that needs them.

Where an expression reads rows of a table, the frame of inputs is joined with the table: each input gets an array of its
partners. The table is broadcast, so the inputs stay in their partitions and in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.model.expressions import Foreign
from millpond.runtime.rows.foreign_values import MOST_ROWS, TOO_MANY
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, analysed, id_of, items, kind_of, references
from millpond.spark.catalyst.quiet_errors import without_call_sites
from millpond.spark.catalyst.spark_expressions import Projected, TableRows
from millpond.spark.driver_classes.loading import load_class
from millpond.spark.session import arrow_rows
from millpond.spark.session.arrow_rows import ArrowRows


class ExpressionsAbove:
    """The expressions over results that Spark evaluates in the epochs of one driver.

    `trees`: what Spark evaluates, by key. Plans of tables are kept while one streaming query runs.
    """

    def __init__(self, trees: Mapping[str, Projected]) -> None:
        self._trees = trees
        self._session: SparkSession | None = None
        self._broadcasts: JavaObject | None = None
        self._grouped: dict[tuple[str, ...], list[JavaObject]] = {}

    @without_call_sites()
    def __call__(self, inputs: DataFrame, expressions: Sequence[Foreign]) -> ArrowRows:
        """The rows of `inputs` with the values of expressions in place of their inputs."""
        if self._session is not inputs.sparkSession:
            self._session, self._broadcasts, self._grouped = inputs.sparkSession, None, {}
        catalyst, frame = Catalyst(inputs.sparkSession), inputs
        columns = dict(zip(inputs.columns, items(analysed(inputs).output()), strict=True))
        rows: dict[str, dict[str, JavaObject]] = {one.name: {} for one in expressions}
        values: dict[str, Column] = {}
        used: set[tuple[str, ...]] = set()
        for one in expressions:
            found, too_many = catalyst.column(columns[one.name]).isNotNull(), F.lit(False)
            for table in {table.name: table for table in self._trees[one.key].tables}.values():
                name = one.name, table.name
                grouped = self._planned((*name, "rows"), partial(_grouped, catalyst, table))
                frame = _joined(catalyst, frame, columns[one.name], one, table, grouped)
                rows[one.name][table.name] = array = _or_none(catalyst, grouped[-1])
                if not table.keys:
                    too_many = too_many | (F.size(catalyst.column(array)) > MOST_ROWS)
                if _computed(table):
                    plan, raised = self._planned((*name, "raised"), partial(_raised, catalyst, table))
                    frame = frame.crossJoin(catalyst.frame(plan))
                    found = found & ~catalyst.column(raised)
                used |= {(*name, "rows"), (*name, "raised")}
            found = found & ~too_many
            value = _evaluated(catalyst, columns[one.name], one, self._trees[one.key], rows[one.name], found)
            values[one.name] = value.alias(one.name)
            if not all(table.keys for table in self._trees[one.key].tables):
                values[one.name + TOO_MANY] = too_many.alias(one.name + TOO_MANY)
        self._grouped = {name: made for name, made in self._grouped.items() if name in used}
        every = {name: catalyst.column(column) for name, column in columns.items()} | values
        return self._rows_of(frame.select(*every.values()), any(rows.values()))

    def _planned(self, name: tuple[str, ...], make: Callable[[], DataFrame]) -> list[JavaObject]:
        """The plan of a broadcast frame, followed by its columns.

        Each expression has its own plans, because one with the same ids cannot be joined twice.
        """
        if name not in self._grouped:
            plan = analysed(F.broadcast(make()))
            self._grouped[name] = [plan, *items(plan.output())]
        return self._grouped[name]

    def _rows_of(self, frame: DataFrame, joined: bool) -> ArrowRows:
        if not joined or not load_class(frame.sparkSession, arrow_rows.CLASS):
            return ArrowRows.of(frame)
        if self._broadcasts is None:
            assert frame.sparkSession._jvm is not None
            self._broadcasts = frame.sparkSession._jvm.millpond.TableBroadcasts()
        return ArrowRows.of(frame, self._broadcasts.plan(frame._jdf))


def _evaluated(
    catalyst: Catalyst, inputs: JavaObject, value: Foreign, projected: Projected, rows: Mapping[str, JavaObject],
    found: Column,
) -> Column:  # fmt: skip
    """`struct<v>` of an expression over the fields of `inputs`; NULL if it raises, and where `found` is not met.

    `rows`: the columns with rows of tables, by their names.
    """
    attempt = catalyst.column(catalyst.attempt(_placed(catalyst, inputs, value, projected.expression, rows)))
    for probe in (probe for table in projected.tables for probe in table.probes):
        found = found & _probe(catalyst, inputs, value, probe).isNotNull()
    return F.when(found, attempt)


def _grouped(catalyst: Catalyst, table: TableRows) -> DataFrame:
    """The rows of a table by their keys: `k0`, `k1`, …, and `rows`, an array of structs.

    Rows of which a key raises are left out; see `_raised`. Without keys, there are at most `MOST_ROWS + 1` rows.
    """
    row = F.struct(*(catalyst.column(one).alias(f"c{place}") for place, one in enumerate(table.columns)))
    row = row if table.columns else F.struct(F.lit(True).alias("c0"))
    frame = catalyst.frame(table.plan)
    if not table.keys:
        return frame.select(row.alias("row")).limit(MOST_ROWS + 1).agg(F.collect_list("row").alias("rows"))
    names = [f"k{place}" for place in range(len(table.keys))]
    if _computed(table):
        frame = frame.select(*_attempted_keys(catalyst, table), row.alias("row")).dropna(subset=names)
        plain = frame.select(*(F.col(name).getField("v").alias(name) for name in names), "row")
    else:
        keys = [catalyst.column(key).alias(name) for name, key in zip(names, table.keys, strict=True)]
        plain = frame.select(*keys, row.alias("row"))
    return plain.coalesce(1).groupBy(*names).agg(F.collect_list("row").alias("rows"))


def _raised(catalyst: Catalyst, table: TableRows) -> DataFrame:
    """One row, with whether a key of a row of the table raises."""
    attempts = catalyst.frame(table.plan).select(*_attempted_keys(catalyst, table)).coalesce(1)
    raises = reduce(or_, (F.col(name).isNull() for name in attempts.columns))
    return attempts.agg(F.coalesce(F.max(raises), F.lit(False)).alias("raised"))


def _attempted_keys(catalyst: Catalyst, table: TableRows) -> list[Column]:
    """The keys `k0`, `k1`, … as `struct<v>`; NULL if they raise."""
    return [catalyst.column(catalyst.attempt(key)).alias(f"k{place}") for place, key in enumerate(table.keys)]


def _computed(table: TableRows) -> bool:
    """Whether a key is an expression, which may raise, and not only a column."""
    return any(kind_of(key) != "AttributeReference" for key in table.keys)


def _joined(
    catalyst: Catalyst, frame: DataFrame, inputs: JavaObject, value: Foreign, table: TableRows,
    grouped: Sequence[JavaObject],
) -> DataFrame:  # fmt: skip
    """The frame with the rows of a table that equal the inputs of an expression in all keys."""
    plan, *keys, _ = grouped
    condition = catalyst.column(inputs).isNotNull()
    for key, probe, null_safe in zip(keys, table.probes, table.null_safe, strict=True):
        mine, theirs = _probe(catalyst, inputs, value, probe).getField("v"), catalyst.column(key)
        condition = condition & (mine.eqNullSafe(theirs) if null_safe else mine == theirs)
    return frame.join(catalyst.frame(plan), condition, "left")


def _or_none(catalyst: Catalyst, rows: JavaObject) -> JavaObject:
    """The array of a table's rows, which is empty where there are none."""
    literal = catalyst.java_class("org.apache.spark.sql.catalyst.expressions.Literal")
    return catalyst.make("Coalesce", [rows, literal.default(rows.dataType())])


def _probe(catalyst: Catalyst, inputs: JavaObject, value: Foreign, probe: Projected) -> Column:
    """`struct<v>` of an expression to which a key of a table must be equal; NULL if it raises."""
    return catalyst.column(catalyst.attempt(_placed(catalyst, inputs, value, probe.expression, {})))


def _placed(
    catalyst: Catalyst, inputs: JavaObject, value: Foreign, expression: JavaObject, rows: Mapping[str, JavaObject]
) -> JavaObject:
    """The expression over the fields of `inputs` and the columns `rows`."""
    fields = []
    for column in {id_of(one): one for one in references(expression)}.values():
        name = str(column.name())
        if name in rows:
            fields.append(catalyst.alias(rows[name], name, column))
        else:
            field = catalyst.make("GetStructField", inputs, value.columns.index(name), catalyst.none)
            fields.append(catalyst.alias(field, name, column))
    return catalyst.substitute(expression, fields)
