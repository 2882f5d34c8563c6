"""An obstacle reaches every instance in place of packets."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from millpond.runtime.task.obstacle import Obstacle, ObstacleError, obstacle_in, packets_or_obstacle

FOUND = Obstacle("1.parquet stores x as INT32", "tx")


def packets() -> Iterator[tuple[int, bytes]]:
    yield 1, b"MPK1"
    raise ObstacleError(FOUND)


def test_every_instance_gets_an_obstacle_after_the_packets_before_it() -> None:
    sent = list(packets_or_obstacle(packets(), 3))
    assert [instance for instance, _ in sent] == [1, 0, 1, 2]
    for instance in range(3):
        mine = [pa.py_buffer(packet) for number, packet in sent if number == instance]
        assert obstacle_in(mine) == FOUND


@pytest.mark.parametrize("data", [[], [b""], [b"MPK1", b"MP"]])
def test_packets_are_no_obstacle(data: list[bytes]) -> None:
    assert obstacle_in(map(pa.py_buffer, data)) is None
