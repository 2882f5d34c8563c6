"""Chooses the shards of a store, and distributes buckets evenly among them with the fewest moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millpond.errors import ChangeRefused
from millpond.placement.alignment import rescaled


def assign_buckets(shards: Sequence[str], target: Sequence[str]) -> tuple[str, ...]:
    """The shard of each bucket after the fewest moves to the `target` shards that differ by at most one bucket.

    >>> assign_buckets(("a", "a", "a", "a"), ("a", "b")), assign_buckets(("a", "a", "b", "c"), ("c", "b"))
    (('a', 'a', 'b', 'b'), ('c', 'b', 'b', 'c'))
    """
    names = list(dict.fromkeys([*target, *shards]))
    codes = rescaled([names.index(shard) for shard in shards], len(target))
    return tuple(names[code] for code in codes)


def requested_shards(wanted: int | Sequence[str], shards: Sequence[str], servers: Sequence[str]) -> tuple[str, ...]:
    """The shards that a request names, in the order of `servers`.

    A number keeps the shards with the most buckets, and adds servers without buckets. `shards`: the shard of each
    bucket now; `servers`: all servers that have joined.

    Raises:
        ChangeRefused: there are fewer servers, or a name is not one of them.

    >>> requested_shards(2, ("a", "a", "c", "b", "c"), ("a", "b", "c")), requested_shards(3, ("b",), ("a", "b", "c"))
    (('a', 'c'), ('a', 'b', 'c'))
    """
    if not isinstance(wanted, int):
        unknown = [name for name in wanted if name not in servers]
        if unknown or not wanted:
            raise ChangeRefused(
                f"{unknown[0] if unknown else 'Nothing'} is no primary of the store's cluster.",
                f"Join it first with `redis-cli --cluster add-node`, or use some of {', '.join(servers)}.",
            )
        return tuple(name for name in servers if name in wanted)
    if not 1 <= wanted <= len(servers):
        raise ChangeRefused(
            f"The store's cluster has {len(servers)} primaries, not {wanted}.",
            f"Join more with `redis-cli --cluster add-node`, or use 1 to {len(servers)}.",
        )
    held = Counter(shards)
    kept = sorted(servers, key=lambda name: -held[name])[:wanted]
    return tuple(name for name in servers if name in kept)
