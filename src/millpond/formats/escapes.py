"""Escapes control characters in texts from outside, for terminals and browsers."""

from __future__ import annotations

import re

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which can command a terminal, marks that reorder text, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """A text that comes from events or other users, with control characters as escapes.

    >>> print(printable("a\\x1b[2J\\r\\n"))
    a\\x1b[2J\\r\\n
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
