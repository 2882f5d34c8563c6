"""Records in the folder of dead letters which of them a replay has sent, for lists; Kafka decides what is still sent.

A replay writes one file after its last transaction. If it ends before, the next replay to the same target learns from
Kafka what was sent, and records that. If the last file of a span has other letters than those that were sent, the span
no longer counts: the pond has lost their record. If it was removed, the span still counts, as it does for a replay.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millpond.clock import now_us
from millpond.control.diagnose.letter_folder import LetterFolder, file_name
from millpond.control.diagnose.letter_message import Sending
from millpond.errors import PlaceError
from millpond.tokens import writer_token

_PREFIX = "_replay-"


class Span(msgspec.Struct, frozen=True):
    """The letters of one reason in the records after `after`, up to `last`, whose file has the mark `mark`."""

    after: int
    last: int
    mark: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one replay has sent to `servers`: spans of letters by reason. `topic`: another one than their own."""

    at_us: int
    who: str
    topic: str | None
    servers: str
    spans: dict[str, Span]
    recorded: bool = True


class Journal:
    """The replays of one folder, in the order of their times.

    Raises:
        PlaceError: the folder cannot be read, or a file in it is damaged.
    """

    def __init__(self, letters: LetterFolder) -> None:
        self._letters = letters
        self._names = frozenset(letters.folder.names())
        self._by_reason: dict[str, list[Entry]] = {}
        for entry in map(self._read, sorted(name for name in self._names if name.startswith(_PREFIX))):
            for reason in entry.spans:
                self._by_reason.setdefault(reason, []).append(entry)
        self._marks: dict[int, str | None] = {}

    def _read(self, name: str) -> Entry:
        try:
            return msgspec.json.decode(self._letters.folder.read(name) or b"", type=Entry)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            what = f"{self._letters.address}/{name} cannot be read: {error}."
            cure = "Restore it from a copy, or remove it: its letters are then listed as pending."
            raise PlaceError(what, cure) from error

    def sendings(self, n: int, reason: str) -> tuple[Sending, ...]:
        """The replays that have sent the letters of a record with this reason: the first one to each target."""
        return tuple(
            Sending(entry.at_us, entry.who, entry.topic, entry.recorded)
            for entry in self._of(n, reason).values()
        )  # fmt: skip

    def covers(self, n: int, reason: str, topic: str | None, servers: str) -> bool:
        """Whether a recorded replay has sent these letters to this target."""
        return (topic, servers) in self._of(n, reason)

    def _of(self, n: int, reason: str) -> dict[tuple[str | None, str], Entry]:
        found: dict[tuple[str | None, str], Entry] = {}
        for entry in self._by_reason.get(reason, ()):
            span = entry.spans[reason]
            if span.after < n <= span.last and self._mark(span.last) in (None, span.mark):
                found.setdefault((entry.topic, entry.servers), entry)
        return found

    def _mark(self, n: int) -> str | None:
        """The mark of the file of record `n`; None: there is no such file."""
        if n not in self._marks:
            self._marks[n] = self._letters.mark(n) if file_name(n) in self._names else None
        return self._marks[n]


def record(
    letters: LetterFolder, who: str, topic: str | None, servers: str, spans: Mapping[str, tuple[int, int]],
    *, recorded: bool = True,
) -> None:  # fmt: skip
    """Record what a replay has sent: by reason, after which record and up to which one.

    Raises:
        PlaceError: the folder cannot be written.
    """
    marked = {reason: Span(after, last, letters.mark(last)) for reason, (after, last) in spans.items()}
    if not marked:
        return
    entry = Entry(at_us := now_us(), who, topic, servers, marked, recorded)
    content = msgspec.json.encode(entry)
    letters.folder.create(f"{_PREFIX}{at_us:020d}-{writer_token()}", lambda file: file.write(content))
