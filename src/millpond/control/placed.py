"""Where the buckets of a pond lie now, read beside it, for people."""

from __future__ import annotations

from pathlib import Path

from millpond.control.reader import read_truth
from millpond.control.wiring import open_store
from millpond.errors import StoreError
from millpond.placement.alignment import Placement, owners_in, placement_of


def read_placement(folder: Path, store: str) -> Placement:
    """Which instance of the pond in `folder` owns which buckets, and on which shards of `store` they are.

    Raises:
        ForeignPondError: there is no pond, or the store holds another's.
        StoreError: no query is served, or the store cannot be read.
    """
    truth, spec = read_truth(folder)
    if not any(query.serve for query in spec.queries):
        raise unserved()
    opened = open_store(store, truth, spec.buckets, read_only=True)
    try:
        return placement_of(owners_in(spec), opened.shards(range(spec.buckets)))
    finally:
        opened.close()


def unserved() -> StoreError:
    """What to tell of a pond that keeps nothing in a store."""
    return StoreError("No query of the pond is served, so no store holds its buckets.", "Serve one: 'serve' = 'true'.")


def placement_text(found: Placement) -> str:
    """Bucket range → instance → shard, then for each instance how much of it is local.

    >>> print(placement_text(placement_of((0, 0, 1, 1), ["a:1", "a:1", "a:1", "b:1"])))
    placement, by the store's own map
      buckets   instance  shard
      0 … 1     0         a:1
      2 … 2     1         a:1
      3 … 3     1         b:1
      instance  buckets   local     on
      0         2         100.0 %   a:1
      1         2         50.0 %    a:1
      local-hit rate 75.0 %: 3 of 4 buckets are on the shard that has most of their instance's
    <BLANKLINE>
    """
    local, owned = sum(share.local for share in found.shares), sum(share.buckets for share in found.shares)
    rows: list[tuple[object, ...]] = [("buckets", "instance", "shard")]
    rows += [(f"{one.first} … {one.last}", one.instance, one.shard) for one in found.stretches]
    rows.append(("instance", "buckets", "local", "on"))
    rows += [(one.instance, one.buckets, _percent(one.local / one.buckets), one.home)
             for one in found.shares]  # fmt: skip
    width = 2 + max(len(str(word)) for row in rows for word in row[:-1])
    lines = ["".join(f"{word!s:<{width}}" for word in row[:-1]) + str(row[-1]) for row in rows]
    last = (
        f"local-hit rate {_percent(found.local_hit_rate)}: {local:,} of {owned:,} buckets are on the shard "
        "that has most of their instance's"
    )
    return "\n".join(["placement, by the store's own map", *(f"  {line}" for line in [*lines, last])]) + "\n"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
