"""What derived streams inherit from the streams that they read, and what ponds of earlier versions go on with."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from millpond.control.checks.same_queries import checked_spec
from millpond.log.locations.address import address_of
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Derivation, Field, Retention, Stream, inheriting

FIELDS = (Field("t", "timestamp"), Field("k", "string"), Field("v", "bigint"))
BASE = Stream("tx", FIELDS, partitioned="k", retain=Retention(60, 10, 6, ("k", "v")))
DERIVED = Stream("tx_1", (*FIELDS[:2], Field("e", "bigint")), made_of=Derivation("tx", ("tx",), "1"))


def test_a_derived_stream_has_the_key_and_the_retention_of_its_base() -> None:
    assert inheriting(DERIVED, [BASE, BASE], {"k"}) == replace(
        DERIVED, partitioned="k", retain=Retention(60, 10, 6, ("k",))
    )
    assert inheriting(DERIVED, [BASE], {"t"}).partitioned_by is None
    assert inheriting(DERIVED, [replace(BASE, partitioned="v")], {"k"}).partitioned_by is None


def test_of_several_bases_the_longest_retention_applies_and_edges_fit_each() -> None:
    other = Stream("ty", FIELDS, partitioned="k", retain=Retention(90, 0, 4))
    assert inheriting(DERIVED, [BASE, other], {"k"}) == replace(DERIVED, retain=Retention(90, 10, 2, ("k",)))
    assert inheriting(DERIVED, [Stream("tx", FIELDS)], {"k"}) == DERIVED


def test_a_pond_of_an_earlier_version_continues_without() -> None:
    query = Selection("q", DERIVED.name, (Named("k", Column("k", "string")),))
    known = PondSpec.of((DERIVED,), [query], 1)
    found = checked_spec(address_of(Path("x"), "The pond"), known, [query], [inheriting(DERIVED, [BASE], {"k"})], 1, {})
    assert found == known
