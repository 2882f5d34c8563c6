"""Counts the ways in which a pattern of `a`, `b`, `.`, `|`, `*`, `+`, `?` and groups matches a text, one by one."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

Tree: TypeAlias = str | tuple["str | Tree", ...]
"""A character, or an operator and its parts: `("|", left, right)`, `(".", left, right)`, `("*", part)`."""


def written(tree: Tree) -> str:
    """The pattern of a tree."""
    if isinstance(tree, str):
        return tree
    operator, *parts = tree
    texts = [written(part) for part in parts]
    return f"({texts[0]}|{texts[1]})" if operator == "|" else f"({''.join(texts)}){'' if operator == '.' else operator}"


def ways(tree: Tree, text: str) -> int:
    """The number of ways in which a matcher that tries all choices matches the text; repetitions are not empty."""

    @cache
    def count(part: Tree, begin: int, end: int) -> int:
        if isinstance(part, str):
            return int(end == begin + 1 and text[begin] == part)
        operator, first, *rest = part
        if operator == "|":
            return count(first, begin, end) + count(rest[0], begin, end)
        if operator == ".":
            return sum(count(first, begin, middle) * count(rest[0], middle, end) for middle in range(begin, end + 1))
        if operator == "?":
            return count(first, begin, end) + (begin == end)
        if begin == end:
            return 1 if operator == "*" else count(first, begin, begin)
        repeated = ("*", first)
        return sum(count(first, begin, middle) * count(repeated, middle, end) for middle in range(begin + 1, end + 1))

    return count(tree, 0, len(text))
