"""Where a follower stands in the log: the number of the last record it has applied, and that record's mark.

The number alone is no proof. A log that has lost its newest records, or was restored from an older copy, gives their
numbers to other records. So a cursor is compared with the log by its mark, too, before anything is applied behind it.
Cursors that older versions wrote have no mark: they are accepted, and get one with the next record.
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
    "Restore the folder `log` from a newer copy, or run `millpond repair`, which takes back what sinks have of the "
    "lost records and reads their events again, or says which sink cannot do so."
)


class Cursor(NamedTuple):
    """The number of the last record applied (-1: none), and its mark ("": not known).

    The greater of two cursors is the one with the higher number; of equal numbers the one with a mark.

    >>> max(Cursor(3), Cursor(3, "ab cd"), Cursor(2, "ef gh"))
    Cursor(n=3, mark='ab cd')
    """

    n: int = NOTHING_APPLIED
    mark: str = ""


def mark_of(digest: str, writer: str) -> str:
    """The mark of a record: its digest, which tells it from every other one, and the token of the driver that wrote it,
    which tells how far two logs are the same.
    """
    return f"{digest} {writer}"


def cursor_at(entry: Entry) -> Cursor:
    """The cursor of a follower that has just applied a record."""
    return Cursor(entry.n, mark_of(entry.digest, entry.record.writer))


def cursor_of(manifest: Manifest) -> Cursor:
    """The cursor of a follower that has applied the newest record of a manifest, if there is one, and those before."""
    return Cursor() if manifest.n < 0 else Cursor(manifest.n, mark_of(manifest.digest, manifest.writer))


def is_same(cursor: Cursor, manifest: Manifest) -> bool:
    """Whether the newest record of a manifest is the one that a cursor names, as far as the cursor tells."""
    return cursor.n == manifest.n and cursor.mark in ("", cursor_of(manifest).mark)


def check_reached(follower: str, cursor: Cursor, manifest: Manifest) -> None:
    """Make sure that a follower has applied what the log holds; `manifest` is that at its cursor, or at the log's end.

    Raises:
        AheadError: it has applied a record that the log does not have, or has no longer.
    """
    if not is_same(cursor, manifest):
        raise ahead(follower, cursor, manifest.n)


def check_applied(follower: str, cursor: Cursor, record: Entry) -> None:
    """Make sure that the record a follower has applied under a record's number is this one.

    Raises:
        AheadError: it is another one.
    """
    if cursor.n == record.n and cursor.mark not in ("", cursor_at(record).mark):
        raise ahead(follower, cursor, record.n)


def ahead(follower: str, cursor: Cursor, head: int, cure: str = _CURE) -> AheadError:
    """The error for a follower that has applied a record which is not in the log; the log reaches at least `head`."""
    what = f"the log ends at record {head}" if cursor.n > head else f"record {cursor.n} of the log is another one now"
    return AheadError(f"{named(follower)} has the rows of record {cursor.n}, but {what}.", cure)


def named(follower: str) -> str:
    """A follower, for people.

    >>> named("sink:spend"), named("late:spend"), named("view")
    ('The sink of spend', 'The sink of late rows of spend', 'The view')
    """
    kind, _, query = follower.partition(":")
    told = {"sink": "sink of ", "late": "sink of late rows of "}.get(kind)
    return f"The {told}{query}" if told else f"The {follower}"


def last_common(log: Log, cursor: Cursor, head: int) -> Cursor | None:
    """The newest record up to `head` that both the log and whoever stands at `cursor` have; None: it cannot be told.

    A log that was restored goes on with the claim of a new driver. So of the driver that wrote the cursor's record the
    log has the very same records, up to the last one that it has of it.
    """
    writer = cursor.mark.partition(" ")[2]
    for n in range(min(cursor.n, head), NOTHING_APPLIED, -1) if writer else ():
        entry = decode(log.read(n) or b"", log.told(n))
        if entry.record.writer == writer:
            return cursor_at(entry)
    return None
