"""Followers that are ahead of their log: rows of lost records are neither duplicated nor silently kept."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec
import pytest
from deltalake import DeltaTable

from kit.naive.keyed_tables import DictRows
from millpond.control.checks.sinks_and_log import check_sinks, reconcile
from millpond.control.wiring.truth import Truth
from millpond.errors import AheadError, CorruptError
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks import kafka
from millpond.followers.sinks.kafka_publisher import Message
from millpond.followers.sinks.local_sinks import ConsoleSink
from millpond.followers.sinks.make_sink import dead_letter_follower, sink_follower
from millpond.followers.sinks.redis_rows import KeyedSink, target_of
from millpond.followers.sinks.webhook import WebhookSink
from millpond.followers.view.view import ViewFollower, lookup
from millpond.log.cursor import Cursor, cursor_at, last_common
from millpond.log.follower import Follower, Pump, pump
from millpond.log.locations.address import address_of
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.packets.row_batches import dead_letters_of
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.store import Apply, BucketStore

OUTPUT = (
    Named("customer", Column("customer", "string")), Named("total", Column("total", "double")),
    Named("w", Column("window", WINDOW)),
)  # fmt: skip


class Topic:
    """Stands for Kafka: what was committed, and the cursor that was committed with it."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.step, self.begun, self.name, self.connected = Cursor(), list[str](), "group", False

    def __call__(self, *_: object) -> Topic:
        return self

    def connect(self) -> Cursor:
        self.connected = True
        return self.step

    def begin(self, messages: Iterable[Message]) -> None:
        self.begun = [json.loads(value or b"{}")["customer"] for _, value, *_ in messages]

    def commit(self, step: Cursor) -> None:
        self.rows += self.begun
        self.step = step


class Place(NamedTuple):
    """A kind of sink: how it is created, and which customers it has shown until now."""

    make: Callable[[], Any]
    shown: Callable[[], list[str]]


def query_of(form: str, path: Path | None = None, **options: str) -> Query:
    sink = Sink(form, None if path is None else str(path), tuple(sorted(options.items())))
    return Query("q", "s", "ts", 0, Sliding(1, 1), (), (), OUTPUT, sink=sink, late=msgspec.UNSET)


def in_files(folder: Path) -> list[str]:
    files = sorted(map(str, folder.glob("part-*.parquet")))
    return [name for (name,) in duckdb.sql(f"SELECT customer FROM read_parquet({files!r})").fetchall()] if files else []


def in_table(folder: Path) -> list[str]:
    files = [uri.removeprefix("file://") for uri in DeltaTable(str(folder)).file_uris()]
    return [name for (name,) in duckdb.sql(f"SELECT customer FROM read_parquet({files!r}) ORDER BY ALL").fetchall()]


