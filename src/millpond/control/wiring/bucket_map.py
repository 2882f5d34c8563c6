"""Reports where the buckets of a pond are, without opening the pond."""

from __future__ import annotations

from millpond.clock import utc
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import open_rows
from millpond.control.wiring.truth import Truth
from millpond.errors import StoreError
from millpond.log.locations.address import Given
from millpond.log.records import ChangeRecord, decode
from millpond.model.change_json import map_change_in
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Placement, Since, placement_of
from millpond.placement.moves import maps_in
from millpond.state.ports.store import BucketStore


def read_placement(folder: Given, store: str) -> Placement:
    """Which instance of the pond in `folder` owns which buckets, and on which shards of `store` they are.

    Raises:
        ForeignPondError: the folder contains no pond, or the store holds another pond's rows.
        StoreError: no query is served, or the store cannot be read.
    """
    truth, spec = read_truth(folder)
    if not any(query.serve for query in spec.queries):
        raise unserved()
    opened = open_rows(store, truth, spec, read_only=True)
    try:
        return placed_now(truth, spec, opened)
    finally:
        opened.close()


def placed_now(truth: Truth, spec: PondSpec, store: BucketStore) -> Placement:
    """Like `read_placement`, for a store that is open.

    Raises:
        StoreError: the store cannot be read.
        CorruptError: the log cannot be read.
    """
    now = maps_in(spec, truth.manifest)[1]
    found = placement_of(now.owners, store.shards(range(spec.buckets)))
    data = truth.log.read(now.number) if now.number else None
    record = None if data is None else decode(data, truth.log.describe(now.number)).record
    change = map_change_in(record.change) if isinstance(record, ChangeRecord) else None
    return found if record is None or change is None else found._replace(since=Since(now.number, record.at, change.why))


def unserved() -> StoreError:
    """The error for a pond that keeps nothing in a store."""
    return StoreError("No query of the pond is served, so no store holds its buckets.", "Serve one: 'serve' = 'true'.")


def placement_text(placement: Placement) -> str:
    """A table of bucket range, instance and shard, and then the local part of each instance's buckets.

    >>> print(placement_text(placement_of((0, 0, 1, 1), ["a:1", "a:1", "a:1", "b:1"])))
    placement, by the store's own map
      buckets   instance  shard
      0 … 1     0         a:1
      2 … 2     1         a:1
      3 … 3     1         b:1
      instance  buckets   local     on
      0         2         100.0 %   a:1
      1         2         50.0 %    a:1
      aligned 75.0 %: 3 of 4 buckets are on the shard that has most of their instance's
    <BLANKLINE>

    If owners ever changed, the last line names the record of the change, its time and its reason.
    """
    local, owned = sum(share.local for share in placement.shares), sum(share.buckets for share in placement.shares)
    rows: list[tuple[object, ...]] = [("buckets", "instance", "shard")]
    rows += [(f"{one.first} … {one.last}", one.instance, one.shard) for one in placement.stretches]
    rows.append(("instance", "buckets", "local", "on"))
    rows += [(one.instance, one.buckets, _percent(one.local / one.buckets), one.home)
             for one in placement.shares]  # fmt: skip
    width = 2 + max(len(str(word)) for row in rows for word in row[:-1])
    lines = ["".join(f"{word!s:<{width}}" for word in row[:-1]) + str(row[-1]) for row in rows]
    last = (
        f"aligned {_percent(placement.aligned)}: {local:,} of {owned:,} buckets are on the shard "
        "that has most of their instance's"
    )
    lines.append(last)
    if placement.since is not None:
        lines.append(f"owners since record {placement.since.n}, {utc(placement.since.at_us)}: {placement.since.why}")
    return "\n".join(["placement, by the store's own map", *(f"  {line}" for line in lines)]) + "\n"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
