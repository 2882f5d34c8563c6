"""What can be changed of the queries of a pond that has begun, as values: the JSON of a change record.

Each is in force for every epoch after its record. `who` is whoever asked for it; `before` the record of the change of
queries before it (-1: none), so that history is a walk back that reads no epoch. `signed`: groups that are to keep the
form of their cells though it is not their plan's (see `model.changed`); `apart`: the query gets a group beside one that
has no room for its filters. Other parts of the pond have changes
of their own, with a `kind` of their own: `change_of` passes over those in `OTHERS`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from millpond.errors import CorruptError
from millpond.model.changed import Asked
from millpond.model.expressions import Literal
from millpond.model.stream import Stream

OTHERS = frozenset({"map"})
"""Kinds of changes that are not of queries."""


class Add(msgspec.Struct, frozen=True, tag_field="kind", tag="add", omit_defaults=True):
    """A query more. `streams`: those it reads that the pond did not have; `since_us`: its first window starts there or
    later (UNSET: nothing that it reads has been read before).
    """

    asked: Asked
    streams: tuple[Stream, ...] = ()
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False

    @property
    def name(self) -> str:
        """The query's name."""
        return self.asked.query.name


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


class Alter(msgspec.Struct, frozen=True, tag_field="kind", tag="alter", omit_defaults=True):
    """Another version of a query, under its name.

    `since_us`: the new version's first window starts there or later; UNSET: as the old one's. `until_us`: no window of
    the old version starts there or later, and it answers those before; UNSET: it ends at once.
    """

    asked: Asked
    streams: tuple[Stream, ...] = ()
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    until_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False

    @property
    def name(self) -> str:
        """The query's name."""
        return self.asked.query.name


class End(msgspec.Struct, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    """A version that was replaced has answered its last window; `name` is the version's own."""

    name: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class Shadow(msgspec.Struct, frozen=True, tag_field="kind", tag="shadow", omit_defaults=True):
    """Another version beside a query, on shared state, whose rows are only compared. Both answer windows that start at
    `since_us` or later (UNSET: all that the query answers); earlier ones are left to the query as it was.
    """

    asked: Asked
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()
    apart: bool = False

    @property
    def name(self) -> str:
        """The query's name."""
        return self.asked.query.name


class Promote(msgspec.Struct, frozen=True, tag_field="kind", tag="promote", omit_defaults=True):
    """A query and its shadow change places: windows that close from now on are told by the other."""

    name: str
    who: str = ""
    before: int = -1


class Discard(msgspec.Struct, frozen=True, tag_field="kind", tag="discard", omit_defaults=True):
    """The shadow of a query goes, with its state."""

    name: str
    who: str = ""
    before: int = -1
    signed: tuple[str, ...] = ()


class SetParameter(msgspec.Struct, frozen=True, tag_field="kind", tag="param", omit_defaults=True):
    """Another value of a live parameter."""

    name: str
    value: Literal
    who: str = ""
    before: int = -1


Change: TypeAlias = Add | Drop | Pause | Resume | Alter | End | Shadow | Promote | Discard | SetParameter

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Change] = msgspec.json.Decoder(Change)


class _Kind(msgspec.Struct):
    kind: str = ""


_kind = msgspec.json.Decoder(_Kind)


def change_text(change: Change) -> str:
    """The JSON of a change record: equal changes give equal text."""
    return _encoder.encode(change).decode()


def change_of(text: str) -> Change | None:
    """The change that `change_text` wrote; None: it is not of queries.

    Raises:
        CorruptError: no version of a change that is known here.
    """
    try:
        if _kind.decode(text).kind in OTHERS:
            return None
        return _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"A change record does not decode: {error}.", "Use the Millpond that wrote it, or a newer; else restore it."
        ) from error
