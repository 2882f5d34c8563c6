"""Which relations texts name, and which tables the log may store."""

from __future__ import annotations

import pytest

from millpond.model.endpoints import Source
from millpond.model.stream import Relation, can_be_stored, named_relations


@pytest.mark.parametrize(
    ("format_", "options", "stored"),
    [
        ("csv", {"path": "x"}, True),
        ("millpond", {"path": "x", "query": "q"}, True),
        ("redis", {"key": "user:{id}"}, True),
        ("redis", {"key": "user:{id}", "Address": "redis://me:secret@host"}, False),
        ("jdbc", {"url": "jdbc:x", "password": "secret"}, False),
    ],
)
def test_a_table_that_may_have_a_secret_is_not_stored(format_: str, options: dict[str, str], stored: bool) -> None:
    assert can_be_stored(Source(format_, tuple(options.items()))) == stored


def test_names_are_found_through_views_and_kept_in_the_order_of_declaration() -> None:
    source = Source("csv", (("path", "x"),))
    known = {
        "dim": Relation("dim", table=source),
        "below": Relation("below", text="SELECT * FROM Dim"),
        "above": Relation("above", text="SELECT * FROM below, above_all"),
        "unused": Relation("unused", table=source),
        "my view": Relation("my view", table=source),
    }
    found = named_relations(["SELECT 1 FROM STREAM ABOVE", "", "SELECT 1 FROM `my view`"], known)
    assert [relation.name for relation in found] == ["dim", "below", "above", "my view"]
    assert named_relations(["SELECT dimension FROM x"], known) == ()
