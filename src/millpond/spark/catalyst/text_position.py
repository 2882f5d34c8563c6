"""Defines positions in SQL text, with excerpts of the text, for error messages."""

from __future__ import annotations

from typing import NamedTuple

_SHOWN = 80


class Place(NamedTuple):
    """A piece of SQL text: `text[start:stop]`."""

    text: str
    start: int
    stop: int

    def __str__(self) -> str:
        """Line, column and the piece itself, on one line; a long piece is truncated."""
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
        """The text itself."""
        return self.text[self.start : self.stop]
