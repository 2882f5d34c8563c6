"""Texts of JSON and CSV become columns at their positions in the layout, and dead letters; or an obstacle is met."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from millpond.formats.malformed_reasons import NO_OBJECT, NO_VALUE
from millpond.runtime.gather.text_events import TextEvents
from millpond.runtime.inputs.without_shuffle import Route, TaskMessage, packets_to_fold
from millpond.runtime.task.column_layout import DEAD, ReadColumn, ReadLayout, StreamLayout, TextStream
from millpond.runtime.task.obstacle import Obstacle, ObstacleError

LAYOUT = ReadLayout(
    (
        StreamLayout("other", (ReadColumn("a", 1, "bigint"),)),
        StreamLayout("tx", (ReadColumn("_offset", 2, "bigint"), ReadColumn("v", 3, "bigint"))),
        StreamLayout("rows", (ReadColumn("x", 1, "bigint"),), chained=True),
    ),
    texts=(TextStream(1, (("k", "string"), ("v", "bigint")), "UTC", strict=True, keeps_bytes=True),),
)


def batch(*texts: bytes | None, streams: list[int] | None = None) -> pa.RecordBatch:
    """Rows of the stream `tx`, or of other streams, as the frame has them."""
    count = len(texts)
    letters = pa.array(
        [{"stream": "tx", "offset": n, "value": text, "reason": None} for n, text in enumerate(texts)],
        pa.struct({"stream": pa.string(), "offset": pa.int64(), "value": pa.binary(), "reason": pa.string()}),
    )
    columns = {
        "stream": pa.array(streams or [1] * count, pa.int32()), "c0_0": pa.array(range(count)),
        "c1_0": pa.array(range(10, 10 + count)), "dead": letters,
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


def test_columns_are_at_their_positions_and_malformed_records_in_batches_of_their_own() -> None:
    texts = TextEvents(LAYOUT)
    events, dead = texts.parsed([batch(b'{"k":"a","v":1}', b"{oops", None, b'{"k":"b"}', b'{"k":"c","v":"n/a"}')])
    assert events.schema.names == ["stream", "c0_0", "c1_0", "c1_1"]
    assert [column.to_pylist() for column in events.columns] == [[1, 1], [0, 3], [10, 13], [1, None]]
    assert dead.column(0).to_pylist() == [DEAD, DEAD, DEAD]
    assert dead.column(1).to_pylist() == [
        {"stream": "tx", "offset": 1, "value": b"{oops", "reason": NO_OBJECT},
        {"stream": "tx", "offset": 2, "value": None, "reason": NO_VALUE},
        {"stream": "tx", "offset": 4, "value": b'{"k":"c","v":"n/a"}', "reason": "v is not a BIGINT"},
    ]
    assert texts.take_bytes() > 25
    assert texts.take_bytes() == 0


def test_csv_is_parsed_likewise_and_a_text_that_does_not_fit_is_malformed() -> None:
    csv = replace(LAYOUT, texts=(LAYOUT.texts[0]._replace(separator=";"),))
    odd = [b"oops", b"d;2;3", b"a;x", b"a;9223372036854775808", b"a;1.5", b'"a;1";" 2"', b"a;12 "]
    read = batch(b"a;1", None, b'"b;c";', *odd, b"e;3")
    events, dead = TextEvents(csv).parsed([read])
    assert [column.to_pylist() for column in events.columns[1:]] == [[0, 2, 10], [10, 12, 20], [1, None, 3]]
    letters = [(row["value"], row["reason"]) for row in dead.column(1).to_pylist()]
    reasons = [*["the line does not have 2 fields"] * 2, *["v is not a BIGINT"] * 5]
    assert letters == [(None, NO_VALUE), *zip(odd, reasons, strict=True)]
    for doubtful in (b"a;+1", b"a;1\nb;2", b'a"b;1', b" a;1", b"a;\xd9\xa1", b"\xff;1"):
        with pytest.raises(ObstacleError):
            list(TextEvents(csv).parsed([batch(b"a;1", doubtful)]))
    permissive = replace(LAYOUT, texts=(csv.texts[0]._replace(strict=False),))
    for misfit in (b"oops", b"a;x"):
        with pytest.raises(ObstacleError):
            list(TextEvents(permissive).parsed([batch(b"a;1", misfit)]))
    with pytest.raises(ObstacleError, match="many"):
        list(TextEvents(csv).parsed([batch(*[b"a;x"] * 20)]))


def test_texts_may_come_with_long_offsets() -> None:
    read = batch(b'{"k":"a","v":1}', b"{oops")
    large = {"stream": pa.large_string(), "value": pa.large_binary(), "reason": pa.large_string()}
    kind = pa.struct([pa.field(one.name, large.get(one.name, one.type)) for one in read.schema.field("dead").type])
    wide = read.set_column(3, "dead", read.column("dead").cast(kind))
    events, dead = TextEvents(LAYOUT).parsed([wide])
    assert (events.to_pylist(), dead.to_pylist()) == tuple(one.to_pylist() for one in TextEvents(LAYOUT).parsed([read]))
    assert dead.column(1).type == kind


def test_rows_of_other_streams_keep_their_order_and_lack_the_parsed_columns() -> None:
    mixed = batch(None, b'{"v":1}', None, None, b'{"v":2}', streams=[0, 1, 0, 0, 1])
    other, parsed = TextEvents(LAYOUT).parsed([mixed])
    assert other.schema.names == ["stream", "c0_0", "c1_0", "c1_1", "dead"]
    assert (other.column(0).to_pylist(), other.column(1).to_pylist()) == ([0, 0, 0], [0, 2, 3])
    assert other.column(3).null_count == 3
    assert (parsed.column(2).to_pylist(), parsed.column(3).to_pylist()) == ([11, 14], [1, 2])


def test_a_layout_without_texts_changes_nothing() -> None:
    read = batch(b"{oops")
    assert [*TextEvents(ReadLayout(LAYOUT.streams)).parsed([read])] == [read]


def test_a_doubtful_text_is_an_obstacle_of_its_stream_and_all_tasks_of_a_direct_epoch_decide_alike() -> None:
    with pytest.raises(ObstacleError) as met:
        list(TextEvents(LAYOUT).parsed([batch(b"{'v':1}")]))
    obstacle = Obstacle("a value is not plain JSON", "tx")
    assert met.value.obstacle == obstacle
    messages = [TaskMessage(0, [], 0, 10), TaskMessage(None, [], 0, 0, obstacle)]
    route = Route((0, 1), 1 << 16, "job", 2)
    assert [packets_to_fold(messages, number, {0: [b"x"]}, route) for number in (0, 1)] == [obstacle] * 2
