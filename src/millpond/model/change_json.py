"""Encodes changes of a running pond to and from the JSON of a change record; `kind` says what is changed."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from millpond.errors import CorruptError


class MapChange(msgspec.Struct, frozen=True, tag_field="kind", tag="map"):
    """Which instance owns which bucket from the next epoch on: all runs (instance, how many), and why for people.

    `instances`: how many there are; UNSET: as many as the pond was made with. A claim ends it if no epoch has followed.
    `towards`: it is a step on the way to the map of this record.
    """

    owned: tuple[tuple[int, int], ...]
    why: str
    instances: int | msgspec.UnsetType = msgspec.UNSET
    towards: int | msgspec.UnsetType = msgspec.UNSET


class Scale(msgspec.Struct, frozen=True, tag_field="kind", tag="scale", omit_defaults=True):
    """Somebody asked for so many instances, or for other owners: as `MapChange`, but it outlives the driver.

    `who` asked; `before`: see `reconfigure.changes`.
    """

    owned: tuple[tuple[int, int], ...]
    why: str
    instances: int
    who: str = ""
    before: int = -1

    @property
    def name(self) -> str:
        """What is changed, beside names of queries."""
        return "instances"


class Move(msgspec.Struct, frozen=True, tag_field="kind", tag="move", omit_defaults=True):
    """Where the served rows of each bucket are kept from this record on: all runs (place, how many buckets).

    A place is a store's address, `env:NAME` for one that the variable NAME holds, or "", the pond's own store.
    `who` asked, `why` is for people; `before`: see `reconfigure.changes`.
    """

    places: tuple[tuple[str, int], ...]
    why: str
    who: str = ""
    before: int = -1

    @property
    def name(self) -> str:
        """What is changed, beside names of queries."""
        return "rows"


class _Kind(msgspec.Struct):
    kind: str = ""


_kind = msgspec.json.Decoder(_Kind)
_owners: msgspec.json.Decoder[MapChange | Scale] = msgspec.json.Decoder(MapChange | Scale)


def change_to_json(change: MapChange | Scale) -> str:
    """Canonical text: equal changes give equal text."""
    return msgspec.json.encode(change, order="deterministic").decode()


def kind_of(text: str) -> str:
    """The kind of change that the JSON of a change record says; MsgspecError: it is no such JSON."""
    return _kind.decode(text).kind


@lru_cache(1024)
def map_change_in(text: str) -> MapChange | Scale | None:
    """The change of owners in the JSON of a change record; None: it changes something else.

    Raises:
        CorruptError: the text is no such JSON.

    >>> map_change_in('{"kind":"map","owned":[[0,3],[1,1]],"why":"slots moved"}')
    MapChange(owned=((0, 3), (1, 1)), why='slots moved', instances=UNSET, towards=UNSET)
    """
    try:
        return _owners.decode(text) if kind_of(text) in ("map", "scale") else None
    except msgspec.MsgspecError as error:
        raise CorruptError(f"A stored change of the pond does not decode: {error}.", "Restore the log.") from error
