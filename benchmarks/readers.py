"""Another program that looks rows of a pond up in its Redis while the pond runs, at a steady pace."""

from __future__ import annotations

import json
import select
import sys
import time
from random import Random

import numpy as np
import pyarrow as pa

from millpond.placement.slots import buckets_of, hash_tags, slots_of
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.store import ReadRequest

BUCKETS = 1024
PER_SECOND = 1_000
"""Look-ups a second, one key and one round trip each."""


def main(address: str, customers: int, queries: int) -> None:
    """Look rows up until a line comes in; then print how many, how many found a row, and their latency in ms."""
    names = pa.array([f'["customer-{number:06d}"]' for number in range(customers)])
    buckets = buckets_of(slots_of(pa.array([f"customer-{number:06d}" for number in range(customers)])), BUCKETS)
    store, dice = RedisStore(address, hash_tags(BUCKETS), read_only=True), Random(1)
    print("ready", flush=True)
    sys.stdin.readline()
    took, found, began = [], 0, time.perf_counter()
    while not _stop_requested():
        number = dice.randrange(customers)
        wanted = ReadRequest(int(buckets[number]), f"q{dice.randrange(queries)}", [names[number].as_py().encode()])
        began_read = time.perf_counter()
        found += store.read_many([wanted])[0].values[0] is not None
        took.append((time.perf_counter() - began_read) * 1e3)
        time.sleep(max(0.0, began + len(took) / PER_SECOND - time.perf_counter()))
    p50, p99 = np.percentile(took, [50, 99])
    print(json.dumps({"reads": len(took), "found": found, "p50_ms": p50, "p99_ms": p99}), flush=True)
    store.close()


def _stop_requested() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
