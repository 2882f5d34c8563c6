"""Escapes control characters in texts from outside, for terminals and browsers."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # control characters, which can command a terminal
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder text
    r"\u2028\u2029"  # breaks of lines and paragraphs
    r"\ufeff\U000e0000-\U000e007f"  # the byte order mark and tags, which nothing shows
    r"\ud800-\udfff]"  # halves of surrogate pairs
)


def printable(text: str) -> str:
    """A text that comes from events or other users, with control characters as escapes.

    >>> print(printable("a\\x1b[2J\\r\\n"))
    a\\x1b[2J\\r\\n
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
