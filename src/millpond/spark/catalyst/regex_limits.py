"""Limits regular expressions: refuses those that may take 2^n steps, and texts that are too long for Java's stack.

Java's matcher calls itself for each repetition of a group. `'(a|b)*c'` on a long text ends with a StackOverflowError,
after which Spark ends its JVM. So if such a pattern, or one that comes from a column, is applied to a text too long for
the stack, the event is dead for the query.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from millpond.errors import QueryRefused
from millpond.kernels.regex_cost import PatternCost, pattern_cost
from millpond.spark.catalyst.checked_values import bound_once, sized, unless_larger
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, kind_of, text_of
from millpond.spark.catalyst.value_bounds import Limiter, is_accepted
from millpond.spark.masters import is_local_master

FRAME_BYTES = 100
"""Bytes of stack that one call of Java's matcher takes at most.

Of 51 kinds of patterns, Java's interpreter takes up to 98 (`(\\X)*`) and compiled code up to 73.
"""
UNKNOWN_FRAMES = 40
"""Assumed number of calls for each repetition of a group, for a pattern that comes from a column."""
TOO_LONG = "a text is too long for its pattern"

_KINDS = {
    "RLike": (1,), "RegExpExtract": (1,), "RegExpExtractAll": (1,), "RegExpReplace": (1,), "RegExpInStr": (1,),
    "RegExpCount": (1,), "StringSplit": (1,), "StringToMap": (1, 2),
}  # fmt: skip
"""Expressions that match the text of their first child with patterns, and the places of these patterns."""
_LIKES_OF_MANY = ("LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny")
LIKES = ("Like", "ILike", *_LIKES_OF_MANY)
"""Expressions that match a text with patterns of LIKE."""
_REPEATS = re.compile(r"[*+?{|]")
MOST_STEPS = 10**9
"""The most steps that the patterns of a constant text may take; the driver matches it while it analyses a query."""
_LONG = 10**6
"""Assumed number of characters of a constant text that functions compute."""
_UNKNOWN = 10
"""Assumed number of repetitions in a constant pattern that functions compute."""
_STACK = re.compile(r"-Xss(\d+)([kKmMgG]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_USUAL_STACK = 1 << 20


def check_pattern(catalyst: Catalyst, node: JavaObject, kind: str) -> None:
    """Refuse a constant pattern that may take 2^n steps for n characters, or very many for a constant text.

    Raises:
        QueryRefused: the pattern may do so.
    """
    if is_accepted():
        return
    if kind in _KINDS or kind in LIKES:
        text, *patterns = children(node)
        if text.foldable():
            given = [children(node)[place] for place in _KINDS[kind]] if kind in _KINDS else patterns
            check_steps(node, kind, text, given, f"of `{text_of(node)[:200]}`")
    for pattern in _patterns(node, kind):
        found = _cost(catalyst, pattern)
        if found is None or found.exponential is None:
            continue
        shown = found.exponential if len(found.exponential) <= 100 else found.exponential[:97] + "..."
        raise QueryRefused(
            f"The pattern of `{text_of(node)[:200]}` may take 2^n steps for n characters: `{shown}` can match one text"
            " in many ways.",
            "Let each repeated part begin or end with a character that the others do not have, as in (\\w+,)*, or make"
            " the inner repetition possessive, as in (\\w++,?)*.",
        )


def check_steps(node: JavaObject, kind: str, text: JavaObject, patterns: Sequence[JavaObject], where: str) -> None:
    """Refuse patterns of a constant text that may take n^k steps for n characters and k repetitions.

    Raises:
        QueryRefused: they may take more than `MOST_STEPS`.
    """
    characters = len(str(text.toString())) if kind_of(text) == "Literal" else _LONG
    shown = [str(one.toString()) if kind_of(one) == "Literal" else None for one in patterns]
    if kind in _LIKES_OF_MANY:
        shown = [str(node.patterns().mkString(" "))]
    if kind in LIKES:
        counts = [_UNKNOWN if one is None else one.count("%") for one in shown]
    else:  # these also try each place of the text
        counts = [_UNKNOWN if one is None else 1 + len(_REPEATS.findall(one)) for one in shown]
    repeats = max(counts, default=0)
    if max(characters, 2) ** repeats > MOST_STEPS:
        raise QueryRefused(
            f"The pattern {where} may take n^{repeats} steps for the n characters of its text, which is a constant.",
            "Write the result itself, or match a column.",
        )


def _patterns(node: JavaObject, kind: str) -> list[JavaObject]:
    """The patterns of an expression, which are empty for most kinds; the key of `parse_url` is a part of a pattern."""
    parts = children(node) if kind in _KINDS or kind == "Invoke" else []
    if kind == "Invoke":
        return parts[3:4] if "ParseUrlEvaluator" in str(parts[0].toString()) else []
    return [parts[place] for place in _KINDS.get(kind, ())]


def stack_guarded(catalyst: Catalyst, expression: JavaObject) -> JavaObject:
    """The expression, changed so that a text too long for a recursive pattern raises."""
    made = [stack_guarded(catalyst, part) for part in children(expression)]
    expression = catalyst.rebuilt(expression, made)
    kind = kind_of(expression)
    if kind not in _KINDS or made[0].foldable():
        return expression
    costs = [_cost(catalyst, made[place]) for place in _KINDS[kind]]
    frames = max(UNKNOWN_FRAMES if found is None else found.frames for found in costs)
    if not frames:
        return expression
    most = stack_bytes(catalyst) // (FRAME_BYTES * frames)
    return bound_once(
        catalyst, made[:1],
        lambda held: unless_larger(
            catalyst, sized(catalyst, held[0]), most, catalyst.rebuilt(expression, [held[0], *made[1:]]), TOO_LONG
        ),
    )  # fmt: skip


def stack_bytes(catalyst: Catalyst) -> int:
    """The stack size in bytes of a thread that evaluates expressions: in a cluster, of an executor's thread."""
    conf = catalyst.spark.sparkContext.getConf()
    is_local = is_local_master(str(conf.get("spark.master", "")))
    options = conf.get(f"spark.{'driver' if is_local else 'executor'}.extraJavaOptions", "") or ""
    found = _STACK.findall(options)
    return int(found[-1][0]) * _UNITS[found[-1][1].lower()] if found else _USUAL_STACK


def _cost(catalyst: Catalyst, pattern: JavaObject) -> PatternCost | None:
    """The cost of a constant pattern; None if it comes from a column, or if functions of an older query compute it.

    Raises:
        QueryRefused: the constant is too large.
    """
    if not pattern.foldable():
        return None
    if kind_of(pattern) != "Literal":
        if is_accepted():
            return None
        Limiter(catalyst, checks=False).limited(pattern)
    return pattern_cost(str(catalyst.constant(pattern) or ""))
