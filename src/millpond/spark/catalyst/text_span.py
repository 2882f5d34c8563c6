"""A span of SQL text: its line, column and content, for error messages."""

from __future__ import annotations

from typing import NamedTuple

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
