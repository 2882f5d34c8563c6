"""Functions of users in plans: what is answered of them."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.errors import UnsupportedQuery
from millpond.model.query import Query


def check_functions(queries: Iterable[Query]) -> None:
    """Refuse queries that call functions of users: those need the events of a window, which nothing keeps yet.

    Raises:
        UnsupportedQuery: see above.
    """
    for query in queries:
        for function in query.user_functions.values():
            raise UnsupportedQuery(
                f"The query {query.name!r} calls {function.label}, and functions of users are not answered yet.",
                "Use Spark's own aggregates.",
            )
