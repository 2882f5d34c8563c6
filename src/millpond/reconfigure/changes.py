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
from millpond.model.change_history import ALWAYS, Asked
from millpond.model.change_json import Move, Scale, kind_of
from millpond.model.expressions import Literal
from millpond.model.stream import Stream

OTHERS = frozenset({"map"})
"""Kinds of changes that are not of queries."""


class _Asking(msgspec.Struct, frozen=True):
    """What begins with a query that is asked."""

    asked: Asked

    @property
    def name(self) -> str:
        """The query's name."""
        return self.asked.query.name


class Add(_Asking, frozen=True, tag_field="kind", tag="add", omit_defaults=True):
    """A query more. `streams`: those it reads that the pond did not have; `since_us`: its first window starts there or
    later (UNSET: nothing that it reads has been read before). `recall_us`: windows that start there or later, but
    before `since_us`, are answered by a version of its own that begins with the events that its stream retained.
    `incomplete_us`: so are those that start there or later, and say that they are not complete. `backfill_us`: so are
    those that start there or later (`ALWAYS`: all), also if they have closed; the record names the events.
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

    @property
    def whole_us(self) -> int | msgspec.UnsetType:
        """The earliest start of a window that is answered, and whole; UNSET: all are."""
        if isinstance(self.backfill_us, int):
            return msgspec.UNSET if self.backfill_us == ALWAYS else self.backfill_us
        return self.since_us if isinstance(self.recall_us, msgspec.UnsetType) else self.recall_us


class Drop(msgspec.Struct, frozen=True, tag_field="kind", tag="drop", omit_defaults=True):
    """A query less; its state goes, its sinks get what was committed before. `streams`: sources to be read on for
    those that it read only as a part of a derived stream.
    """

    name: str
    streams: tuple[Stream, ...] = ()
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class Pause(msgspec.Struct, frozen=True, tag_field="kind", tag="pause", omit_defaults=True):
    """Rows of a query that would leave from now on do not, for ever; its state is kept."""

    name: str
    who: str = ""
    before: int = -1


class Resume(msgspec.Struct, frozen=True, tag_field="kind", tag="resume", omit_defaults=True):
    """Rows of a paused query leave again, the first windows as whole as any."""

    name: str
    who: str = ""
    before: int = -1


class Alter(_Asking, frozen=True, tag_field="kind", tag="alter", omit_defaults=True):
    """Another version of a query, under its name.

    `since_us`: the new version's first window starts there or later; UNSET: as the old one's. `until_us`: no window of
    the old version starts there or later, and it answers those before; UNSET: it ends at once.
    """

    streams: tuple[Stream, ...] = ()
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    until_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False


class End(msgspec.Struct, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    """A version that was replaced has answered its last window; `name` is the version's own."""

    name: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class Shadow(_Asking, frozen=True, tag_field="kind", tag="shadow", omit_defaults=True):
    """Another version beside a query, on shared state, whose rows are only compared. Both answer windows that start at
    `since_us` or later (UNSET: all that the query answers); earlier ones are left to the query as it was.
    """

    since_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False


class Promote(msgspec.Struct, frozen=True, tag_field="kind", tag="promote", omit_defaults=True):
    """A query and its shadow change places: windows that close from now on are told by the other. `back`: that is the
    version before, so it is a rollback.
    """

    name: str
    who: str = ""
    before: int = -1
    back: bool = False


class Discard(msgspec.Struct, frozen=True, tag_field="kind", tag="discard", omit_defaults=True):
    """The shadow of a query goes, with its state."""

    name: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class Halt(msgspec.Struct, frozen=True, tag_field="kind", tag="halt", omit_defaults=True):
    """A query is quarantined, for it costs more than its budget or ended the JVM's memory: it is answered no more, and
    its state goes.
    """

    name: str
    why: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class SetParameter(msgspec.Struct, frozen=True, tag_field="kind", tag="param", omit_defaults=True):
    """Another value of a live parameter."""

    name: str
    value: Literal
    who: str = ""
    before: int = -1


class Feed(msgspec.Struct, frozen=True, tag_field="kind", tag="feed", omit_defaults=True):
    """A live parameter takes its values from a column of the rows that a query tells of its newest window, from the
    epoch after these on, until it is set.
    """

    name: str
    query: str
    column: str
    who: str = ""
    before: int = -1


Change: TypeAlias = (
    Add | Drop | Pause | Resume | Alter | End | Shadow | Promote | Discard | SetParameter | Feed | Scale | Move | Halt
)


def kind_told(change: Change) -> str:
    """What a change is called where it is told: as the call that made it.

    >>> kind_told(Promote("spend")), kind_told(Promote("spend", back=True))
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
    """The change that `change_text` wrote; None: it is not of queries.

    Raises:
        CorruptError: no version of a change that is known here.
    """
    try:
        if kind_of(text) in OTHERS:
            return None
        return _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"A change record does not decode: {error}.", "Use the Millpond that wrote it, or a newer; else restore it."
        ) from error
