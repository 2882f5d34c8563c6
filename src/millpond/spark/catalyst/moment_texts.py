"""Rejects texts that Spark would complete with the current date or time when it casts them to a timestamp or date.

Spark accepts the constants `now` and `today`, and times without a date such as `10:00`, and completes them from the
clock. So a repeated epoch, a standby or a backfill would compute other results. Such a constant is refused. A text of
an event that does not begin with a year raises, like any other invalid text; `try_cast` returns NULL for it.
"""

from __future__ import annotations

import re

from millpond.errors import UnsupportedQuery
from millpond.spark.catalyst.allow_list import MOMENTS
from millpond.spark.catalyst.checked_values import bound_once, raising
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, eval_mode, kind_of, text_of, type_of
from millpond.spark.catalyst.value_bounds import Limiter, is_accepted

_YEAR = re.compile(r"[\s\x00-\x20]*[+-]?\d{4}")
_YEAR_OF_SPARK = r"^[\s\x00-\x20]*[+-]?[0-9]{4}"
_PARSERS = ("JsonToStructs", "CsvToStructs", "XmlToStructs")
_LOCAL_MOMENT = re.compile(r"\btimestamp\b")
"""The only type that Spark completes from the clock: a text without a date is no valid DATE or TIMESTAMP_NTZ."""
_MOMENT = re.compile(r"\b(timestamp|timestamp_ntz|timestamp_ltz|date)\b")


def check_moment(catalyst: Catalyst, node: JavaObject, kind: str) -> None:
    """Refuse expressions that accept a text without a date as a moment and cannot be checked for each event.

    These are casts of constants that Spark would complete from the clock, casts of texts within arrays, maps or
    structs or variants, and `from_json`, `from_csv` and `from_xml` of a TIMESTAMP without a format.

    Raises:
        UnsupportedQuery: the node is one of these.
        QueryRefused: the constant is too large.
    """
    if is_accepted():
        return
    if kind in _PARSERS:
        _check_parser(node)
    if kind in ("VariantGet", "Cast") and _of_variant(node):
        raise UnsupportedQuery(
            f"`{text_of(node)}` takes a text without a date for a moment, which depends on the clock.",
            "Take the value as a STRING, and cast that.",
        )
    if kind != "Cast" or not _MOMENT.search(type_of(node)):
        return
    child = children(node)[0]
    if type_of(node) not in MOMENTS:
        if "string" in type_of(child) and type_of(child) != type_of(node):
            raise UnsupportedQuery(
                f"`{text_of(node)}` takes texts within a {type_of(child)} for moments.",
                "Cast each text by itself: transform(texts, one -> CAST(one AS TIMESTAMP)).",
            )
        return
    if type_of(child) != "string" or not child.foldable():
        return
    if kind_of(child) != "Literal":
        Limiter(catalyst, checks=False).limited(child)
    text = catalyst.constant(child)
    if text is not None and _YEAR.match(str(text)) is None:
        raise UnsupportedQuery(
            f"`{text_of(node)}` takes a text without a date for a moment, which is wrong or depends on the clock.",
            "Write it as 'yyyy-mm-dd hh:mm:ss'.",
        )


def _of_variant(node: JavaObject) -> bool:
    """Whether a node takes a TIMESTAMP out of a VARIANT, in which it may be a text."""
    return bool(_LOCAL_MOMENT.search(type_of(node))) and type_of(children(node)[0]) == "variant"


def _check_parser(node: JavaObject) -> None:
    """Refuse `from_json` and its like of a TIMESTAMP without a format: Spark then completes times from the clock."""
    options = str(node.options().keys().mkString(" ")).lower().split()
    completed = "timestampformat" not in options or "enabledatetimeparsingfallback" in options
    if _LOCAL_MOMENT.search(type_of(node)) and completed:
        raise UnsupportedQuery(
            f"`{text_of(node)}` takes a text without a date for a moment, which depends on the clock.",
            "Declare the field STRING and cast it, or give the option timestampFormat.",
        )


def dated(catalyst: Catalyst, expression: JavaObject) -> JavaObject:
    """The expression, in which casts accept a text of an event as a moment only if it begins with a year."""
    made = [dated(catalyst, part) for part in children(expression)]
    expression = catalyst.rebuilt(expression, made)
    is_moment = kind_of(expression) == "Cast" and type_of(expression) in MOMENTS
    if not is_moment or kind_of(made[0]) == "Literal" or type_of(made[0]) != "string":
        return expression
    otherwise = (
        catalyst.make("Literal", None, expression.dataType()) if eval_mode(expression) == "TRY"
        else raising(catalyst, expression, "a text without a date is no moment")
    )  # fmt: skip
    pattern = catalyst.literal(_YEAR_OF_SPARK)

    def judged(text: JavaObject) -> JavaObject:
        known = catalyst.make("RLike", text, pattern)
        # NULL does not match the pattern, but its cast is valid: NULL.
        is_other = catalyst.make("Not", catalyst.make("Coalesce", [known, catalyst.literal(True)]))
        return catalyst.make("If", is_other, otherwise, catalyst.rebuilt(expression, [text]))

    return bound_once(catalyst, made, lambda texts: judged(texts[0]))
