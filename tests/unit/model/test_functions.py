"""A user function as a value: its constraints, its names, its JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millpond.errors import QueryTypeError
from millpond.model.functions import UserFunction, bytes_of
from millpond.model.query import Query, changed_functions
from millpond.model.windows import Sliding

MEDIAN: dict[str, Any] = {
    "name": "my_median", "version": "1.2", "module": "billing.rates:Rates.median", "kind": "holistic",
    "takes": ("double", "decimal(10,2)"), "returns": "double",
}  # fmt: skip


def test_its_names_and_its_json() -> None:
    function = UserFunction(**MEDIAN)
    assert (function.label, function.function) == ("my_median@1.2", "user:my_median@1.2")
    assert msgspec.json.decode(msgspec.json.encode(function), type=UserFunction) == function


@pytest.mark.parametrize(("field", "value", "what"), [
    ("name", "my median", "a name that SQL cannot call"),
    ("name", "Größe", "a name that SQL cannot call"),
    ("version", "1@2", "the version '1@2'"),
    ("module", "billing.rates", "has the module 'billing.rates'"),
    ("module", "../x:f", "has the module"),
    ("kind", "scalar", "is of the kind 'scalar'"),
    ("form", "pandas", "takes 'pandas'"),
    ("takes", (), "takes no argument"),
    ("takes", ("array<int>",), "the type 'array<int>'"),
    ("returns", "number", "the type 'number'"),
    ("deadline_ms", 0, "has a deadline of 0 ms"),
    ("memory_bytes", 1 << 20, "has 1048576 bytes of memory"),
])  # fmt: skip
def test_what_is_refused(field: str, value: Any, what: str) -> None:
    with pytest.raises(QueryTypeError) as caught:
        UserFunction(**{**MEDIAN, field: value})
    assert what in caught.value.what and caught.value.cure


def test_only_holistic_functions_have_a_form() -> None:
    with pytest.raises(QueryTypeError, match="only holistic functions do"):
        UserFunction(**{**MEDIAN, "kind": "grouped", "form": "numpy"})


@pytest.mark.parametrize("size", ["256", "256 XB", "-1 MB", ""])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(QueryTypeError, match="is no size of memory"):
        bytes_of(size)


def test_a_function_that_changed_without_a_new_version_is_reported() -> None:
    made, other = UserFunction(**MEDIAN, digest="a"), UserFunction(**{**MEDIAN, "name": "other"})
    newer = msgspec.structs.replace(made, version="2", digest="b")

    def query_of(*functions: UserFunction) -> Query:
        return Query("q", "s", "t", 0, Sliding(1, 1), (), (), (), functions=functions)

    same = msgspec.structs.replace(made, digest="b")
    assert changed_functions([query_of(made, other)], [query_of(same, other)]) == ["my_median@1.2"]
    assert changed_functions([query_of(made)], [query_of(newer)]) == []
    assert changed_functions([query_of(made)], [query_of(made), query_of(other)]) == []
