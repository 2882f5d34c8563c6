"""The naive twin of grouping sets: one plain query for each set, in which the keys that the set leaves out are NULL."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from millpond.model.expressions import literal
from millpond.model.query import Query


def plain_queries(query: Query) -> list[Query]:
    """The queries whose rows together are those of `query`; the query itself if it has no grouping sets.

    A key whose evaluation raises makes no event dead here.
    """
    if not query.grouping_sets:
        return [query]
    found = []
    for one in query.grouping_sets:
        keys = [key if i in one.keys else literal(None, key.type) for i, key in enumerate(query.keys[:-1])]
        found.append(replace(query, keys=(*keys, literal(one.id, "bigint")), sets=UNSET))
    return found
