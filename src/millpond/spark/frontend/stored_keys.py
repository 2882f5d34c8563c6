"""Finds a stored query again in one that was analysed anew, if only the keys of Spark's expressions differ.

Releases up to 0.2 computed the key of an expression with CASE from ids that differ from session to session, and that of
a DataFrame's lambda from a counter of PySpark. The state of such a query keeps the stored keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from millpond.model.selection import AnyQuery, foreign_above, foreign_below
from millpond.spark.catalyst.spark_expressions import Projected

_KEY = re.compile(rb'"key":"([0-9a-f]{16})"')
_LAMBDA = "lambdafunction("


def stored_keys(stored: AnyQuery, analysed: AnyQuery, expressions: Mapping[str, Projected]) -> dict[str, str]:
    """The stored key of each expression of `analysed`, by its own key; empty unless the queries differ in nothing else.

    Variables of a lambda look alike in the SQL of an expression. So a query with a lambda must have a text, or the keys
    that an earlier release gave these expressions.
    """
    before, now = (msgspec.json.encode(query) for query in (stored, analysed))
    if before == now or _KEY.sub(b"", before) != _KEY.sub(b"", now):
        return {}
    keys = {new.decode(): old.decode() for old, new in zip(_KEY.findall(before), _KEY.findall(now), strict=True)}
    if not stored.text and any(_LAMBDA in one.sql for one in (*foreign_below(stored), *foreign_above(stored))):
        same = all(old in (new, expressions[new].former_key) for new, old in keys.items())
        return keys if same else {}
    return keys
