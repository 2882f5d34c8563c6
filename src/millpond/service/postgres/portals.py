"""The portals of a connection, whose rows are fetched in portions; cursors of SQL are portals, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from millpond.errors import BusyError, MillpondError, UnsupportedQuery
from millpond.service.postgres.client_sql import Statement, statements_of
from millpond.service.postgres.sandbox import StatementError
from millpond.service.postgres.session import Answer

_NAME = r'("(?:[^"]|"")+"|\w+)'
_DECLARE = re.compile(
    rf"DECLARE\s+{_NAME}\s+(?:(?:(BINARY)|INSENSITIVE|ASENSITIVE|NO\s+SCROLL)\s+)*CURSOR\s+"
    r"(?:WITHOUT\s+HOLD\s+|(WITH)\s+HOLD\s+)?FOR\s+(.+)",
    re.IGNORECASE | re.DOTALL,
)
_FETCH = re.compile(
    rf"(FETCH|MOVE)\s+(?:(?:(NEXT)|(?:FORWARD\s+)?(ALL|\d+)|FORWARD)\s+)?(?:(?:FROM|IN)\s+)?{_NAME}", re.IGNORECASE
)
_CLOSE = re.compile(rf"CLOSE\s+{_NAME}", re.IGNORECASE)
_MOST_DIGITS = 18
"""The most digits of the number of a FETCH, so that it fits into 64 bits."""


class Portal:
    """A statement with its values.

    `waiting`: rows that were read and not fetched yet. `error`: why there are no more rows than these. `cursor`: it was
    declared by SQL.
    """

    def __init__(
        self, statement: Statement, values: Sequence[str], formats: Sequence[int], *, cursor: bool = False
    ) -> None:  # fmt: skip
        self.statement, self.values, self.formats, self.cursor = statement, values, formats, cursor
        self.answer: Answer | None = None
        self.waiting: list[pa.RecordBatch] = []
        self.error: MillpondError | None = None
        self.sent = 0

    def next_rows(self) -> pa.RecordBatch | None:
        """The next rows; None: there are no more.

        Raises:
            MillpondError: they cannot be computed. Each later call raises it too, because the result is incomplete.
        """
        if self.waiting:
            return self.waiting.pop(0)
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        try:
            return next(self.answer.batches, None)
        except MillpondError as error:
            self.error = error
            raise

    def take(self, most: int | None) -> Iterator[pa.RecordBatch]:
        """The next rows, at most `most`, None: all; errors as `next_rows`."""
        while most != 0 and (batch := self.next_rows()) is not None:
            rows = batch if most is None else batch.slice(0, most)
            if rows.num_rows < batch.num_rows:
                self.waiting.insert(0, batch.slice(rows.num_rows))
            most = None if most is None else most - rows.num_rows
            yield rows

    def settle(self, most: int) -> int:
        """Read all rows, so that another statement may run, and return their bytes.

        If they take more than `most` bytes, or cannot be computed, the error is raised when they are fetched.
        """
        if self.answer is None or self.error is not None:
            return 0
        size: int = sum(batch.nbytes for batch in self.waiting)
        try:
            for batch in self.answer.batches:
                self.waiting.append(batch)
                size += batch.nbytes
                if size > most:
                    self.waiting, size = [], 0
                    raise BusyError(
                        f"The rows that were not fetched before the next statement take more than {most:,} bytes.",
                        "Fetch all rows of a result before the next statement, or select fewer.",
                    )
        except MillpondError as error:
            self.error = error
        return size


class Declare(NamedTuple):
    """A DECLARE: the cursor's name and statement; `binary`: its rows are fetched in the binary format."""

    name: str
    statement: Statement
    binary: bool


class Fetch(NamedTuple):
    """A FETCH of the next rows, or a MOVE beyond them, at most `most`, None: all."""

    name: str
    most: int | None
    moves: bool


class Close(NamedTuple):
    """A CLOSE of a cursor; ALL is the name `all`."""

    name: str


def cursor_request(statement: Statement) -> Declare | Fetch | Close | None:
    """The request of a statement about a cursor; None: it is another statement.

    Raises:
        MillpondError: the cursor shall outlive its transaction, or a number is too large.

    >>> cursor_request(*statements_of('DECLARE "c 1" NO SCROLL CURSOR WITHOUT HOLD FOR SELECT 1')).name
    'c 1'
    >>> cursor_request(*statements_of("fetch forward 7 from C")), cursor_request(*statements_of("MOVE ALL IN c"))
    (Fetch(name='c', most=7, moves=False), Fetch(name='c', most=None, moves=True))
    >>> cursor_request(*statements_of("FETCH c")), cursor_request(*statements_of("SELECT 1"))
    (Fetch(name='c', most=1, moves=False), None)
    """
    if (found := _DECLARE.fullmatch(statement.text)) is not None:
        if found[3]:
            raise UnsupportedQuery("A cursor ends with its transaction.", "Leave out WITH HOLD.")
        inner = statements_of(found[4])
        return Declare(_identifier(found[1]), inner[0], bool(found[2])) if inner else None
    if (found := _FETCH.fullmatch(statement.text)) is not None:
        amount = (found[3] or "1").upper()
        if amount != "ALL" and len(amount) > _MOST_DIGITS:
            raise StatementError(
                f"The number of rows has more than {_MOST_DIGITS} digits.", "Fetch fewer rows, or ALL.", "22003"
            )
        most = None if amount == "ALL" else int(amount)
        return Fetch(_identifier(found[4]), most, found[1].upper() == "MOVE")
    closed = _CLOSE.fullmatch(statement.text)
    return None if closed is None else Close(_identifier(closed[1]))


def _identifier(written: str) -> str:
    return written[1:-1].replace('""', '"') if written.startswith('"') else written.lower()
