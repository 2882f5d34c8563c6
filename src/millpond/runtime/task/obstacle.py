"""Obstacles: input that gather tasks cannot read exactly as Spark does; the epoch is repeated with Spark's reader.

A reader in a gather task raises `ObstacleError` when it meets input that it does not read exactly as Spark does. The
task then sends the obstacle to every instance in place of a packet, so no instance folds, nothing is committed, and the
driver runs the epoch with Spark's reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa

_MAGIC = b"MPOB"
"""The first bytes of an obstacle; those of a packet are others."""


class Obstacle(NamedTuple):
    """The reason, as text; `source`: the stream with whose input it has to do, "" if it concerns the whole epoch."""

    why: str
    source: str = ""


class ObstacleError(Exception):
    """Raised by a reader that has met an obstacle."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.why)
        self.obstacle = obstacle


def packets_or_obstacle(packets: Iterable[tuple[int, bytes]], instances: int) -> Iterator[tuple[int, bytes]]:
    """The packets of a gather, as (instance, bytes); an obstacle ends them, and is sent to every instance."""
    try:
        yield from packets
    except ObstacleError as error:
        data = _MAGIC + encode_obstacle(error.obstacle)
        yield from ((instance, data) for instance in range(instances))


def obstacle_in(packets: Iterable[pa.Buffer]) -> Obstacle | None:
    """The first obstacle among the packets of an instance, if there is any."""
    size = len(_MAGIC)
    data = next((one for one in packets if one.size >= size and one[:size].to_pybytes() == _MAGIC), None)
    return None if data is None else decode_obstacle(data[size:].to_pybytes())


def encode_obstacle(obstacle: Obstacle) -> bytes:
    """An obstacle as the body of a result without a receipt."""
    return msgspec.msgpack.encode(obstacle)


def decode_obstacle(data: bytes) -> Obstacle:
    """Decodes the result of `encode_obstacle`."""
    return msgspec.msgpack.decode(data, type=Obstacle)
