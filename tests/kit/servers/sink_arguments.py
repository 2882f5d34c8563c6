"""Arguments of `sink_follower` that a process needs for sinks that only it can provide; see `sink_program`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.state.backends.redis_keyed import RedisKeyed

CALLS, REDIS = "MILLPOND_TEST_CALLS", "MILLPOND_TEST_REDIS"
"""The variables with the file to which a function writes, and with the address of a Redis."""


def foreach() -> dict[str, Any]:
    """A function that appends the numbers of its rows to the file in the variable `CALLS`."""

    def called(rows: pa.RecordBatch, _epoch: int) -> None:
        with Path(os.environ[CALLS]).open("a") as file:
            file.write("".join(f"{n}\n" for n in rows["n"].to_pylist()))

    return {"functions": {"q": called}}


def redis() -> dict[str, Any]:
    """The rows of other programs in the Redis at the address in the variable `REDIS`."""
    return {"opens": lambda _address: lambda: RedisKeyed(os.environ[REDIS])}
