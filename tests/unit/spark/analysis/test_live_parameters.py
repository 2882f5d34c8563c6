"""Messages about a live parameter where a value of another type is needed."""

from __future__ import annotations

import msgspec
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


def test_errors_that_no_value_could_avoid_stay_the_same() -> None:
    marks = marked(":limit", {"limit": literal("abc", "string")})
    with pytest.raises(UnsupportedQuery, match="is used where its value cannot change"):
        marks.restored(where(f"RLIKE(k, {marks.text})"))


def test_a_parameter_is_in_one_of_the_steps_and_in_nothing_that_spark_computes_below_them() -> None:
    marks = marked("v > :limit", {"limit": literal(5, "bigint")})
    stand_in = literal(int(marks.text.split("(")[1].rstrip("L)")), "bigint")
    plain = Selection("q", "tx", (Named("v", Column("v", "bigint")),), None)
    used = marks.restored(
        msgspec.structs.replace(plain, where=Call("gt", (Column("v", "bigint"), stand_in), "boolean"))
    )
    marks.check_used([plain, used], ["t + 1"])
    for steps, sources in (([plain], ["t + 1"]), ([plain, used], [marks.text])):
        with pytest.raises(UnsupportedQuery, match=":limit is used where its value cannot change"):
            marks.check_used(steps, sources)


@pytest.mark.parametrize(
    "text",
    [r"SELECT r'\' AS folder FROM tx WHERE v > :limit", r'SELECT R"\" AS folder FROM tx WHERE v > :limit',
     "SELECT $$it's$$ AS folder FROM tx WHERE v > :limit", "SELECT $a$it's $$$a$ AS folder FROM tx WHERE v > :limit"],
)  # fmt: skip
def test_a_raw_string_ends_where_it_ends_for_spark(text: str) -> None:
    marks = marked(f"{text} AND k != ':limit'", {"limit": literal(5, "bigint")})
    assert [parameter.name for parameter in marks.parameters] == ["limit"]
    assert marks.text.endswith("AND k != ':limit'") and marks.text.count(":limit") == 1


@pytest.mark.parametrize("quoted", [r"r':limit'", r"r'\' || ':limit'", "$$:limit$$", "$tag$ :limit $tag$"])
def test_a_name_in_a_raw_string_is_no_parameter(quoted: str) -> None:
    assert marked(f"SELECT {quoted}", {}).text == f"SELECT {quoted}"
