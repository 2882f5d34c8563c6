"""Rows of a query as server-sent events: in the order of the log, each once, however often a subscriber is cut off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.simulator.changing_pond import ChangingPond
from millpond.errors import BusyError, GoneError, NotServingError, RequestError
from millpond.log.drop_bodies import Bodies
from millpond.log.locations.local_folder import LocalFolder
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.stream import Field, Stream
from millpond.reconfigure.changes import Drop
from millpond.service.api import row_subscription
from millpond.service.api.client import Client
from millpond.service.api.row_subscription import SentEvent, sent_events
from millpond.service.server import row_stream
from millpond.service.server.log_reader import LogReader
from millpond.service.server.row_stream import NextEvent, Position, RowStream

STREAM = Stream("tx", (Field("ts", "timestamp"), Field("v", "bigint")))
VALUE = (Named("v", Column("v", "bigint")),)
EACH = Selection("one", "tx", VALUE, text="SELECT v FROM STREAM tx", sink=Sink("subscribers"))
COUNTED = Selection("counted", "tx", VALUE, text="SELECT v FROM STREAM tx")


class Bench:
    """A pond of one query that emits a row for each event, and the stream of its rows."""

    def __init__(self, folder: Path) -> None:
        (folder / "pond.id").write_text("p")
        self.folder, self.pond = folder, ChangingPond(folder, [STREAM], [EACH, COUNTED])
        self.rows, self.values = RowStream(LogReader(folder)), 0

    def epoch(self, count: int) -> None:
        values = range(self.values, self.values + count)
        self.values += count
        times = pa.array([value * 1_000_000 for value in values], pa.timestamp("us", "UTC"))
        self.pond.epoch({"tx": [pa.table({"ts": times, "v": pa.array(values, pa.int64())})]})

    def read(self, after: str | None, events: int) -> list[SentEvent]:
        """The first `events` events after an id."""

        async def reading() -> bytes:
            stream = self.rows.events("one", self.rows.begin("one", after))
            found = [await asyncio.wait_for(anext(stream), 20) for _ in range(events)]
            await stream.aclose()  # type: ignore[attr-defined]
            return b"".join(found)

        return list(sent_events(iter(asyncio.run(reading()).decode().split("\n"))))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def values(events: list[SentEvent]) -> list[int]:
    return [row["v"] for event in events for row in json.loads(event.data).get("rows", ())]


def test_rows_come_in_the_order_of_the_log_with_the_numbers_of_their_records(bench: Bench) -> None:
    for count in (2, 0, 3):
        bench.epoch(count)
    found = bench.read("-1", 2)
    assert [(event.id, event.kind) for event in found] == [("1", "rows"), ("3", "rows")]
    assert values(found) == [0, 1, 2, 3, 4]
    assert json.loads(found[1].data)["record"] == 3
    assert values(bench.read("1", 1)) == [2, 3, 4]


def test_a_subscription_without_an_id_begins_with_the_next_record(bench: Bench) -> None:
    bench.epoch(2)
    first = bench.rows.begin("one", None)
    assert first.event is None
    bench.epoch(1)
    assert values(bench.read(str(first.position), 1)) == [2]


def test_each_event_is_encoded_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, encode = list[int](), row_stream._part
    monkeypatch.setattr(row_stream, "_part", lambda n, *of: (encoded.append(n), encode(n, *of))[1])
    for _ in range(3):
        bench.epoch(1)
    assert values(bench.read("-1", 3)) == [0, 1, 2]
    assert encoded == [1, 2, 3]


@given(cuts=st.lists(st.integers(1, 4), max_size=5))
def test_a_subscriber_that_is_cut_off_anywhere_gets_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    """A record of many rows is several events, and a cut may be between them."""
    bench = Bench(tmp_path_factory.mktemp("pond"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_stream, "ROWS_OF_EVENT", 2)
        for count in (5, 0, 4, 1):
            bench.epoch(count)
        found, after, left = list[SentEvent](), "-1", 6
        for events in cuts:
            read = bench.read(after, min(events, left)) if left else []
            found, left = found + read, left - len(read)
            after = found[-1].id
        assert values(found + bench.read(after, left)) == list(range(10))


def test_rows_that_were_deleted_are_an_error_with_a_cure(bench: Bench) -> None:
    for _ in range(3):
        bench.epoch(1)
    Bodies(LocalFolder(bench.folder / "log")).take_back(1)
    with pytest.raises(GoneError, match="rows of one in record 1 were deleted"):
        bench.rows.begin("one", "0")
    assert values(bench.read("1", 1)) == [1]
    assert values(bench.read("-1", 2)) == [1, 2], "the oldest rows that are there"


def test_a_silent_subscription_says_how_far_the_log_was_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "_SILENT_SECONDS", 0.1)
    bench.epoch(0)
    bench.epoch(0)
    assert [(event.id, event.kind) for event in bench.read("-1", 1)] == [("2", "position")]


def test_what_cannot_be_subscribed_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.epoch(1)
    for query, after in (("two", None), ("counted", None), ("one", "9"), ("one", "x"), ("one", "-2")):
        with pytest.raises(RequestError):
            bench.rows.begin(query, after)
    monkeypatch.setattr(row_stream, "SUBSCRIBERS", 0)
    with pytest.raises(BusyError):
        bench.rows.begin("one", None)


def test_a_subscription_ends_with_an_error_when_its_query_is_dropped(bench: Bench) -> None:
    async def reading() -> list[bytes]:
        stream = bench.rows.events("one", bench.rows.begin("one", None))
        bench.pond.change(Drop("one"))
        return [sent async for sent in stream]

    (sent,) = sent_events(iter(asyncio.run(reading()).pop().decode().split("\n")))
    assert (sent.kind, json.loads(sent.data)["code"]) == ("error", "MP-REQUEST")


def test_a_long_log_without_rows_is_read_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "_RECORDS_AT_ONCE", 2)
    for count in (0, 0, 0, 0, 1):
        bench.epoch(count)
    assert bench.rows._after("one", Position(-1)) == (None, Position(1))
    assert values(bench.read("-1", 1)) == [0]


def test_subscriptions_end_when_the_service_stops(bench: Bench) -> None:
    async def reading() -> list[bytes]:
        return [sent async for sent in bench.rows.events("one", NextEvent(None, Position(-1)))]

    bench.rows.end()
    assert asyncio.run(reading()) == []


def event(id_: str, *rows: int, kind: str = "rows") -> str:
    data: dict[str, Any] = {"record": 1, "rows": [{"v": v} for v in rows]}
    if kind == "error":
        data = {"code": "MP-GONE", "what": "w"}
    return f"id: {id_}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


class Service:
    """Services that send one prepared response after the other; a response that is None is a failing connection."""

    def __init__(self, *responses: str | None) -> None:
        self.responses, self.requests = list(responses), list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.url.host} {request.url.params.get('after')}")
        response = self.responses.pop(0)
        if response is None:
            raise httpx.ReadError("cut off")
        return httpx.Response(200, text=response)


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_subscription, "sleep", lambda _seconds: None)


def test_the_client_resumes_at_the_next_address() -> None:
    service = Service(event("4", 1, 2) + event("5.1", 3), None, event("6", 4), event("6", kind="error"))
    with Client("http://a,http://b", "t", transport=httpx.MockTransport(service)) as client:
        rows = client.rows("one", after="3")
        assert [(next(rows), rows.position) for _ in range(4)] == [
            ({"v": 1}, "3"), ({"v": 2}, "4"), ({"v": 3}, "5.1"), ({"v": 4}, "6"),
        ]  # fmt: skip
        with pytest.raises(GoneError, match="w"):
            next(rows)
    assert service.requests == ["a 3", "b 5.1", "a 5.1", "b 6"]


def test_the_client_gives_up_without_an_answer() -> None:
    with Client("http://a", "t", transport=httpx.MockTransport(Service(None))) as client:
        rows = client.rows("one", after="1", patience=0)
        with pytest.raises(NotServingError, match="Nobody answers at http://a: cut off"):
            next(rows)
