"""Encodes changes of a running pond to and from the JSON of a change record; `kind` is the kind of change."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from millpond.errors import CorruptError


class MapChange(msgspec.Struct, frozen=True, tag_field="kind", tag="map"):
    """A change of the bucket map from the next epoch on: all runs (instance, number of buckets), and the reason.

    `instances`: the number of instances; UNSET: the number with which the pond was created. A claim cancels the change
    if no epoch has followed it. `towards`: the record of the requested map, if this map is a step on the way to it.
    """

    owned: tuple[tuple[int, int], ...]
    why: str
    instances: int | msgspec.UnsetType = msgspec.UNSET
    towards: int | msgspec.UnsetType = msgspec.UNSET


class Scale(msgspec.Struct, frozen=True, tag_field="kind", tag="scale", omit_defaults=True):
    """A requested number of instances, or requested owners: like `MapChange`, but it outlives the driver.

    `shards`: the server of the store to which the hash slots of each bucket move, as runs (server, number of buckets);
    empty: no slots move. `who` names the requester; `before`: see `reconfigure.changes`.
    """

    owned: tuple[tuple[int, int], ...]
    why: str
    instances: int
    who: str = ""
    before: int = -1
    shards: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """What this change affects; other changes have the name of a query here."""
        return "instances"


class Resharded(msgspec.Struct, frozen=True, tag_field="kind", tag="resharded", omit_defaults=True):
    """Hash slots no longer move: they are where the newest `Scale` wanted them, or its plan was stopped.

    `who` names the requester, `why` is the reason as text; `before`: see `reconfigure.changes`.
    """

    why: str
    who: str = ""
    before: int = -1

    @property
    def name(self) -> str:
        """What this change affects; other changes have the name of a query here."""
        return "shards"


class Move(msgspec.Struct, frozen=True, tag_field="kind", tag="move", omit_defaults=True):
    """Where the served rows of each bucket are stored from this record on: all runs (place, number of buckets).

    A place is the address of a store, `env:NAME` for an address in the environment variable NAME, or "" for the pond's
    own store. `who` names the requester, `why` is the reason as text; `before`: see `reconfigure.changes`.
    """

    places: tuple[tuple[str, int], ...]
    why: str
    who: str = ""
    before: int = -1

    @property
    def name(self) -> str:
        """What this change affects; other changes have the name of a query here."""
        return "rows"


class _Kind(msgspec.Struct):
    kind: str = ""


_kind = msgspec.json.Decoder(_Kind)
_owners: msgspec.json.Decoder[MapChange | Scale] = msgspec.json.Decoder(MapChange | Scale)


def change_to_json(change: MapChange | Scale) -> str:
    """Canonical text: equal changes give equal text."""
    return msgspec.json.encode(change, order="deterministic").decode()


def kind_of(text: str) -> str:
    """The kind of change in the JSON of a change record.

    Raises:
        MsgspecError: the text is not such JSON.
    """
    return _kind.decode(text).kind


@lru_cache(1024)
def map_change_in(text: str) -> MapChange | Scale | None:
    """The change of the bucket map in the JSON of a change record; None if it changes something else.

    Raises:
        CorruptError: the text is not the JSON of a change.

    >>> map_change_in('{"kind":"map","owned":[[0,3],[1,1]],"why":"slots moved"}')
    MapChange(owned=((0, 3), (1, 1)), why='slots moved', instances=UNSET, towards=UNSET)
    """
    try:
        return _owners.decode(text) if kind_of(text) in ("map", "scale") else None
    except msgspec.MsgspecError as error:
        raise CorruptError(f"A stored change of the pond does not decode: {error}.", "Restore the log.") from error
