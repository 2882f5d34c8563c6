"""Rows of queries that are read as events are gathered alike, whatever the other streams of the epoch are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.placement.slots import even_owners
from millpond.plan.groups.build import build_plan
from millpond.runtime.inputs.replay import gather_share, gather_stored
from millpond.runtime.inputs.without_shuffle import Route, gather_direct
from millpond.runtime.packets.packet import header_of
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout, StreamLayout, TextStream
from millpond.runtime.task.task_values import ChainedRows, GatherTask, SectionPlace
from millpond.state.ports.files import Files

QUERY = Query(
    "above", "up", "t", 0, Sliding(10_000_000, 10_000_000), (Column("k", "string"),),
    (Aggregate("sum", Column("v", "bigint"), None, "bigint"),), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip
LAYOUT = ReadLayout(
    (
        StreamLayout("tx", (ReadColumn("a", 1, "bigint"),)),
        StreamLayout(
            "up", (ReadColumn("k", 1, "string"), ReadColumn("t", 2, "timestamp"), ReadColumn("v", 3, "bigint")),
            chained=True,
        ),
    )
)  # fmt: skip
TEXTS = (TextStream(0, (("a", "bigint"),), "UTC", strict=True, keeps_bytes=True),)
SCHEMA = pa.schema({"v": pa.int64(), "k": pa.string(), "t": pa.timestamp("us", "UTC")})
ROWS = st.lists(
    st.fixed_dictionaries({
        "k": st.sampled_from(["a", "b", None]), "t": st.integers(0, 60_000_000), "v": st.none() | st.integers(-9, 9)
    }), min_size=1, max_size=20,
)  # fmt: skip


class _InMemory(Files):
    """One file, which has one section."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Path())
        self._data = pa.py_buffer(data)

    def read(self, file: str, offset: int, size: int) -> pa.Buffer:
        return self._data


def _comparable(packets: Iterable[tuple[int, bytes]]) -> list[tuple[int, str, bytes]]:
    """Packets without the times that were measured."""
    found = []
    for instance, packet in packets:
        header = header_of(packet)
        measured = {"gather_us": 0, "group_us": 0, "cpu_us": 0}
        counts = {name: msgspec.structs.replace(one, **measured) for name, one in header.counts.items()}
        after = 8 + int.from_bytes(packet[4:8], "little")
        header = msgspec.structs.replace(header, counts=counts, spans=msgspec.UNSET)
        found.append((instance, str(header), packet[after:]))
    return found


@pytest.mark.parametrize("shuffled", [True, False])
@given(rows=ROWS)
def test_texts_of_another_stream_change_nothing_with_and_without_the_shuffle(
    shuffled: bool, rows: list[dict[str, object]]
) -> None:
    data = rows_stream([pa.RecordBatch.from_pylist(rows, SCHEMA)])
    chained = ChainedRows("up", 1, 0, (SectionPlace("s", "rows.arrow", False, 0, len(data)),))
    plain = GatherTask(build_plan([QUERY]), LAYOUT, {}, even_owners(64, 2), 2, chained=(chained,))
    with_texts = msgspec.structs.replace(plain, layout=replace(LAYOUT, texts=TEXTS))
    files = _InMemory(data)

    def gathered(task: GatherTask) -> list[tuple[int, str, bytes]]:
        if shuffled:
            return _comparable(gather_stored(task, 0, files))
        route = Route((0, 1), 1 << 20, "job", 1)
        shared = gather_direct(task, [], 0, route, gather_share(task, 0, 1, files)).message.packets
        return _comparable((instance, packet) for instances, packet in shared for instance in instances)

    found = gathered(with_texts)
    assert found == gathered(plain)
    assert sum(header.count("PartHeader(") for _, header, _ in found) >= 1
