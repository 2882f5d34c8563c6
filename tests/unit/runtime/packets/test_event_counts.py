"""Counts per source partition: five numbers each that add up, and a record that stays small."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millpond.runtime.packets.event_counts import OTHERS, Sources, add_fates, bounded
from millpond.runtime.packets.packet import SourceFates


@pytest.mark.parametrize("names", [["b", None, "b", "a"], ["b", "b", None], ["a"], []])
def test_sources_know_the_events_of_each_partition_and_null_is_the_one_without_a_name(names: list[str | None]) -> None:
    sources = Sources.of(pa.array(names, pa.string()))
    order = range(len(names)) if sources.order is None else sources.order.tolist()
    ends = [*sources.starts[1:], len(names)]
    found = {
        name: [names[i] or "" for i in order[start:end]]
        for name, start, end in zip(sources.names, sources.starts, ends, strict=False)
    }
    assert found == {name or "": [name or ""] * names.count(name) for name in names}


def test_packets_add_up() -> None:
    total: dict[str, dict[str, list[int]]] = {}
    one = SourceFates(["a", "b"], {"0": [3, 1, 1, 1, 0]})
    add_fates(total, [one, SourceFates(["a"], {"0": [1, 0, 0, 0, 1], "1": [2, 2, 0, 0, 0]})])
    assert total == {"a": {"0": [4, 1, 1, 1, 1], "1": [2, 2, 0, 0, 0]}, "b": {"0": [3, 1, 1, 1, 0]}}


def test_many_partitions_are_listed_by_what_they_lost_and_the_rest_is_one() -> None:
    few = {"q": {"0": [1, 1, 0, 0, 0], "1": [1, 1, 0, 0, 0]}}
    assert bounded(few) == few
    many = {"q": {str(i): [10, 10 - i % 5, i % 5, 0, 0] for i in range(1000)}}
    kept = bounded(many, 50)["q"]
    assert len(kept) == 50
    assert all(numbers[2] == 4 for name, numbers in kept.items() if name != OTHERS)
    assert [sum(numbers) for numbers in zip(*kept.values(), strict=True)] == [10_000, 8_000, 2_000, 0, 0]
    again = bounded({"q": kept | {"new": [1, 0, 0, 1, 0]}}, 50)["q"]
    assert len(again) == 50
    assert sum(numbers[0] for numbers in again.values()) == 10_001


def test_each_query_keeps_the_sum_even_of_too_many() -> None:
    crowd = {f"q{i}": {"0": [1, 1, 0, 0, 0], "1": [2, 2, 0, 0, 0]} for i in range(10)}
    assert bounded(crowd, 5) == {f"q{i}": {OTHERS: [3, 3, 0, 0, 0]} for i in range(10)}
