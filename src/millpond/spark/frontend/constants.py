"""Refuses constants of a parsed text that Spark would compute for long, or from the clock, while it analyses the text.

Spark evaluates the rows of VALUES, LIMIT, the bounds of frames, the values of PIVOT and some arguments of functions,
such as a format, during its analysis, on the driver. So these are literals, or are made of literals. A pattern that
matches a constant text is computed there, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from millpond.spark.catalyst.allow_list import SUBQUERIES, words
from millpond.spark.catalyst.private_names import JavaObject, children, kind_of, name_parts, span_of, type_of
from millpond.spark.catalyst.regex_limits import LIKES, check_steps

_NODES = words(
    """Literal Cast UnaryMinus UnaryPositive Not Add Subtract Multiply Concat CreateNamedStruct Alias
    NamedArgumentExpression"""
)
_CONSTRUCTORS = words("array map struct named_struct concat")
_READS = SUBQUERIES | words(
    """UnresolvedAttribute UnresolvedStar UnresolvedNamedLambdaVariable SemiStructuredExtract InSubquery
    UnresolvedStarExceptOrReplace"""
)
"""Expressions whose value depends on the row."""
_DATA = {
    **dict.fromkeys(words(
        """from_json from_csv from_xml to_json to_csv to_xml to_binary try_to_binary to_number try_to_number to_char
        to_varchar percentile percentile_approx approx_percentile percentile_cont percentile_disc median mode
        approx_count_distinct histogram_numeric nth_value session_window window count_window cumulate_window
        window_time time_bucket round bround ceil ceiling floor first first_value last last_value any_value collate
        listagg string_agg"""
    ), (0,)),
    **dict.fromkeys(words("schema_of_json schema_of_csv schema_of_variant ntile"), ()),
    **dict.fromkeys(words("date_part datepart"), (1,)),
    **dict.fromkeys(words("lag lead"), (0, 2)),
    **dict.fromkeys(words("max_by min_by"), (0, 1)),
}  # fmt: skip
"""Functions with arguments that Spark evaluates while it analyses a text -> the places of their other arguments."""
_SCHEMAS = words("schema_of_json schema_of_csv schema_of_variant parse_json")
_PATTERNS = words(
    """rlike regexp regexp_like regexp_replace regexp_extract regexp_extract_all regexp_instr regexp_count regexp_substr
    split str_to_map"""
)
_DATE = re.compile(r"""(['\"])[1-9]\d{3}-\d{1,2}-\d{1,2}\1$""")
_MOMENT = re.compile(r"(?:^|[<,:])(?:date|time\w*)(?:\(\d\))?(?=$|[>,])")


def not_constant(
    value: JavaObject, functions: Collection[str] = _CONSTRUCTORS, *, moments: bool = True
) -> JavaObject | None:
    """The part of a value that is no literal and is not made of literals; None if there is none.

    A cast to a time or date may depend on the clock, so only that of the text of a date is allowed. `moments`: literals
    of times, and of dates outside of the years 1000 to 9999, are allowed.
    """
    stack = [value]
    while stack:
        node = stack.pop()
        kind = kind_of(node)
        allowed = kind in _NODES or (kind == "UnresolvedFunction" and _name(node) in functions)
        if (kind == "Cast" or (kind == "Literal" and not moments)) and _MOMENT.search(type_of(node)):
            below = node if kind == "Literal" else node.child()
            allowed = kind_of(below) == "Literal" and (
                type_of(below) == "void" or (type_of(node) == "date" and _is_date(below))
            )
        if not allowed:
            return node
        stack.extend(children(node))
    return None


def _is_date(literal: JavaObject) -> bool:
    """Whether a literal is a date, or the text of a date, with a year of four digits."""
    span = span_of(literal)
    return span is not None and _DATE.search(span.piece) is not None


def _name(function: JavaObject) -> str:
    return ".".join(name_parts(function)).lower()


def _is_fixed(node: JavaObject) -> bool:
    """Whether an expression reads no column, so that Spark may evaluate it without a row."""
    stack = [node]
    while stack:
        part = stack.pop()
        if kind_of(part) in _READS:
            return False
        stack.extend(children(part))
    return True


def folded_argument(function: JavaObject, name: str) -> JavaObject | None:
    """A part that varies of an argument which Spark evaluates while it analyses the text; None if there is none."""
    if name not in _DATA:
        return None
    for place, argument in enumerate(children(function)):
        if place not in _DATA[name] and kind_of(argument) != "Literal" and _is_fixed(argument):
            found = not_constant(argument, _CONSTRUCTORS | _SCHEMAS)
            if found is not None:
                return found
    return None


def judge_pattern(node: JavaObject, kind: str, where: Callable[[JavaObject], str]) -> None:
    """Refuse a pattern of a constant text that may take very many steps.

    Raises:
        QueryRefused: see `check_steps`.
    """
    if kind == "UnresolvedFunction" and _name(node) not in _PATTERNS:
        return
    if kind == "UnresolvedFunction" or kind == "RLike" or kind in LIKES:
        text, *patterns = children(node) or [node]
        if _is_fixed(text):
            check_steps(node, kind, text, patterns if kind in LIKES else patterns[:1], where(node))
