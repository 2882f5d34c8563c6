"""The page of functions that queries may call is what the gate allows."""

from __future__ import annotations

import re
from pathlib import Path

from millpond.spark.catalyst.allow_list import AGGREGATES, FUNCTIONS, GENERATORS, RANKS, SCALARS, WHY_REFUSED, WINDOWS
from millpond.spark.catalyst.cures import FUNCTION_LIST

PAGE = Path(__file__).parents[4] / "docs" / "sql-functions.md"


def test_the_page_lists_what_queries_may_call() -> None:
    assert str(PAGE.relative_to(PAGE.parents[1])) in FUNCTION_LIST
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    sections = [set(re.findall(r"`(\w+)`", part)) for part in parts if not part.startswith("Functions that Arrow")]
    assert sections == [WINDOWS, RANKS, AGGREGATES, SCALARS, GENERATORS, {*WHY_REFUSED}]
    assert not FUNCTIONS & {*WHY_REFUSED}
