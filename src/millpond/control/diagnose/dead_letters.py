"""Lists folders of dead letters and sends them again, for `millpond dlq` and the console, without Spark."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.clock import moment_us, utc
from millpond.connections import check_target, connection
from millpond.control.checks.input_files import options_of
from millpond.control.diagnose.letter_folder import LetterFolder
from millpond.control.diagnose.letter_message import LetterKind, Sending
from millpond.control.diagnose.replay_journal import Journal, record
from millpond.errors import AheadError, ForeignPondError, PlaceError, RequestError, SetupError, StoreError
from millpond.followers.sinks.kinds import sink_path
from millpond.formats.escapes import printable
from millpond.formats.malformed_reasons import misfit_text
from millpond.log.cursor import Cursor
from millpond.model.spec import PondSpec
from millpond.runtime.packets.row_batches import is_timeless
from millpond.version import install

if TYPE_CHECKING:
    from millpond.followers.sinks.kafka_publisher import Publisher

SHOWN_BYTES = 200
"""The most of a value that is shown."""

_NEWEST = 20
"""The number of newest dead letters of a stream that the console shows."""

_NEWEST_FILES = 100
"""The number of newest files of which `newest_reasons` counts the letters."""


class StreamLetters(NamedTuple):
    """The dead letters of one stream: where they are kept, and their kinds.

    `connection`: that of the stream's topics; None: the only one.
    """

    stream: str
    folder: Path
    connection: str | None
    kinds: tuple[LetterKind, ...]

    def check(self) -> None:
        """Check that requests over the network may send them again.

        Raises:
            QueryRefused: the operator does not offer one of the topics. SetupError: there is no such connection.
        """
        for topic in sorted({kind.topic for kind in self.kinds}):
            check_target("kafka", self.connection, topic)

    def newest(self, reason: str | None = None, *, pending: bool = False) -> list[str]:
        """Lines on the newest ones, see `lines`."""
        return [*lines(self.folder, _NEWEST, reason, pending=pending)] if self.kinds else []


def stream_letters(spec: PondSpec) -> Iterator[StreamLetters]:
    """The dead letters of each stream that keeps them; without any while its folder has none.

    Raises:
        PlaceError: a folder cannot be read.
    """
    for stream in spec.sources:
        if (sink := stream.on_malformed.sink) is None:
            continue
        folder = Path(sink_path(sink, "The folder of dead letters"))
        try:
            found = tuple(kinds(folder))
        except ForeignPondError:  # no epoch has written a dead letter
            found = ()
        yield StreamLetters(stream.name, folder, options_of(stream).get("connection"), found)


def kinds(folder: Path) -> list[LetterKind]:
    """The kinds of dead letters in a folder, the most frequent first.

    Raises:
        ForeignPondError, PlaceError: as `LetterFolder` and `Journal`.
    """
    letters = LetterFolder.of(folder)
    tables = [
        table.append_column("n", pa.array([n] * len(table), pa.int64()))
        for n, table in letters.parts(["topic", "reason", "timestamp"])
    ]
    if not tables:
        return []
    grouped = pa.concat_tables(tables).group_by(["topic", "reason", "n"])
    journal, found = Journal(letters), dict[tuple[str, str, tuple[Sending, ...]], _Group]()
    for row in grouped.aggregate([([], "count_all"), ("timestamp", "min"), ("timestamp", "max")]).to_pylist():
        kind = row["topic"], row["reason"], journal.sendings(row["n"], row["reason"])
        of_record = _Group(row["count_all"], row["timestamp_min"], row["timestamp_max"])
        found[kind] = found[kind].with_more(of_record) if kind in found else of_record
    rows = [
        LetterKind(topic, reason, group.letters, _us(group.first), _us(group.last), sent)
        for (topic, reason, sent), group in found.items()
    ]
    return sorted(rows, key=lambda kind: (-kind.letters, kind.topic, kind.reason, [one.at_us for one in kind.sent]))


class _Group(NamedTuple):
    """Letters of one kind, with the times of the first and the last."""

    letters: int
    first: datetime | None
    last: datetime | None

    def with_more(self, other: _Group) -> _Group:
        times = [one for one in (*self[1:], *other[1:]) if one is not None]
        return _Group(self.letters + other.letters, min(times, default=None), max(times, default=None))


def sent_text(sent: Sequence[Sending]) -> str:
    """Which replays have sent letters; empty if none has.

    >>> sent_text([Sending(1_357_016_400_000_000, "ann"), Sending(1_357_016_460_000_000, "", "fixed", False)])
    'sent 2013-01-01 05:00:00Z by ann; sent to fixed before 2013-01-01 05:01:00Z'
    """
    return "; ".join(
        f"sent{f' to {one.topic}' if one.topic else ''} {'' if one.recorded else 'before '}{utc(one.at_us)}"
        f"{f' by {one.who}' if one.who else ''}"
        for one in sent
    )


def newest_reasons(folder: Path, after: int, later: int) -> tuple[Counter[str], Counter[str]]:
    """The newest dead letters after record `after` by reason, and those after `later`, in one reading of the files.

    Both are empty if the folder cannot be read.
    """
    found, newer = Counter[str](), Counter[str]()
    with suppress(ForeignPondError, PlaceError):
        newest = islice(LetterFolder.of(folder).parts(["reason"], newest_first=True), _NEWEST_FILES)
        for n, table in takewhile(lambda part: part[0] > after, newest):
            reasons = table["reason"].to_pylist()
            found.update(reasons)
            newer.update(reasons if n > later else ())
    return found, newer


def lines(folder: Path, limit: int, reason: str | None = None, *, pending: bool = False) -> Iterator[str]:
    """The newest dead letters, the newest first, as text without control characters.

    `reason`: only those whose reason contains it. `pending`: only those that no replay has sent.
    """
    shown, letters = 0, LetterFolder.of(folder)
    journal = Journal(letters)
    for n, table in letters.parts(newest_first=True):
        reasons = [one for one in table["reason"].unique().to_pylist() if _contains(one, reason)]
        sent = {one: sent_text(journal.sendings(n, one)) for one in reasons}
        chosen = [one for one in reasons if not (pending and sent[one])]
        table = table.filter(pc.is_in(table["reason"], pa.array(chosen, table["reason"].type)))
        for row in reversed(table.slice(max(len(table) - limit, 0)).to_pylist()):
            if shown == limit:
                return
            shown += 1
            text = misfit_text(row["reason"], row["value"])
            why = f"{row['reason']}: {text}" if text else row["reason"]
            at = f"{row['topic']}-{row['partition']} at {row['offset']}, {utc(_us(row['timestamp']))}"
            marked = f" ({sent[row['reason']]})" if sent[row["reason"]] else ""
            yield printable(f"{at}: {why}{marked}")
            yield f"  {printable(_text(row['value']))}"


def _contains(reason: str, text: str | None) -> bool:
    return text is None or text.lower() in reason.lower()


class Unsent(NamedTuple):
    """The dead letters of one topic and reason that a replay would send."""

    topic: str
    reason: str
    letters: int


class Replayed(NamedTuple):
    """The number of dead letters that a replay sent, and of those that it left out.

    Events whose time does not compute are left out of a replay to their own topic, unless they are requested: queries
    that do not use this time have processed them already.
    """

    sent: int
    left_out: int


def replay(
    folder: Path, connection: str | None, topic: str | None, reason: str | None = None, *, timeless: bool = False,
    who: str = "",
) -> Replayed:  # fmt: skip
    """Send the dead letters that were not sent before to their original topics, or to `topic`.

    The dead letters of one record of the log are sent in one transaction, so a crash repeats nothing. `reason`: send
    only letters whose reason is or contains this text; a later replay of all leaves them out. `timeless`: also send
    events whose time does not compute. If not all are sent, there is one transaction per reason. The folder records
    what was sent, for lists, by whom (`who`).

    Raises:
        SetupError: the library for Kafka is missing, or the connection does not exist.
        StoreError: Kafka did not take them.
        RequestError: no letter has this reason.
        PlaceError: they were sent, but the folder cannot record that.
    """
    replays = _Replays(folder, connection, topic)
    try:
        return _replay(replays, reason, timeless)
    except StoreError as error:  # unlike a sink, a replay is not tried again by itself
        raise StoreError(error.what, "Mend this, and replay again: what was sent is not sent twice.") from error
    finally:
        replays.record(who)


def _replay(replays: _Replays, reason: str | None, timeless: bool) -> Replayed:
    reasons, left_out = replays.reasons(reason, timeless)
    skipped = sum(kind.letters for kind in replays.unsent(left_out))
    if not reasons:
        return Replayed(0, skipped)
    every = replays.publisher(None)
    singles = {one: replays.publisher(one) for one in reasons}
    if reason is None and not left_out:
        floor = replays.connect(every)
        floors = {}
        for one, single in singles.items():  # replays of single reasons that are still running are fenced, too
            floors[one] = max(floor, replays.connect(single))
            single.close()
        return Replayed(replays.send(every, floors), 0)
    # All publishers of single reasons are connected before that of all letters. So a replay of all that begins later
    # fences each of them, and the floor contains what an earlier one sent.
    floors = {one: replays.connect(single) for one, single in singles.items()}
    floor = replays.connect(every)
    every.close()
    sent = sum(replays.send(single, {one: max(floor, floors[one])}) for one, single in singles.items())
    return Replayed(sent, skipped)


def unsent(
    folder: Path, connection: str | None, topic: str | None, reason: str | None = None, *, timeless: bool = False
) -> tuple[list[Unsent], int]:
    """What `replay` would send, the most frequent first, and the number of letters that it would leave out.

    Nothing is sent, and no running replay is disturbed.

    Raises: as `replay`.
    """
    replays = _Replays(folder, connection, topic)
    reasons, left_out = replays.reasons(reason, timeless)
    return replays.unsent(reasons), sum(kind.letters for kind in replays.unsent(left_out))


def left_out_line(letters: int) -> str:
    """Says why a replay leaves dead letters out, and how they can be sent."""
    return (
        f"{letters} left out: their event time does not compute. Queries that do not use this time have processed "
        "these events, and would emit their rows twice. `millpond dlq replay` sends them with --timeless, or with --to "
        "to another topic."
    )


def repeated_line(found: Iterable[Unsent]) -> str:
    """Says that queries emit rows of replayed events twice; empty if no time of these letters fails to compute."""
    letters = sum(kind.letters for kind in found if is_timeless(kind.reason))
    return (
        f"The event time of {letters} of them does not compute: queries that do not use this time have processed these "
        "events, and emit their rows twice."
        if letters
        else ""
    )


class _Replays:
    """The dead letters of a folder, and the publishers that send them to a topic: one for all, and one per reason."""

    def __init__(self, folder: Path, connection: str | None, topic: str | None) -> None:
        try:
            from millpond.followers.sinks.kafka_publisher import ANY_PARTITION, Publisher
        except ImportError as error:
            raise SetupError(f"The library for Kafka is missing: {error}.", f"Run `{install('kafka')}`.") from error
        self._make, self._any = Publisher, ANY_PARTITION
        self._letters, self._connection, self._topic = LetterFolder.of(folder), connection, topic
        self._parts = [*self._letters.parts()]
        self._floors: dict[str, int] = {}  # by reason, the last record whose letters earlier replays have sent
        self._sent: dict[str, tuple[int, int]] = {}  # by reason, the records between which this one has sent letters

    def reasons(self, wanted: str | None, timeless: bool) -> tuple[list[str], list[str]]:
        """The reason that is this text, or those that contain it; those that are sent, and those that are left out."""
        known = sorted({reason for _, table in self._parts for reason in table["reason"].unique().to_pylist()})
        exact = [reason for reason in known if reason == wanted]
        found = exact or [reason for reason in known if _contains(reason, wanted)]
        if known and not found:
            raise RequestError(f"No dead letter has a reason with {wanted!r}.", f"The reasons are: {'; '.join(known)}.")
        elsewhere = self._topic is not None and all(
            self._topic not in table["topic"].unique().to_pylist() for _, table in self._parts
        )
        if timeless or elsewhere:
            return found, []
        return [one for one in found if not is_timeless(one)], [one for one in found if is_timeless(one)]

    def unsent(self, reasons: Sequence[str]) -> list[Unsent]:
        """The letters with these reasons that were not sent, the most frequent first; no publisher is fenced."""
        floor = self.floor(self.publisher(None).reached()) if reasons else -1
        floors = {one: max(floor, self.floor(self.publisher(one).reached())) for one in reasons}
        rows = (row for _, _, rows in self.pending(floors) for row in rows)
        found = Counter((self._topic or row["topic"], row["reason"]) for row in rows)
        return [Unsent(*kind, letters) for kind, letters in found.most_common()]

    def publisher(self, reason: str | None) -> Publisher:
        """The publisher of all letters, or of those with one reason; its name does not depend on the other letters."""
        marker = self._letters.marker
        named = [marker.pond, marker.query, self._target, *([] if reason is None else [reason])]
        digest = hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:16]
        return self._make(f"millpond-replay-{digest}", self._target, self._connection)

    @property
    def _target(self) -> str:
        return self._topic or str(pc.min(self._parts[0][1]["topic"]).as_py())

    def connect(self, publisher: Publisher) -> int:
        """Fence other replays by this publisher, and return the last record whose letters it sent."""
        return self.floor(publisher.connect())

    def floor(self, done: Cursor) -> int:
        """The last record whose letters were sent.

        Raises:
            AheadError: the pond has lost that record.
        """
        for n, _ in self._parts:
            if n == done.n and done.mark not in ("", self._letters.mark(n)):
                raise AheadError(
                    f"Dead letters of record {n} in {self._letters.address} were sent to {self._target}, and now "
                    "differ: the pond has lost that record.",
                    "Give another --to, or --connection, to send all current ones.",
                )
        return done.n

    def pending(self, floors: Mapping[str, int]) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
        """The letters of each record, with its mark, that are above the floor of their reason."""
        for n, table in self._parts:
            reasons = pa.array([reason for reason, floor in floors.items() if n > floor], table["reason"].type)
            if rows := table.filter(pc.is_in(table["reason"], reasons)).to_pylist():
                yield n, self._letters.mark(n), rows

    def send(self, publisher: Publisher, floors: Mapping[str, int]) -> int:
        """Send the pending letters by a connected publisher, and close it."""
        sent = 0
        self._floors |= floors
        for n, mark, rows in self.pending(floors):
            publisher.begin(
                (
                    self._topic or row["topic"], row["value"], row["key"],
                    self._any if self._topic else row["partition"],
                    [("millpond-replay", f"{row['topic']}-{row['partition']}@{row['offset']}")],
                )
                for row in rows
            )  # fmt: skip
            publisher.commit(Cursor(n, mark))
            sent += len(rows)
            self._sent |= {reason: (floors[reason], n) for reason in {row["reason"] for row in rows}}
        publisher.close()
        return sent

    def record(self, who: str) -> None:
        """Record in the folder what was sent, and what earlier replays have sent that could not record themselves."""
        if not self._floors:
            return
        servers, journal = connection(self._connection).servers, Journal(self._letters)
        missed = {
            reason: (-1, floor) for reason, floor in self._floors.items()
            if any(
                n <= floor and reason in table["reason"].unique().to_pylist()
                and not journal.covers(n, reason, self._topic, servers) for n, table in self._parts
            )
        }  # fmt: skip
        try:
            record(self._letters, "", self._topic, servers, missed, recorded=False)
            record(self._letters, who, self._topic, servers, self._sent)
        except PlaceError as error:
            cure = "Let this user write to the folder, and replay again: that records them, and sends nothing twice."
            raise PlaceError(f"Dead letters were sent, but this could not be recorded. {error.what}", cure) from error


def _us(timestamp: datetime | None) -> int | None:
    return None if timestamp is None else moment_us(timestamp)


def _text(value: bytes | None) -> str:
    if value is None:
        return "(no value)"
    text = value[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text + ("…" if len(value) > SHOWN_BYTES else "")
