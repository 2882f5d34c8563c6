"""Messages about a live parameter where a value of another type is needed."""

from __future__ import annotations

import pytest

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Call, Column, Foreign, literal
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.spark.analysis.live_parameters import marked


def where(sql: str) -> Selection:
    condition = Call("gt", (Column("amount", "bigint"), Foreign("key", sql, "bigint", ())), "boolean")
    return Selection("q", "tx", (Named("amount", Column("amount", "bigint")),), condition)


def test_a_text_that_is_compared_with_a_number_is_refused_by_its_type() -> None:
    marks = marked(":limit", {"limit": literal("abc", "string")})
    with pytest.raises(QueryTypeError, match=r":limit is of type string, .* needs bigint") as refused:
        marks.restored(where(f"CAST({marks.text} AS BIGINT)"))
    assert "Set :limit to a value of that type" in refused.value.cure


def test_what_no_value_could_change_is_told_as_before() -> None:
    marks = marked(":limit", {"limit": literal("abc", "string")})
    with pytest.raises(UnsupportedQuery, match="is used where its value cannot change"):
        marks.restored(where(f"RLIKE(k, {marks.text})"))
