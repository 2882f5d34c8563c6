"""Names the kind of a join of two streams, and refuses kinds that have no streaming form."""

from __future__ import annotations

from millpond.errors import UnsupportedQuery
from millpond.model.join import ANTI, SEMI
from millpond.spark.catalyst.private_names import JavaObject, kind_of

_KINDS = {
    "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
    "LeftSemi": SEMI, "LeftAnti": ANTI,
}  # fmt: skip


def join_kind(join: JavaObject, *, by_text: bool) -> str:
    """The kind of a join in a plan, one of `model.join.KINDS`; `by_text`: whether the query is SQL.

    Raises:
        UnsupportedQuery: it is of another kind.
    """
    kind = kind_of(join.joinType())
    if kind == "ExistenceJoin":
        raise UnsupportedQuery(
            "EXISTS or IN over a stream is part of a larger expression, which is not supported.",
            "Write it as a condition of its own: WHERE EXISTS (SELECT …) AND …, or NOT EXISTS.",
        )
    if kind not in _KINDS:
        raise UnsupportedQuery(
            f"A join of this kind ({join.joinType().sql()}) of two streams is not supported.",
            "Write [INNER | LEFT | RIGHT | FULL | LEFT SEMI | LEFT ANTI] JOIN … ON …."
            if by_text
            else "Use one of 'inner', 'left', 'right', 'full', 'left_semi', 'left_anti' in .join(other, on, how).",
        )
    return _KINDS[kind]
