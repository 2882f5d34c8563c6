"""Reads the columns, defaults and generated columns in CREATE TABLE, CREATE STREAMING TABLE and CREATE VIEW.

Refuses clauses that Spark parses but that would have no effect here (NOT NULL, constraints, EXTERNAL and others), and
names the clause in the error. Accepts COMMENT, which changes no result, and IF NOT EXISTS, because creating a name
twice is refused anyway.
"""

from __future__ import annotations

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from millpond.errors import QueryError, QueryRefused, QueryTypeError
from millpond.model.stream import Field, Generated
from millpond.spark.catalyst.data_types import declared_type, has_not_null, sql_type, table_schema
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, analysed, items, kind_of, optional
from millpond.spark.catalyst.spark_expressions import check_stable
from millpond.spark.frontend.gate import judge, parse

SOURCES_WITH_DEFAULTS = ("parquet", "json", "csv", "kafka")
"""Sources whose columns may have a default: those that Spark reads with defaults, and Kafka (JSON values)."""

_CURE_NOT_CHECKED = (
    "Leave it out: nothing checks it. To drop such events, write the condition in the WHERE of the queries"
)
_CONSTRAINTS = {
    "CheckConstraint": "CHECK",
    "PrimaryKeyConstraint": "PRIMARY KEY",
    "ForeignKeyConstraint": "FOREIGN KEY (REFERENCES)",
    "UniqueConstraint": "UNIQUE",
}


def columns_of(catalyst: Catalyst, plan: JavaObject, name: str, provider: str) -> tuple[Field | Generated, ...]:
    """The declared columns of a stream.

    Raises:
        QueryRefused: a column has a clause that would have no effect.
        QueryTypeError: a default is not a constant of the column's type.
    """
    columns = enumerate(items(plan.columns()))
    return tuple(_column(catalyst, column, name, provider, position) for position, column in columns)


def _column(catalyst: Catalyst, column: JavaObject, table: str, provider: str, position: int) -> Field | Generated:
    name = str(column.name())
    if optional(column.identityColumnSpec()) is not None:
        raise QueryRefused(
            f"The column {name} of {table} is GENERATED AS IDENTITY, and nothing numbers events.",
            "Leave it out; an identifier must be a column of the events.",
        )
    declared = DataType.fromDDL(str(column.dataType().sql()))
    _refuse_not_null(f"The column {name} of {table}", bool(column.nullable()), declared)
    kind, char = declared_type(declared)
    generated = optional(column.generationExpression())
    if generated is not None:
        # checked before the analysis, because folding a constant evaluates it
        sql = str(generated.originalSQL())
        judge(parse(catalyst, f"SELECT ({sql}\n) FROM nothing"), ("nothing",))
        return Generated(name, sql_type(kind), sql, position)
    made = Field(name, sql_type(kind), char=char)
    default = optional(column.defaultValue())
    if default is None:
        return made
    if provider not in SOURCES_WITH_DEFAULTS:
        raise QueryRefused(
            f"The column {name} of {table} has a DEFAULT, which Spark does not fill in for {provider}.",
            f"Leave it out, and write coalesce({name}, value) in the queries.",
        )
    return msgspec.structs.replace(made, default=_default(catalyst, table, name, kind, str(default.originalSQL())))


def _refuse_not_null(what: str, nullable: bool, kind: DataType) -> None:
    if not nullable or has_not_null(kind):
        part = "is" if not nullable else "has a field that is"
        raise QueryRefused(f"{what} {part} NOT NULL, which nothing checks.", f"{_CURE_NOT_CHECKED} (… IS NOT NULL).")


def _default(catalyst: Catalyst, table: str, column: str, kind: DataType, sql: str) -> str:
    """The constant value of a default, as SQL.

    Raises:
        QueryError: it is not a constant, depends on the clock, or uses something that query text may not use.
    """
    subject = f"The DEFAULT {sql} of the column {column} of {table}"
    try:
        # checked before the analysis, because folding a constant evaluates it
        judge(parse(catalyst, f"SELECT ({sql}\n) FROM nothing"), ("nothing",))
        check_stable(catalyst, items(analysed(catalyst.spark.range(0).selectExpr(f"({sql}\n)")).projectList())[0])
        return catalyst.default(column, StructType([StructField(column, kind)]), sql)
    except QueryError as error:
        raise type(error)(f"{subject} cannot be used: {error.what}", "Write a constant.") from error
    except PySparkException as error:
        reason = str(error).splitlines()[0].split(" SQLSTATE:")[0]
        cure = "Write a constant of the column's type."
        raise QueryTypeError(f"{subject} is no {sql_type(kind)}: {reason}", cure) from error


def refuse_clauses(name: str, spec: JavaObject) -> None:
    """Refuse clauses in a statement's table specification that would have no effect.

    Raises:
        QueryRefused: there is such a clause.
    """
    if spec.external():
        raise QueryRefused(
            f"{name} is an EXTERNAL table; a pond never deletes what a stream is read from.", "Leave EXTERNAL out."
        )
    if optional(spec.serde()) is not None:
        raise QueryRefused(
            f"{name} has ROW FORMAT or STORED AS, which are Hive's.", "Write USING source OPTIONS (…) in their place."
        )
    if (collation := optional(spec.collation())) is not None:
        raise QueryRefused(
            f"{name} has DEFAULT COLLATION {collation}, which no column takes.",
            f"Leave it out, and write STRING COLLATE {collation} where a column is to have it.",
        )
    for constraint in items(spec.constraints()):
        kind = _CONSTRAINTS.get(kind_of(constraint), kind_of(constraint))
        raise QueryRefused(f"{name} has a constraint, {kind}, which nothing checks.", f"{_CURE_NOT_CHECKED}.")


def refuse_view_clauses(name: str, plan: JavaObject) -> None:
    """Refuse clauses in a view's statement that would have no effect.

    Raises:
        QueryRefused: there is such a clause.
    """
    if (collation := optional(plan.collation())) is not None:
        raise QueryRefused(
            f"The view {name} has DEFAULT COLLATION {collation}, which nothing in it takes.",
            f"Leave it out, and write COLLATE {collation} where it is meant.",
        )


def view_columns(name: str, schema: JavaObject | None) -> str | None:
    """The declared columns of a temporary view over a batch source, as DDL text; None: none are declared.

    Raises:
        QueryRefused: a column is NOT NULL.
    """
    if schema is None:
        return None
    ddl = str(schema.toDDL())
    for field in table_schema(ddl).fields:
        _refuse_not_null(f"The column {field.name} of the view {name}", field.nullable, field.dataType)
    return ddl
