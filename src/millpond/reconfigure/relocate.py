"""Changes the store that holds the served rows of some buckets: checks the change and makes it."""

from __future__ import annotations

from collections.abc import Collection

from millpond.errors import ChangeRefused
from millpond.model.changes import Move
from millpond.placement.places import check_place, moved_to, places_in
from millpond.placement.runs import runs_of
from millpond.reconfigure.accept import Pond


def move(pond: Pond, buckets: Collection[int], to: str, who: str = "") -> Move:
    """Rows of these buckets are kept at the place `to` from now on.

    Raises:
        ChangeRefused: they are there already, there are no such buckets, or the place must not be written down.
    """
    places = places_in(pond.spec)
    if not buckets or not {*buckets} <= {*range(len(places))}:
        raise ChangeRefused(f"The pond has the buckets 0 to {len(places) - 1}.", "Name some of them.")
    check_place(to)
    after = moved_to(places, buckets, to)
    moved = sum(old != new for old, new in zip(places, after, strict=True))
    if not moved:
        raise ChangeRefused(f"The rows of these buckets are kept at {to or 'own'} already.", "Nothing is left to do.")
    return Move(runs_of(after), f"{moved:,} of {len(places):,} buckets to {to or 'own'}", who)
