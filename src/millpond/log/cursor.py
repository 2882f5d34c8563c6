"""The position of a follower in the log: the number of the last record that it has applied,
and the mark of that record: its digest and its writer.

The number alone is not enough: if a log has lost its newest records, or was restored from an older copy, it gives their
numbers to other records. So the mark of a cursor is also compared with the log, before later records are applied.
Cursors of older versions have no mark; they are accepted, and get a mark with the next record.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.errors import AheadError
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import Entry, decode

NOTHING_APPLIED = -1

_CURE = (
    "The newest records of the log were lost, or the pond's folder was restored from an older copy. "
    "Restore the folder `log` from a newer copy, or run `millpond repair`, which removes the rows of the lost records "
    "from the sinks and reads their events again; it names each sink that cannot remove rows."
)


class Cursor(NamedTuple):
    """The number of the last applied record (-1: none), and its mark ("": unknown).

    The greater of two cursors is the one with the higher number or, if the numbers are equal, the one with a mark.

    >>> max(Cursor(3), Cursor(3, "ab cd"), Cursor(2, "ef gh"))
    Cursor(n=3, mark='ab cd')
    """

    n: int = NOTHING_APPLIED
    mark: str = ""


def mark_of(digest: str, writer: str) -> str:
    """The mark of a record: its digest, and the token of the driver that wrote it.

    The digest identifies the record. The token helps to find the last record that two logs have in common.
    """
    return f"{digest} {writer}"


def cursor_at(entry: Entry) -> Cursor:
    """The cursor of a follower that has just applied a record."""
    return Cursor(entry.n, mark_of(entry.digest, entry.record.writer))


def cursor_of(manifest: Manifest) -> Cursor:
    """The cursor of a follower that has applied all records of a manifest, if there are any."""
    return Cursor() if manifest.n < 0 else Cursor(manifest.n, mark_of(manifest.digest, manifest.writer))


def is_same(cursor: Cursor, manifest: Manifest) -> bool:
    """Whether a cursor names the newest record of a manifest; a cursor without a mark is compared by number only."""
    return cursor.n == manifest.n and cursor.mark in ("", cursor_of(manifest).mark)


def check_reached(follower: str, cursor: Cursor, manifest: Manifest) -> None:
    """Checks that a follower has applied records of this log; `manifest` is the one at its cursor, or at the log's end.

    Raises:
        AheadError: the follower has applied a record that the log does not have, or no longer has.
    """
    if not is_same(cursor, manifest):
        raise ahead(follower, cursor, manifest.n)


def check_applied(follower: str, cursor: Cursor, record: Entry) -> None:
    """Checks that `record` is the one that a follower has applied, if their numbers are equal.

    Raises:
        AheadError: the follower has applied another record with this number.
    """
    if cursor.n == record.n and cursor.mark not in ("", cursor_at(record).mark):
        raise ahead(follower, cursor, record.n)


def ahead(follower: str, cursor: Cursor, head: int, cure: str = _CURE) -> AheadError:
    """The error for a follower that has applied a record that is not in the log, which reaches at least `head`."""
    what = f"the log ends at record {head}" if cursor.n > head else f"record {cursor.n} of the log is another one now"
    return AheadError(f"{named(follower)} has the rows of record {cursor.n}, but {what}.", cure)


def named(follower: str) -> str:
    """The name of a follower for messages.

    >>> named("sink:spend"), named("late:spend"), named("view")
    ('The sink of spend', 'The sink of late rows of spend', 'The view')
    """
    kind, _, query = follower.partition(":")
    kind_text = {"sink": "sink of ", "late": "sink of late rows of "}.get(kind)
    return f"The {kind_text}{query}" if kind_text else f"The {follower}"


def last_common(log: Log, cursor: Cursor, head: int) -> Cursor | None:
    """The newest record up to `head` that both the log and the follower at `cursor` have; None if it is unknown.

    A restored log continues with the claim of a new driver. So all records in the log by the driver that wrote the
    cursor's record are common to both, and the last of these is the result.
    """
    writer = cursor.mark.partition(" ")[2]
    for n in range(min(cursor.n, head), NOTHING_APPLIED, -1) if writer else ():
        entry = decode(log.read(n) or b"", log.describe(n))
        if entry.record.writer == writer:
            return cursor_at(entry)
    return None
