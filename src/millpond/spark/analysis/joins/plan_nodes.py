"""Makes nodes of logical plans, and constants."""

from __future__ import annotations

from collections.abc import Collection

from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, outputs

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."


def logical(catalyst: Catalyst, name: str, *arguments: JavaObject) -> JavaObject:
    """A node of the class `name`; a list is passed as a Scala sequence."""
    given = [catalyst.seq(one) if isinstance(one, list) else one for one in arguments]
    return catalyst.java_class(_LOGICAL + name)(*given)


def constant(catalyst: Catalyst, text: str) -> JavaObject:
    """The constant that is written as `text` in SQL."""
    return catalyst.spark._jsparkSession.sessionState().sqlParser().parseExpression(text)


def join(
    catalyst: Catalyst, left: JavaObject, right: JavaObject, kind: JavaObject, condition: JavaObject
) -> JavaObject:
    """A join without a hint; `kind` is one of Spark's join types."""
    hint = catalyst.java_class(_LOGICAL + "JoinHint").NONE()
    return logical(catalyst, "Join", left, right, kind, catalyst.option(condition), hint)


def renamed(catalyst: Catalyst, plan: JavaObject, needed: Collection[int]) -> tuple[JavaObject, list[JavaObject]]:
    """The columns of a plan with the expression ids `needed`, with new ids, and aliases that map the old ones to them.

    Two sub-queries over one table have the same ids.
    """
    columns = [column for column in outputs(plan) if id_of(column) in needed]
    fresh = [catalyst.alias(column, str(column.name())) for column in columns]
    layer = [catalyst.alias(new.toAttribute(), str(old.name()), old) for old, new in zip(columns, fresh, strict=True)]
    return logical(catalyst, "Project", fresh, plan), layer