@pytest.fixture
def places(pond: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Place]:
    """Every kind of sink that keeps a cursor, each for the query `q`; PostgreSQL is in the tests of services."""
    out, cursors, posted, printed, called = tmp_path / "out", pond.path / "cursors", [], [], []
    topic, redis = Topic(), DictRows({})
    late = RowsReader(pond.read_section, "late")
    monkeypatch.setattr(kafka, "Publisher", topic)
    monkeypatch.setattr(
        WebhookSink, "_post",
        lambda _self, body, key: posted.append((key, [row["customer"] for row in json.loads(body)["rows"]])),
    )  # fmt: skip

    def made(query: Query, **more: Any) -> Callable[[], Follower]:
        return lambda: sink_follower(query, "p", pond.rows, cursors, **more)

    def function(rows: Any, _n: int) -> None:
        called.extend(rows["customer"].to_pylist())

    keyed = target_of(query_of("redis"), Sink("redis", None, (("columns", "total"), ("key", "user:{customer}"))))
    late_query = msgspec.structs.replace(query_of("noop"), late=Sink("parquet", str(out / "late")))
    return {
        "parquet": Place(made(query_of("parquet", out / "rows")), lambda: in_files(out / "rows")),
        "late rows": Place(
            lambda: sink_follower(late_query, "p", late, cursors, late=True), lambda: in_files(out / "late")
        ),
        "dead letters": Place(
            lambda: dead_letter_follower("q", Sink("parquet", str(out / "dead")), "p", pond.rows),
            lambda: in_files(out / "dead"),
        ),
        "noop": Place(made(query_of("noop")), list),
        "console": Place(
            lambda: ConsoleSink("q", cursors, pond.rows, write=printed.append),
            lambda: [line[0] for text in printed for line in text.splitlines()[2:] if line],
        ),
        "foreach": Place(made(query_of("foreach"), functions={"q": function}), lambda: [*called]),
        "webhook": Place(
            made(query_of("webhook", connection="hook")), lambda: [one for _, customers in posted for one in customers]
        ),
        "redis": Place(
            lambda: KeyedSink("q", "p", keyed, pond.rows, cursors / "q.cursor", lambda: redis),
            lambda: sorted(name.removeprefix("user:") for name in redis.held),
        ),
        "kafka": Place(made(query_of("kafka", topic="t")), lambda: [*topic.rows]),
        "delta": Place(made(query_of("delta", out / "delta")), lambda: in_table(out / "delta")),
    }  # fmt: skip


KINDS = (
    "parquet", "late rows", "dead letters", "noop", "console", "foreach", "webhook", "redis", "kafka", "delta",
)  # fmt: skip
KEPT = {"redis": "delete the keys", "kafka": "set the offset of the group", "delta": "begin a new pond"}
"""Kinds that cannot remove rows, and the cures in their errors."""

AGAIN = ("console", "foreach", "webhook")
"""Kinds that may show rows again: at least once."""


def fill(pond: Any, make_row: Any) -> None:
    """Records 0 to 4: rows of `a` in 1, of `b` in 3, of `c` in 4."""
    pond.claim()
    for name in ("a", None, "b", "c"):
        rows = [make_row(name, 1.0)] if name else []
        pond.epoch({"q": rows, dead_letters_of("q"): rows}, late={"q": rows})


def go_on(pond: Any, make_row: Any) -> None:
    """The log lost the records from 3 on, and another driver goes on: 3 is its claim; 4 has the events of `b`, `c`."""
    pond.lose(3)
    pond.writer = "another"
    pond.claim()
    rows = [make_row("b", 1.0), make_row("c", 1.0)]
    pond.epoch({"q": rows, dead_letters_of("q"): rows}, late={"q": rows})


def truth_of(pond: Any) -> Truth:
    return Truth(address_of(pond.path), pond.path, "p", pond.log, pond.manifests, pond.head())


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_with_rows_of_lost_records_is_refused_before_anything_is_written(
    pond: Any, make_row: Any, places: dict[str, Place], kind: str
) -> None:
    place = places[kind]
    fill(pond, make_row)
    pond.feed(place.make())
    check_sinks(truth_of(pond), [place.make()])
    before = place.shown()
    assert kind == "noop" or before == ["a", "b", "c"]
    pond.lose(3)
    with pytest.raises(AheadError, match=r"The sink of .* record 4, but the log ends at record 2.*millpond repair"):
        check_sinks(truth_of(pond), [place.make()])
    assert place.shown() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_whose_record_was_replaced_gets_no_rows(
    pond: Any, make_row: Any, places: dict[str, Place], kind: str
) -> None:
    place = places[kind]
    fill(pond, make_row)
    pond.feed(place.make())
    before = place.shown()
    go_on(pond, make_row)
    sink = place.make()
    with pytest.raises(AheadError, match="record 4 of the log is another one now"):
        pump(Pump(sink.name), sink, pond.log, pond.manifests)
    with pytest.raises(AheadError, match="record 4 of the log is another one now"):
        check_sinks(truth_of(pond), [place.make()])
    with pytest.raises(AheadError, match="record 4 of the log is another one now"):
        sink.apply(4, pond.entries[4], pond.at[4])  # also in the step itself, whoever asks
    assert place.shown() == before


