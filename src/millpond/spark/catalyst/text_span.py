"""Spans of SQL text for error messages, and patterns of its strings and comments."""

from __future__ import annotations

from typing import NamedTuple

STRING = r"""
    (?<!\w)[rR](?:'[^']*' | "[^"]*")                # raw: no escapes
    | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*"
    | \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$      # between $$ or $tag$
"""
"""As all these patterns, for `re.VERBOSE | re.DOTALL`. It has the group `tag`, so a pattern contains it only once."""

QUOTED_NAME = "`[^`]*`"

LINE_COMMENT = r"--(?:\\\n|[^\r\n])*"
"""A comment to the end of the line; a backslash continues it on the next line."""

MAX_COMMENT_NESTING = 8
"""Deepest nesting of comments. Time and memory of Spark's lexer grow with a power of it: 640 exhaust 1 GB of heap."""

_BRACKETED = ""
for _ in range(MAX_COMMENT_NESTING):
    _BRACKETED = rf"/\*(?:[^*/]|\*(?!/)|/(?!\*){_BRACKETED and '|'}{_BRACKETED})*\*/"

COMMENT = rf"{LINE_COMMENT} | {_BRACKETED}"
"""A comment to the end of the line, or in brackets, which may nest."""

_SHOWN = 80


class TextSpan(NamedTuple):
    """A span of SQL text: `text[start:stop]`."""

    text: str
    start: int
    stop: int

    def __str__(self) -> str:
        """Line, column and content, on one line; long content is truncated."""
        piece = " ".join(self.piece.split())
        piece = piece if len(piece) <= _SHOWN else f"{piece[: _SHOWN - 1]}…"
        return f"line {self.line}, column {self.column} (`{piece}`)"

    @property
    def line(self) -> int:
        """The line, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """The column, from 1."""
        return self.start - self.text.rfind("\n", 0, self.start)

    @property
    def piece(self) -> str:
        """The content of the span."""
        return self.text[self.start : self.stop]
