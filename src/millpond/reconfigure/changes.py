"""The changes of a pond's queries, as the JSON values of change records.

Each change is in force for every epoch after its record. `who` names the requester. `before` is the previous change
record (-1: none), so the history can be read backwards without reading epochs. `signed`: groups that keep the form of
their cells although the plan would choose another (see `model.change_history`). `apart`: the query gets a second group,
because the first one has no room for its filters. Other parts of the pond have changes with a `kind` of their own;
`change_of` skips those in `OTHERS`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from millpond.errors import CorruptError
from millpond.model.change_history import ALWAYS, StoredQuery
from millpond.model.change_json import Move, Resharded, Scale, kind_of
from millpond.model.expressions import Literal
from millpond.model.stream import Relation, Stream

OTHERS = frozenset({"map"})
"""Kinds of change records that do not concern queries."""


class _QueryChange(msgspec.Struct, frozen=True):
    """Base of the changes that contain a query; `named`: what its text names besides streams that it reads itself."""

    stored: StoredQuery = msgspec.field(name="asked")

    @property
    def name(self) -> str:
        """The query's name."""
        return self.stored.query.name


class _NamedChange(msgspec.Struct, frozen=True):
    """Base of the changes that only name a query or a version of one."""

    name: str
    who: str = ""
    before: int = -1


class Add(_QueryChange, frozen=True, tag_field="kind", tag="add", omit_defaults=True):
    """Adds a query.

    `streams`: new streams that it reads. `since_us`: its first window starts then or later (UNSET: it missed no
    event). The other times are the earliest starts of windows, before `since_us`, that an early version emits:
    `recall_us` of complete windows, computed from the events that the stream retained; `incomplete_us` of windows that
    are marked as incomplete; `backfill_us` of windows, even closed ones, computed from events that are read again
    (`ALWAYS`: all windows), which the record names.
    """

    streams: tuple[Stream, ...] = ()
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False
    recall_us: int | msgspec.UnsetType = msgspec.UNSET
    incomplete_us: int | msgspec.UnsetType = msgspec.UNSET
    backfill_us: int | msgspec.UnsetType = msgspec.UNSET
    named: tuple[Relation, ...] = ()
    steps_us: dict[str, int] = {}

    @property
    def whole_us(self) -> int | msgspec.UnsetType:
        """The earliest start of a complete window that is emitted; UNSET: all windows are complete."""
        if isinstance(self.backfill_us, int):
            return msgspec.UNSET if self.backfill_us == ALWAYS else self.backfill_us
        return self.since_us if isinstance(self.recall_us, msgspec.UnsetType) else self.recall_us


class Drop(msgspec.Struct, frozen=True, tag_field="kind", tag="drop", omit_defaults=True):
    """Drops a query and frees its state; its sinks still get the rows that were committed before.

    `streams`: sources that it read only as a part of a derived stream, and that must still be read.
    """

    name: str
    streams: tuple[Stream, ...] = ()
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class Pause(_NamedChange, frozen=True, tag_field="kind", tag="pause", omit_defaults=True):
    """Pauses a query: rows that it would emit from now on are never emitted; its state is kept."""


class Resume(_NamedChange, frozen=True, tag_field="kind", tag="resume", omit_defaults=True):
    """Resumes a paused query: its rows are emitted again, and already the first windows are complete."""


class Alter(_QueryChange, frozen=True, tag_field="kind", tag="alter", omit_defaults=True):
    """Replaces a query by a new version under the same name.

    `since_us`: the first window of the new version starts then or later; UNSET: as that of the old version.
    `until_us`: the old version emits only windows that start before this time; UNSET: it ends at once. `steps_us`: as
    `since_us`, for new inner queries.
    """

    streams: tuple[Stream, ...] = ()
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    until_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False
    named: tuple[Relation, ...] = ()
    steps_us: dict[str, int] = {}


class End(_NamedChange, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    """Ends a replaced version that has emitted its last window; `name`: the name of the version."""

    signed: tuple[str, ...] = ()


class Shadow(_QueryChange, frozen=True, tag_field="kind", tag="shadow", omit_defaults=True):
    """Runs a second version beside a query, on shared state; its rows are only compared.

    Both versions emit windows that start at `since_us` or later (UNSET: all windows of the query). Earlier windows are
    emitted by the query as it was, and are not compared. `streams`: the rows of new inner queries; `steps_us`: as
    `since_us`, for these.
    """

    since_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False
    named: tuple[Relation, ...] = ()
    streams: tuple[Stream, ...] = ()
    steps_us: dict[str, int] = {}


class Promote(_NamedChange, frozen=True, tag_field="kind", tag="promote", omit_defaults=True):
    """Exchanges a query with its shadow, which emits the windows that close from now on.

    `back`: the shadow is the previous version, so this is a rollback. `since_us`: both close windows at different
    times, so the shadow emits the windows that start at this time or later, and the query as it was all earlier ones.
    """

    back: bool = False
    since_us: int | msgspec.UnsetType = msgspec.UNSET


class Discard(_NamedChange, frozen=True, tag_field="kind", tag="discard", omit_defaults=True):
    """Drops the shadow of a query, and frees its state."""

    signed: tuple[str, ...] = ()


class Halt(msgspec.Struct, frozen=True, tag_field="kind", tag="halt", omit_defaults=True):
    """Quarantines a query, for example because it exceeded its budget or exhausted the JVM's memory: it is not computed
    any more, and its state is freed.
    """

    name: str
    why: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class SetParameter(msgspec.Struct, frozen=True, tag_field="kind", tag="param", omit_defaults=True):
    """Sets the value of a live parameter."""

    name: str
    value: Literal
    who: str = ""
    before: int = -1


class UnsetParameter(_NamedChange, frozen=True, tag_field="kind", tag="unset", omit_defaults=True):
    """Removes a live parameter that no query uses, and ends its feed."""


class Feed(msgspec.Struct, frozen=True, tag_field="kind", tag="feed", omit_defaults=True):
    """Lets a live parameter take its values from a column of the rows of a query's newest window, until it is set.

    A value is used from the epoch after its rows on.
    """

    name: str
    query: str
    column: str
    who: str = ""
    before: int = -1


Change: TypeAlias = (
    Add | Drop | Pause | Resume | Alter | End | Shadow | Promote | Discard | SetParameter | UnsetParameter | Feed
    | Scale | Move | Halt | Resharded
)


def kind_name(change: Change) -> str:
    """The name of a change in reports: that of the call that made it.

    >>> kind_name(Promote("spend")), kind_name(Promote("spend", back=True))
    ('promote', 'rollback')
    """
    if isinstance(change, Promote) and change.back:
        return "rollback"
    return str(type(change).__struct_config__.tag)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Change] = msgspec.json.Decoder(Change)


def change_text(change: Change) -> str:
    """The JSON of a change record: equal changes give equal text."""
    return _encoder.encode(change).decode()


def change_of(text: str) -> Change | None:
    """The change that `change_text` wrote; None: it does not concern queries.

    Raises:
        CorruptError: the text is not a change that this version of Millpond knows.
    """
    try:
        if kind_of(text) in OTHERS:
            return None
        return _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"A change record does not decode: {error}.", "Use the Millpond that wrote it, or a newer; else restore it."
        ) from error
