"""Assigns the served rows of each bucket to a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from millpond.errors import ChangeRefused, CorruptError
from millpond.model.spec import PondSpec
from millpond.placement.run_lengths import of_runs

OWN = ""
"""The place that means the pond's own store, with which the pond is opened."""

Places: TypeAlias = tuple[str, ...]
"""The place of each bucket: a store's address, `env:NAME`, or `OWN`."""


def places_in(spec: PondSpec) -> Places:
    """The place of each bucket of a pond.

    Raises:
        CorruptError: the number of stored places is not the number of buckets.
    """
    places = of_runs(spec.effects.places or ((OWN, spec.buckets),))
    if len(places) != spec.buckets:
        raise CorruptError("The stored places of the pond's buckets are not those of its spec.", "Restore the log.")
    return places


def moved_to(places: Sequence[str], buckets: Collection[int], to: str) -> Places:
    """The places after these buckets have moved to another store."""
    return tuple(to if bucket in buckets else place for bucket, place in enumerate(places))


def check_place(place: str) -> None:
    """Refuses an address that must not be stored in the log.

    Raises:
        ChangeRefused: the address contains a user or a password.

    >>> check_place("env:SECOND"), check_place("redis://host:6380")
    (None, None)
    """
    if "@" in place.partition("://")[2].partition("?")[0] or "password=" in place:
        raise ChangeRefused(
            "The address of the store has a user or a password, and would be stored in the log permanently.",
            "Put the address into an environment variable of the pond and of its readers, and give env:NAME.",
        )


def buckets_named(text: str, places: Sequence[str], shards: Sequence[str]) -> tuple[int, ...]:
    """Parses a selection of buckets: a number, `FIRST-LAST`, the name of their place or shard, or `own`.

    Raises:
        ChangeRefused: the selection is empty.

    >>> buckets_named("1-2", [""] * 4, ["a"] * 4), buckets_named("b", [""] * 3, ["a", "b", "b"])
    ((1, 2), (1, 2))
    """
    first, divided, last = text.partition("-")
    if first.isdecimal() and (last.isdecimal() or not divided):
        buckets = tuple(bucket for bucket in range(int(first), int(last or first) + 1) if bucket < len(places))
    else:
        place = OWN if text == "own" else text
        buckets = tuple(
            bucket for bucket, of in enumerate(zip(places, shards, strict=True)) if text in of or of[0] == place
        )
    if not buckets:
        known = ", ".join(dict.fromkeys([*shards, *(place or "own" for place in places)]))
        raise ChangeRefused(
            f"{text!r} names no bucket.", f"Use 0 to {len(places) - 1}, FIRST-LAST, or a shard: {known}."
        )
    return buckets
