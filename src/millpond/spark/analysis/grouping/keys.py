"""Checks the type of grouping keys, and groups by a struct as by its fields.

The struct is restored from its fields above the aggregation. If it may be NULL, whether it is present is one more key,
because a NULL struct and a struct of NULLs are different keys.
"""

from __future__ import annotations

import re

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, Literal, call, field_of, struct_of
from millpond.model.types import KEY_TYPES, is_known, is_struct, parts_of, struct_fields
from millpond.spark.catalyst.cures import COLLATED
from millpond.spark.catalyst.private_names import JavaObject, text_of, type_of


def check_key(key: JavaObject, served: str | None) -> None:
    """Refuse a key of a type that is not grouped by; `served`: the name of the query, if it is served.

    Raises:
        UnsupportedQuery: the type is not supported.
    """
    kind = type_of(key)
    if not _can_be_key(kind):
        cure = f"Cast it to one of {', '.join(sorted(KEY_TYPES))}, a decimal or a struct of these."
        if re.search(r"\b(array|map)<", kind):
            cure = f"Group by a text with its elements: to_json({text_of(key)})."
        if " collate " in kind:
            cure = COLLATED
        raise UnsupportedQuery(f"The key `{text_of(key)}` is of type {kind}, by which a pond does not group.", cure)
    if served is not None and is_struct(kind):
        raise UnsupportedQuery(
            f"{served} is served, and its key `{text_of(key)}` is a struct.",
            "Group by the fields of the struct, by which rows are then looked up.",
        )


def _can_be_key(kind: str) -> bool:
    return all(map(_can_be_key, parts_of(kind))) if is_struct(kind) else is_known(kind)


def key_of(value: Expression, keys: list[Expression]) -> Expression:
    """The value of a key above the aggregation; adds what it is grouped by to `keys`."""
    if isinstance(value, Literal):
        return value
    if is_struct(value.type):
        is_call = isinstance(value, Call) and value.op == "struct"
        present = value.args[0] if isinstance(value, Call) and is_call else call("isnotnull", (value,), "boolean")
        fields = [
            value.args[1 + i] if isinstance(value, Call) and is_call else field_of(value, i)
            for i in range(len(struct_fields(value.type)))
        ]
        restored = key_of(present, keys)
        return struct_of([key_of(field, keys) for field in fields], value.type, restored)
    if value not in keys:
        keys.append(value)
    return Column(f"key:{keys.index(value)}", value.type)
