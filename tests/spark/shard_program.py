"""A pond on a Redis cluster whose shards change, as a program to be killed: `shard_program.py BASE [REQUEST]`.

It joins the Java machine that the environment names (`kit.programs.shared_java`). BASE/pond.sql has the queries of the
pond BASE/pond, BASE/store the address of its store. REQUEST is a number of shards, and of instances, or `stop`, which
ends a move of hash slots. The program reads all input, and ends when no slots are left to move.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from millpond import Pond


def answer(spark: SparkSession, base: Path, request: str = "") -> None:
    """Run the pond once."""
    with Pond(spark, base / "pond", instances=2, store=(base / "store").read_text()) as pond:
        pond.load((base / "pond.sql").read_text())
        pond.open()
        if request == "stop":
            pond.stop_resharding()
        elif request:
            followers = pond._lifetime.open().followers
            assert followers.slots is not None and followers.store is not None
            for _ in range(2):  # which a pond without new input does every ten seconds
                followers.slots._looked_us = None
                followers.slots.look(followers.store)
            pond.scale(int(request), shards=int(request))
        pond.run()
        while any(status.name == "shards" for status in pond.status()):
            time.sleep(0.02)


if __name__ == "__main__":
    from joined_session import joined_session  # in here, as tests import this file from another folder

    answer(joined_session(), Path(sys.argv[1]), *sys.argv[2:])
