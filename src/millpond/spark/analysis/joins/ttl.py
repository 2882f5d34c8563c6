"""Applies the `state.ttl` of a query to a join: it replaces bounds and delays that the join does not declare."""

from __future__ import annotations

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.plan.explain.amounts import duration
from millpond.spark.analysis.query_terms import Extraction, Terms

_BETWEEN = {
    True: "Add b.at BETWEEN a.ts - INTERVAL 5 MINUTES AND a.ts + INTERVAL 10 MINUTES, both with a WATERMARK",
    False: "Add F.expr('at BETWEEN ts - INTERVAL 5 MINUTES AND ts + INTERVAL 10 MINUTES') to the condition, both sides "
    "with .withWatermark(…)",
}


class Ttl:
    """The `state.ttl` of a query: `us` in microseconds, None if it has none."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.us = terms.ttl_us
        self.used: int | msgspec.UnsetType = msgspec.UNSET

    def bounds(self, lower: int | None, upper: int | None, times: str) -> tuple[int, int]:
        """Both bounds of a join that declares at most one of them; `times`: event times of the rows of queries.

        Raises:
            UnsupportedQuery: the query has no `state.ttl`.
            QueryTypeError: it is shorter than the bound.
        """
        if self.us is None:
            what = "has no bound" if lower is None and upper is None else "is bounded on one side only"
            hint = f" Event times of rows of a query: {times}." if times else ""
            raise UnsupportedQuery(
                f"The join of two streams {what} in event time, so events would be stored indefinitely.",
                f"{_BETWEEN[bool(self._terms.text)]}, or join on equal windows, or let events be forgotten: "
                f"{self._terms.ttl_cure}.{hint}",
            )
        self.used = self.us
        found = (-self.us if lower is None else lower, self.us if upper is None else upper)
        if found[0] > found[1]:
            raise QueryTypeError(
                f"Events are forgotten after {duration(self.us)} ('state.ttl'), before a partner can arrive.",
                "Use a longer time than the distance that the join requires.",
            )
        return found

    def delay_us(self, stream: str, time: str) -> int:
        """The delay of an event time without a watermark.

        Raises:
            QueryTypeError: the query has no `state.ttl`.
        """
        if self.us is None:
            raise QueryTypeError(
                f"The event time {time} has no watermark, so no row would ever be final.",
                f"{self._watermark(stream, time)}, or let events be forgotten: {self._terms.ttl_cure}.",
            )
        self.used = self.us
        return self.us

    def without_time(self, stream: str) -> QueryTypeError:
        """The error that an event time is missing, so that nothing says when events are forgotten."""
        return QueryTypeError(
            f"{stream} has no event time in this join, and 'state.ttl' is measured in event time.",
            f"{self._watermark(stream, 'ts')}, where ts is its event time.",
        )

    def _watermark(self, stream: str, time: str) -> str:
        if self._terms.text:
            return f"Write FROM STREAM {stream} WATERMARK {time} DELAY OF INTERVAL 10 SECONDS"
        return f"Add .withWatermark('{time}', '10 seconds') to it before the join"


def check_ttl(found: Extraction) -> None:
    """Refuse a `state.ttl` that no step of a query uses.

    Raises:
        UnsupportedQuery: all state of the query is bounded already, or cannot be forgotten.
    """
    if not any(isinstance(getattr(one.query, "ttl_us", None), int) for one in (*found.inner, found)):
        raise UnsupportedQuery(
            f"{found.query.name} has 'state.ttl', but none of its state is kept until then: it applies to joins of "
            "streams without bounds or without a watermark, and to DISTINCT and dropDuplicates.",
            "Leave it out.",
        )