@pytest.mark.parametrize("gone_on", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_sets_a_sink_back_to_what_both_have_or_says_why_not(
    pond: Any, make_row: Any, places: dict[str, Place], kind: str, gone_on: bool
) -> None:
    place = places[kind]
    fill(pond, make_row)
    pond.feed(place.make())
    if gone_on:
        go_on(pond, make_row)
    else:
        pond.lose(3)
    if kind in KEPT:
        with pytest.raises(AheadError, match=rf"after record 2 .*newer copy.*|{KEPT[kind]}") as error:
            reconcile(truth_of(pond), [place.make()])
        assert KEPT[kind] in error.value.cure and place.shown() == ["a", "b", "c"]
        return
    (said,) = reconcile(truth_of(pond), [place.make()])
    assert said.startswith("The sink of ") and "record 2" in said
    assert place.make().cursor() == cursor_at(pond.entries[2])
    assert reconcile(truth_of(pond), [place.make()]) == []
    if not gone_on:
        go_on(pond, make_row)
    sink = place.make()
    pump(Pump(sink.name), sink, pond.log, pond.manifests)
    again = ["b", "c"] if kind in AGAIN else []
    assert kind == "noop" or place.shown() == ["a", "b", "c", *again]


def test_keys_of_requests_differ_for_epochs_of_two_logs(
    pond: Any, make_row: Any, places: dict[str, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    monkeypatch.setattr(WebhookSink, "_post", lambda _self, _body, key: keys.append(key))
    fill(pond, make_row)
    pond.feed(places["webhook"].make())
    lost = [entry.digest[:16] for entry in pond.entries]
    go_on(pond, make_row)
    reconcile(truth_of(pond), [places["webhook"].make()])
    pond.feed(places["webhook"].make())
    digests = [lost[1], lost[3], lost[4], pond.entries[4].digest[:16]]
    assert keys == [f"p/q/{n}/0/{digest}" for n, digest in zip((1, 3, 4, 4), digests, strict=True)]


def test_cursors_of_older_versions_are_accepted_and_get_a_mark(
    pond: Any, make_row: Any, places: dict[str, Place]
) -> None:
    fill(pond, make_row)
    for kind, name in (("noop", "q.cursor"), ("foreach", "q.foreach"), ("webhook", "q.webhook")):
        pond.feed(places[kind].make(), last=2)
        file = pond.path / "cursors" / name
        file.write_text('{"n":2}')
        assert places[kind].make().cursor() == Cursor(2)
        check_sinks(truth_of(pond), [places[kind].make()])
        pond.feed(places[kind].make(), last=3)
        stored = json.loads(file.read_text())
        assert stored.pop("check") == f"{zlib.crc32(f'3 {pond.entries[3].digest} w'.encode()):08x}"
        assert stored == {"n": 3, "mark": f"{pond.entries[3].digest} w"}


def test_a_damaged_cursor_is_reported_where_rows_would_be_published_twice(
    pond: Any, make_row: Any, places: dict[str, Place]
) -> None:
    fill(pond, make_row)
    for kind, name in (("foreach", "q.foreach"), ("webhook", "q.webhook")):
        pond.feed(places[kind].make())
        file = pond.path / "cursors" / name
        for damaged in (b"", file.read_bytes()[:20], b"\xff\xfe"):
            file.write_bytes(damaged)
            with pytest.raises(CorruptError, match=str(file)):
                places[kind].make().cursor()
        file.write_text('{"n":3,"mark":"of another record"}')
        with pytest.raises(AheadError, match="record 3 of the log is another one now"):
            check_sinks(truth_of(pond), [places[kind].make()])


CURSOR_FILES = {
    "parquet": "rows/_millpond_cursor", "late rows": "late/_millpond_cursor", "dead letters": "dead/_millpond_cursor",
    "noop": "q.cursor", "console": "q.cursor", "foreach": "q.foreach", "webhook": "q.webhook", "kafka": "q.kafka",
    "redis": "q.cursor",
}  # fmt: skip


EVERY_BIT = ("parquet", "noop", "foreach", "kafka")
"""A kind of sink for each way in which cursors are stored; of the others every seventh bit is flipped."""


@pytest.mark.parametrize("kind", CURSOR_FILES)
def test_every_flipped_bit_of_a_cursor_is_detected_or_harmless(
    pond: Any, make_row: Any, places: dict[str, Place], tmp_path: Path, kind: str
) -> None:
    fill(pond, make_row)
    place = places[kind]
    pond.feed(place.make(), last=3)
    name = CURSOR_FILES[kind]
    file = tmp_path / "out" / name if "/" in name else pond.path / "cursors" / name
    good, rows = file.read_bytes(), place.shown()
    assert kind == "noop" or rows == ["a", "b"]
    detected, step = 0, 1 if kind in EVERY_BIT else 7
    for bit in range(0, 8 * len(good), step):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        try:
            sink = place.make()
            check_sinks(truth_of(pond), [sink])
            assert sink.cursor().n == 3 or kind in ("noop", "console", "redis"), (bit, bytes(damaged))
        except CorruptError as error:
            assert str(file) in str(error) and '{"n": <record>}' in error.cure
            detected += 1
    assert place.shown() == rows
    assert detected > 5 * len(good) // step or kind not in ("foreach", "webhook")
    file.write_bytes(good)
    pond.feed(place.make())
    assert kind == "noop" or place.shown() == ["a", "b", "c"]


def test_the_common_prefix_of_two_logs_follows_from_their_writers(pond: Any, make_row: Any) -> None:
    fill(pond, make_row)
    newest = cursor_at(pond.entries[4])
    assert last_common(pond.log, newest, 4) == newest
    go_on(pond, make_row)
    assert last_common(pond.log, newest, 4) == cursor_at(pond.entries[2])
    assert last_common(pond.log, Cursor(4, "digest unknown"), 4) is None
    assert last_common(pond.log, Cursor(4), 4) is None


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_view_of_lost_records_is_rebuilt(pond: Any, make_row: Any, tmp_path: Path, kind: str) -> None:
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.0, bucket=1)]})
    pond.epoch({"q": [make_row("a", 2.0, bucket=1, end_us=120_000_000), make_row("lost", 1.0, bucket=2)]})
    store: BucketStore = MemoryStore() if kind == "memory" else LmdbStore(tmp_path / "rows.lmdb")

    def view() -> ViewFollower:
        return ViewFollower(store, pond.rows, 4, lambda: {"q": 60_000_000}, pond.head, pond.log.read)

    pond.feed(view())
    assert {stand.mark for stand in store.stands_many(range(4))} == {pond.entries[2].digest[:16]}
    pond.lose(2)
    pond.writer = "another"
    pond.claim()
    pond.epoch({"q": [make_row("b", 3.0, bucket=3)]})
    pond.feed(view())
    keys = (("a", 1), ("lost", 2), ("b", 3))
    found = {key: lookup(store, "q", f'["{key}"]', bucket).document for key, bucket in keys}
    assert {key: one and one["row"]["total"] for key, one in found.items()} == {"a": 1.0, "lost": None, "b": 3.0}
    assert store.applied_many(range(4)) == [3] * 4
    # one of an older version has no marks: its numbers are believed, and get some
    store.clear_many(range(4))
    store.apply_many([Apply(bucket, 2, -1) for bucket in range(4)])
    pond.feed(view())
    assert {stand.mark for stand in store.stands_many(range(4))} == {pond.entries[3].digest[:16]}
    store.close()
