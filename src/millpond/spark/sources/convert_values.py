"""Converts parsed Kafka values to the declared types of their columns, and notes which do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructType


class Parsed(NamedTuple):
    """Records with their parsed columns, one per field, and why a record is malformed (NULL if it is not)."""

    records: DataFrame
    columns: list[Column]
    reason: Column


class Fitted(NamedTuple):
    """A value converted to a declared type, and whether a part did not fit and is NULL (None if all parts fit)."""

    value: Column
    misfit: Column | None


def is_strict(options: Mapping[str, str]) -> bool:
    """Whether a value that does not fit its column makes its record malformed."""
    return options.get("mode", "strict").lower() == "strict"


def fitted(value: Column, kind: DataType, to: DataType) -> Fitted:
    """A value converted to another type; parts of records are matched by name, and other parts that do not fit are
    NULL.
    """
    if _plain(kind) == _plain(to):
        return Fitted(value, None)
    if isinstance(kind, StructType) and isinstance(to, StructType):
        parts = [part_of(value, kind, name, part) for name, part in ((f.name, f.dataType) for f in to.fields)]
        made = F.struct(*(part.value.alias(name) for part, name in zip(parts, to.names, strict=True)))
        return Fitted(F.when(value.isNotNull(), made), _any_of(part.misfit for part in parts))
    if isinstance(kind, ArrayType) and isinstance(to, ArrayType):
        return Fitted(
            F.transform(value, lambda one: fitted(one, kind.elementType, to.elementType).value),
            _exists(value, kind.elementType, to.elementType),
        )
    if isinstance(kind, MapType) and isinstance(to, MapType) and kind.keyType == to.keyType:
        return Fitted(
            F.transform_values(value, lambda _, one: fitted(one, kind.valueType, to.valueType).value),
            _exists(F.map_values(value), kind.valueType, to.valueType),
        )
    cast = value.try_cast(to)
    return Fitted(cast, value.isNotNull() & cast.isNull())


def padded(value: Column, char: str | msgspec.UnsetType) -> Column:
    """A value with its CHAR strings padded with blanks to their length, as Spark reads them; for `char` see `Field`."""
    return value if isinstance(char, msgspec.UnsetType) else _padded(value, DataType.fromDDL(char))


def _padded(value: Column, kind: DataType) -> Column:
    if isinstance(kind, CharType):
        return F.when(F.length(value) < kind.length, F.rpad(value, kind.length, " ")).otherwise(value)
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: _padded(one, kind.elementType))
    if isinstance(kind, MapType):
        keys = F.transform(F.map_keys(value), lambda one: _padded(one, kind.keyType))
        return F.map_from_arrays(keys, F.transform(F.map_values(value), lambda one: _padded(one, kind.valueType)))
    if isinstance(kind, StructType):
        parts = (_padded(value.getField(field.name), field.dataType).alias(field.name) for field in kind.fields)
        return F.when(value.isNotNull(), F.struct(*parts))
    return value


def part_of(value: Column, kind: StructType, name: str, to: DataType) -> Fitted:
    """The part of a record with this name, converted to a type; case is ignored if one part matches; NULL without a
    match.
    """
    near = [name] if name in kind.names else [one for one in kind.names if one.lower() == name.lower()]
    if len(near) != 1:
        return Fitted(F.lit(None).cast(to), None)
    return fitted(value.getField(near[0]), kind[near[0]].dataType, to)


def _any_of(parts: Iterable[Column | None]) -> Column | None:
    """Whether any of some conditions holds; None if there are no conditions."""
    found = None
    for part in parts:
        if part is not None:
            held = F.coalesce(part, F.lit(False))
            found = held if found is None else found | held
    return found


def _exists(elements: Column, kind: DataType, to: DataType) -> Column | None:
    if fitted(F.lit(None), kind, to).misfit is None:
        return None

    def misfit(one: Column) -> Column:
        found = fitted(one, kind, to).misfit
        assert found is not None
        return F.coalesce(found, F.lit(False))

    return F.exists(elements, misfit)


def _plain(kind: DataType) -> DataType:
    """The type with all parts nullable, for comparisons."""
    if isinstance(kind, StructType):
        made = StructType()
        for field in kind.fields:
            made = made.add(field.name, _plain(field.dataType), True)
        return made
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType), True)
    return kind
