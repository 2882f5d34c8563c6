"""Converts column types between Spark's objects and the texts that the model uses.

A text equals Spark's `catalogString`, except that names of struct fields are in backticks where Spark's parser needs
them. So every text can be parsed again. Schemas are passed to Spark as objects, never as texts, because only objects
carry the defaults of columns and the lengths of CHAR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from py4j.java_gateway import get_field
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from millpond.model.stream import Field
from millpond.spark.driver_classes.catalyst_trees import plain_type

JavaType: TypeAlias = Any
"""A `DataType` of the JVM."""

_DEFAULT, _WRITTEN_DEFAULT = "EXISTS_DEFAULT", "CURRENT_DEFAULT"
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Keys of a column's metadata under which Spark stores its default, and its declared type if that is a CHAR."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HAS_CHAR = re.compile(r"(?<!var)char\(")


def quoted(name: str) -> str:
    """The name as a quoted identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: JavaType) -> str:
    """The text of a JVM type; `simpleString` would truncate long structs."""
    text = plain_type(str(kind.catalogString()))
    return text if "struct<" not in text else _parsed_type(str(kind.sql()))


@lru_cache(512)
def _parsed_type(ddl: str) -> str:
    """The text of a type in Spark's SQL, which the JVM parses."""
    return sql_type(DataType.fromDDL(ddl))


def sql_type(kind: DataType) -> str:
    """The text of a type.

    >>> sql_type(StructType([StructField("a", StringType()), StructField("b-c", ArrayType(StringType()))]))
    'struct<a:string,`b-c`:array<string>>'
    """
    if isinstance(kind, StructType):
        fields = ((field.name, sql_type(field.dataType)) for field in kind.fields)
        parts = (f"{name if _PLAIN.fullmatch(name) else quoted(name)}:{part}" for name, part in fields)
        return f"struct<{','.join(parts)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)},{sql_type(kind.valueType)}>"
    return kind.simpleString()


def columns_type(columns: Iterable[tuple[str, str]]) -> StructType:
    """A struct type of columns with these names and types."""
    listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
    made = DataType.fromDDL(listed) if listed else StructType()
    assert isinstance(made, StructType)
    return made


def schema_of(fields: Iterable[Field]) -> StructType:
    """The schema for Spark's readers of a stream's columns, with their defaults and the lengths of CHAR."""
    fields = tuple(fields)
    made = columns_type((field.name, field.type) for field in fields)
    for part, field in zip(made.fields, fields, strict=True):
        if not isinstance(field.default, msgspec.UnsetType):
            part.metadata |= {_DEFAULT: field.default, _WRITTEN_DEFAULT: field.default}
        if not isinstance(field.char, msgspec.UnsetType):
            part.metadata |= {_CHAR: field.char}
    return made


def field_of(name: str, kind: str, metadata: Mapping[str, object]) -> Field:
    """A column of a stream from its name, its type, and Spark's metadata for its default and CHAR type."""
    default, char = metadata.get(_DEFAULT), str(metadata.get(_CHAR, ""))
    made = Field(name, kind, msgspec.UNSET if default is None else str(default))
    return msgspec.structs.replace(made, char=char) if _HAS_CHAR.search(char) else made


def declared_type(kind: DataType) -> tuple[DataType, str | msgspec.UnsetType]:
    """A declared type with CHAR and VARCHAR replaced by STRING, and the declared type's text if it has a CHAR.

    Spark reads both as strings: it pads values of a CHAR with blanks, and checks lengths only when it writes.
    """
    text = sql_type(kind)
    return _without_char(kind), text if _HAS_CHAR.search(text) else msgspec.UNSET


def table_schema(ddl: str) -> StructType:
    """The schema for Spark's readers of a batch table with this list of columns."""
    made = DataType.fromDDL(ddl)
    assert isinstance(made, StructType)
    parts = [(field, *declared_type(field.dataType)) for field in made.fields]
    for field, kind, char in parts:
        field.dataType = kind
        field.metadata |= {} if isinstance(char, msgspec.UnsetType) else {_CHAR: char}
    return made


def _without_char(kind: DataType) -> DataType:
    if isinstance(kind, CharType | VarcharType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_without_char(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_without_char(kind.keyType), _without_char(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [(field, _without_char(field.dataType)) for field in kind.fields]
        return StructType([StructField(one.name, part, one.nullable, one.metadata) for one, part in fields])
    return kind


def has_not_null(kind: DataType) -> bool:
    """Whether a field of a struct in a type is declared NOT NULL."""
    if isinstance(kind, ArrayType):
        return has_not_null(kind.elementType)
    if isinstance(kind, MapType):
        return has_not_null(kind.keyType) or has_not_null(kind.valueType)
    return isinstance(kind, StructType) and any(not one.nullable or has_not_null(one.dataType) for one in kind.fields)


def counts_months(kind: str) -> bool:
    """Whether a type is an interval of years and months.

    >>> [counts_months(f"interval {fields}") for fields in ("year", "year to month", "day to minute")]
    [True, True, False]
    """
    return kind.startswith(("interval year", "interval month"))


def calendar_us(interval: JavaType) -> tuple[int, int]:
    """Months and microseconds of a `CalendarInterval`; a day is 24 hours, as in Spark's windows."""
    months, days, rest = (int(get_field(interval, field)) for field in ("months", "days", "microseconds"))
    return months, days * 86_400_000_000 + rest
