"""Changes of a pond while it runs, to and from the JSON that a change record carries; `kind` says what is changed."""

from __future__ import annotations

import msgspec

from millpond.errors import CorruptError


class MapChange(msgspec.Struct, frozen=True, tag_field="kind", tag="map"):
    """Which instance owns which bucket from the next epoch on: all runs (instance, how many), and why for people."""

    owned: tuple[tuple[int, int], ...]
    why: str


class _Kind(msgspec.Struct):
    kind: str = ""


def change_to_json(change: MapChange) -> str:
    """Canonical text: equal changes give equal text."""
    return msgspec.json.encode(change, order="deterministic").decode()


def map_change_in(text: str) -> MapChange | None:
    """The change of owners in the JSON of a change record; None: it changes something else.

    Raises:
        CorruptError: the text is no such JSON.

    >>> map_change_in('{"kind":"map","owned":[[0,3],[1,1]],"why":"slots moved"}')
    MapChange(owned=((0, 3), (1, 1)), why='slots moved')
    """
    try:
        if msgspec.json.decode(text, type=_Kind).kind != "map":
            return None
        return msgspec.json.decode(text, type=MapChange)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"A stored change of the pond does not decode: {error}.", "Restore the log.") from error
