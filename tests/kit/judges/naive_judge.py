"""Compares the results of a pond on a case with the naive twin."""

from __future__ import annotations

from kit.inputs.cases import Case
from kit.judges.answers import Answers
from kit.naive.expressions import Raised
from kit.naive.queries import windows
from millpond.errors import OverflowedError
from millpond.testing.compare import assert_same_rows


def held_against_twin(case: Case, found: Answers, drained: bool = True) -> dict[str, int]:
    """The number of compared rows of each query that is not quarantined.

    Raises:
        AssertionError: rows, counts, withheld rows or quarantined queries differ from those of the twin.
    """
    compared = {}
    for query in case.queries:
        counted = windows.counts(query, case.epochs)
        assert found.counts.get(query.name, {}) == (counted if counted["read"] else {}), query
        try:
            expected = windows.answer(query, case.epochs, drained=drained)
        except (Raised, OverflowedError):
            assert query.name in found.quarantined, query
            continue
        assert query.name not in found.quarantined, query
        assert_same_rows(expected, found.rows[query.name], about=str(query))
        compared[query.name] = len(expected)
        withheld = windows.withheld(query, case.epochs, len(expected), drained=drained)
        assert found.withheld.get(query.name, 0) == withheld, query
    return compared
