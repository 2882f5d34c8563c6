"""Removes the blanks and comments that Java ignores in a regular expression where the flag `x` is set.

The flag applies to the rest of its group, `(?x)`, or to a group of its own, `(?x:…)`. Java ignores blanks and comments
inside brackets, too.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.?"  # quoted text, an escape
    r"|\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])"  # flags
    r"|\[\^?\]?"  # an opening bracket, after which a closing one is a member
    "|#[^\n\r\u0085\u2028\u2029]*"  # perhaps a comment
    "|.",
    re.DOTALL,
)


def without_comments(pattern: str) -> str:
    """The pattern without ignored blanks and comments, and without the flag `x`.

    >>> without_comments("(?x) ( a | b )*  # letters")
    '(?)(a|b)*'
    >>> without_comments("a (?x: [ b ] ) # c")
    'a (?:[b]) # c'
    """
    parts: list[str] = []
    groups: list[bool] = []  # for each open group, whether the flag is set outside
    is_set, brackets, at = False, 0, 0
    while (token := _TOKEN.match(pattern, at)) is not None:
        text, (on, off, end) = token[0], token.groups()
        if brackets and text[0] in "(#" and not (is_set and text[0] == "#"):
            text = text[0]  # members
        at += len(text)
        if is_set and text[0] in "# \t\n\v\f\r":
            continue
        if text[0] == "[":
            brackets += 1
        elif brackets:
            brackets -= text == "]"
        elif end is not None:
            if end == ":":
                groups.append(is_set)
            is_set = (is_set or "x" in on) and "x" not in (off or "")
            text = text.replace("x", "")
        elif text == "(":
            groups.append(is_set)
        elif text == ")" and groups:
            is_set = groups.pop()
        elif text[0] == "#":
            at -= len(text) - 1
            text = "#"
        parts.append(text)
    return "".join(parts)
