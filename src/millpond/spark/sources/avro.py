"""Parses Kafka values in Avro, with the schema of a file or the schema in a registry that each value names.

Spark's `from_avro` decodes with one writer's schema. So each known schema has a column of its own, filled only for
the rows that name it. An unknown schema number fails the task; the driver fetches the schema and repeats the read.
After too many failed look-ups (`Schemas.requests_unknown`), the record is malformed instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millpond.errors import SetupError, UnknownSchemaError
from millpond.formats.malformed_reasons import NO_PARSE, misfit_reason
from millpond.formats.schema_registry import Registered
from millpond.model.stream import Stream
from millpond.spark.catalyst.private_names import Catalyst, analysed, items
from millpond.spark.session.add_jars import provide
from millpond.spark.session.jars import avro
from millpond.spark.sources.convert_values import Parsed, is_strict, part_of
from millpond.spark.sources.value_schemas import (
    NO_NUMBER,
    NOT_THERE,
    NUMBER,
    VALUE,
    body,
    numbered,
    registered,
    schema_text,
    with_number,
)


class _Decoded(NamedTuple):
    """Records with a column of the values decoded by one schema, and the type of this column."""

    records: DataFrame
    column: str
    kind: StructType


def parse_avro(
    records: DataFrame, stream: Stream, declared: StructType, options: Mapping[str, str], empty: Column
) -> Parsed:
    """Parse values in Avro into the declared columns; `empty` is the reason why a record without a value is malformed.

    Raises:
        SetupError: a schema or Spark's decoder is not available.
        SourceError: the registry does not respond.
    """
    provide(records.sparkSession, avro())
    reader = schema_text(stream, options["schema"]) if "schema" in options else None
    if not numbered(options):
        assert reader is not None
        try:
            decoded = _decoded(records, F.col(VALUE), reader, None, F.col(VALUE).isNotNull())
            columns, reason = _columns(decoded, declared, is_strict(options))
        except _Unfit as error:
            raise SetupError(f"The schema {options['schema']} {error}.", "Mend the file or the columns.") from error
        return Parsed(decoded.records, columns, F.coalesce(empty, reason))
    records = with_number(records)
    every: list[list[Column]] = []
    reason = empty.when(F.col(NUMBER).isNull(), F.lit(NO_NUMBER))
    schemas, fetches_unknown = registered(options)
    for number, schema in schemas.items():
        mine = F.col(NUMBER) == number
        try:
            if schema is None:
                raise _Unfit(NOT_THERE)
            decoded = _decoded(records, body(), _written(schema), reader, mine)
            columns, why = _columns(decoded, declared, is_strict(options))
        except _Unfit as error:
            reason = reason.when(mine, F.lit(f"the schema {number} {error}"))
            continue
        records = decoded.records
        every.append(columns)
        reason = reason.when(mine, why)
    is_unknown = ~F.col(NUMBER).isin(list(schemas)) if schemas else F.lit(True)
    reason = reason.when(is_unknown, _unknown(stream, fetches_unknown))
    nothing = [F.lit(None).cast(field.dataType) for field in declared.fields]
    merged = [
        F.coalesce(*some).alias(field.name)
        for field, some in zip(declared.fields, zip(*[*every, nothing], strict=True), strict=True)
    ]
    return Parsed(records, merged, reason)


class _Unfit(Exception):
    """Raised if a schema cannot fill the declared columns; the message is the end of a sentence with the schema as
    subject.
    """


def _written(schema: Registered) -> str:
    if schema.kind != "AVRO":
        raise _Unfit(f"is one of {schema.kind}, not of Avro")
    return with_imports(schema.text, schema.imports) if schema.imports else schema.text


def _decoded(records: DataFrame, value: Column, writer: str, reader: str | None, mine: Column) -> _Decoded:
    """Records with the values for which `mine` holds decoded by a schema; NULL for values that do not parse."""
    catalyst = Catalyst(records.sparkSession)
    options = {"mode": "FAILFAST"} | ({} if reader is None else {"avroSchema": reader})
    name = f"__made{len(records.columns)}"
    try:
        from_avro = F.call_function("from_avro", value, F.lit(writer), F.create_map(*_literals(options)))
        plan = analysed(records.select(from_avro.alias(name)))
        decode = items(plan.projectList())[0].child()
        made = records.select("*", F.when(mine, catalyst.column(catalyst.tried(decode))).alias(name))
        kind = made.schema[name].dataType
    except (PySparkException, Py4JError) as error:
        raise _Unfit("is none that Avro reads") from error
    if not isinstance(kind, StructType):
        raise _Unfit("is no record")
    return _Decoded(made, name, kind)


def _columns(found: _Decoded, declared: StructType, strict: bool) -> tuple[list[Column], Column]:
    """The declared columns, and the reason why a record of this schema is malformed."""
    value = F.col(found.column)
    parts = [part_of(value, found.kind, field.name, field.dataType) for field in declared.fields]
    columns = [part.value.alias(field.name) for part, field in zip(parts, declared.fields, strict=True)]
    try:
        found.records.select(*columns)
    except PySparkException as error:
        raise _Unfit(f"does not fit the columns: {str(error).splitlines()[0]}") from error
    reason = F.when(value.isNull(), F.lit(NO_PARSE))
    for part, field in zip(parts, declared.fields, strict=True):
        if strict and part.misfit is not None:
            reason = reason.when(part.misfit, F.lit(misfit_reason(field.name, field.dataType.simpleString())))
    return columns, reason


def _unknown(stream: Stream, fetches_unknown: bool) -> Column:
    """The handling of an unknown schema: with `fetches_unknown`, raise, so that the driver requests it; otherwise the
    record is malformed.
    """
    if not fetches_unknown:
        return F.concat(F.lit("the schema "), F.col(NUMBER).cast("string"), F.lit(f" {NOT_THERE}"))
    error = UnknownSchemaError.met(stream.name, "{}")
    error.flattened = True
    before, after = str(error).split("{}")
    return F.raise_error(F.concat(F.lit(before), F.col(NUMBER).cast("string"), F.lit(after))).cast("string")


def _literals(options: Mapping[str, str]) -> list[Column]:
    return [F.lit(text) for pair in options.items() for text in pair]


def with_imports(text: str, imports: tuple[tuple[str, str], ...]) -> str:
    """A schema in which each imported type is written out at its first use.

    >>> with_imports('{"type": "record", "name": "a", "fields": [{"name": "x", "type": "b"}]}', (("b", '{"type": '
    ...     '"fixed", "name": "b", "size": 2}'),))
    '{"type": "record", "name": "a", "fields": [{"name": "x", "type": {"type": "fixed", "name": "b", "size": 2}}]}'
    """
    waiting = {name: json.loads(schema) for name, schema in imports}

    def placed(node: object, key: str = "type") -> object:
        if isinstance(node, str) and key in ("type", "items", "values") and node in waiting:
            return placed(waiting.pop(node))
        if isinstance(node, list):
            return [placed(one, key) for one in node]
        if isinstance(node, dict):
            return {name: placed(one, name) if name in _TYPED else one for name, one in node.items()}
        return node

    return json.dumps(placed(json.loads(text)))


_TYPED = ("type", "items", "values", "fields")
