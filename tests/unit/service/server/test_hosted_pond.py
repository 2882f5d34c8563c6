"""What a service reports about a pond with a log: streams, functions, shadows, numbers and changes."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.connections import VARIABLE
from millpond.control.diagnose.dead_letters import Unsent, left_out_line, repeated_line, sent_text
from millpond.control.diagnose.letter_folder import LetterFolder
from millpond.control.diagnose.letter_message import LetterKind
from millpond.control.diagnose.replay_journal import record
from millpond.control.pond.problems import Problem
from millpond.errors import ChangeRefused, NotServingError, QueryRefused, QueryTypeError, RequestError
from millpond.followers.runner import FollowerStatus
from millpond.followers.sinks.folder import MARKER_NAME, Marker
from millpond.followers.sinks.kafka_publisher import Publisher
from millpond.log.cursor import Cursor
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import StoredQuery
from millpond.model.change_json import Move, Scale
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, literal
from millpond.model.functions import UserFunction
from millpond.model.query import Named, Query
from millpond.model.stream import DEAD_LETTER, Field, Malformed, Retention, Stream
from millpond.model.windows import Sliding
from millpond.reconfigure.changes import Add, Alter, SetParameter, Shadow
from millpond.runtime.packets.row_batches import dead_letters_of, timeless_reason
from millpond.service.api.messages import Changed, Failure, Priced, Replay, Retained, SourceShown, Value
from millpond.service.api.service_files import Places
from millpond.service.server.gauges import Gauges
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader
from millpond.spark.reading.intake import Behind

HOUR = 3_600_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("v", "bigint")), retain=Retention(7 * 24 * HOUR, HOUR, 0, ("v",)))
WORST = UserFunction("worst", "2", "rates:worst", "holistic", ("bigint",), "bigint", digest="ab" * 32)
COUNT = Aggregate("count", None, None, "bigint")
CALLS = Aggregate(WORST.function, Column("v", "bigint"), None, "bigint")


def counting(name: str, text: str, *aggregates: Aggregate, functions: tuple[UserFunction, ...] = ()) -> Query:
    window, output = Sliding(10_000_000, 10_000_000), (Named("n", Column("agg:0", "bigint")),)
    made = Query(name, "tx", "ts", 0, window, (), aggregates or (COUNT,), output, text=text)
    return replace(made, functions=functions) if functions else made


class Bench:
    """A pond whose requests are made without a leader, or with a substitute for the leader's pond."""

    def __init__(self, folder: Path) -> None:
        (folder / "pond.id").write_text("local")
        self.pond = ChangingPond(folder, [TX], [counting("one", "SELECT 1")], 1, 4)
        self.leader: Any = None
        self.stalled = False
        self.supervisor: Any = SimpleNamespace(
            role="standby", starting_s=None, took_over_s=None, failure=None, leading=self._leading,
            stalled=lambda: self.stalled,
        )  # fmt: skip
        gauges = Gauges()
        self.hosted = HostedPond(self.supervisor, LogReader(folder), lambda: gauges, Places(folder))

    def _leading(self) -> Any:
        if self.leader is None:
            raise NotServingError("This service is standby.", "Ask the leader.")
        return self.leader


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_stream_says_what_it_retains(bench: Bench) -> None:
    (stream,) = bench.hosted.streams()
    assert stream.retain == Retained(7 * 24 * HOUR, HOUR, 0, ("v",))


def test_why_has_what_the_log_the_sinks_and_the_service_say(bench: Bench) -> None:
    bench.pond.epoch({"tx": [pa.table({"ts": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())})]})
    of_standby = bench.hosted.why("one", 80)
    assert of_standby.causes[0].code == "window-open" and (of_standby.counts.applied, of_standby.sink_errors) == (1, ())
    assert max(map(len, of_standby.text.splitlines())) <= 80 < max(
        map(len, bench.hosted.why("one", 100).text.splitlines())
    )
    bench.leader = SimpleNamespace(status=lambda: [FollowerStatus("sink:one", 0, 1, error="It is full.")])
    bench.supervisor.failure = Failure("MP-STORE", "It vanished.", "Mend it.", 1, 0.5)
    found = bench.hosted.why("one", 80)
    assert found.sink_errors == ("sink:one: It is full.",) and found.failure == "[MP-STORE] It vanished. Mend it."
    assert [cause.code for cause in found.causes][:2] == ["failing", "sink-behind"]
    with pytest.raises(QueryTypeError, match="The pond has no query 'two'"):
        bench.hosted.why("two", 80)


def test_queries_are_counted_as_they_are_listed(bench: Bench) -> None:
    bench.pond.change(Shadow(StoredQuery.of(counting("one", "SELECT 1 AS n")), since_us=0))
    (shown,) = bench.hosted.queries()
    assert bench.hosted.status().queries == 1
    assert (shown.text, shown.shadow) == ("SELECT 1", "SELECT 1 AS n")


def test_the_history_has_the_digests_of_the_functions_that_a_query_calls(bench: Bench) -> None:
    bench.pond.change(Add(StoredQuery.of(counting("two", "SELECT worst(v)", CALLS, functions=(WORST,))), who="ann"))
    bench.pond.change(Add(StoredQuery.of(counting("three", "SELECT 3")), who="ann", before=1))
    assert [event.functions for event in bench.hosted.history(9)] == [{}, {"worst@2": "ab" * 32}]


def test_a_function_is_called_while_the_previous_version_still_emits_windows(bench: Bench) -> None:
    two = counting("two", "SELECT worst(v)", CALLS, functions=(WORST,))
    bench.pond.change(Add(StoredQuery.of(two), who="ann"))
    bench.pond.change(Alter(StoredQuery.of(replace(two, text="SELECT 2")), since_us=HOUR, until_us=HOUR, who="ann"))
    assert len(bench.pond.spec.queries) == 3
    text = "windows that start before 1970-01-01 01:00:00Z are emitted as before the change"
    assert bench.hosted._recorded("alter", "two").hand_over == text
    bench.leader = SimpleNamespace(load_functions=lambda: (WORST,))
    assert [shown.queries for shown in bench.hosted.functions(True, "ann")] == [("two",)]


def test_instances_and_moves_are_logged_with_what_changed(bench: Bench) -> None:
    bench.pond.change(Scale(((0, 2), (1, 2)), "requested", 2, "ann"))
    bench.pond.change(Move((("", 3), ("env:SECOND", 1)), "1 of 4 buckets to env:SECOND", "ann"))
    assert bench.hosted._recorded("scale", "instances") == Changed("scale", "instances", 1, None, "2")
    moved = bench.hosted._recorded("move", "rows")
    assert moved == Changed("move", "rows", 2, None, "1 of 4 buckets to env:SECOND")


def test_dead_letters_are_sent_again_only_to_topics_that_the_operator_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pond.id").write_text("local")
    folder = tmp_path / "dead"
    stream = replace(TX, malformed=Malformed(DEAD_LETTER, Sink("parquet", str(folder))))
    ChangingPond(tmp_path, [stream], [counting("one", "SELECT 1")], 1, 4)
    supervisor: Any = SimpleNamespace(leading=lambda: None)
    hosted = HostedPond(supervisor, LogReader(tmp_path), Gauges, Places(tmp_path))
    assert [(one.stream, one.kinds) for one in hosted.dead_letters()] == [("tx", ())]
    folder.mkdir()
    (folder / MARKER_NAME).write_bytes(msgspec.json.encode(Marker("local", dead_letters_of("tx"), "parquet")))
    letter = {"topic": "t", "partition": 1, "offset": 7, "key": b"k", "value": b"{", "reason": "bad"}
    letter |= {"timestamp": datetime(2024, 1, 1, tzinfo=timezone.utc)}
    part = folder / f"part-{1:020d}.parquet"
    pq.write_table(pa.Table.from_pylist([letter]), part)
    (shown,) = hosted.dead_letters()
    at, at_us = "2024-01-01 00:00:00Z", 1_704_067_200_000_000
    assert shown.kinds == (LetterKind("t", "bad", 1, at_us, at_us),)
    assert shown.newest() == shown.newest("BA") == [f"t-1 at 7, {at}: bad", "  {"] and shown.newest("x") == []
    assert hosted.letters("tx", True) == hosted.letters("tx", False) == [*shown.kinds]
    connections = tmp_path / "c.json"
    monkeypatch.setenv(VARIABLE, str(connections))
    connections.write_text('{"local": {"servers": "127.0.0.1:9"}}')
    with pytest.raises(QueryRefused, match="The topic t is not for requests that come over the network"):
        hosted.replay("tx", Replay(), "ann", False)
    connections.write_text('{"local": {"servers": "127.0.0.1:9", "topics": ["t"]}}')
    monkeypatch.setattr(Publisher, "reached", lambda self: Cursor(0))
    for reason in (None, "bad", "B"):
        assert hosted.replay("tx", Replay(reason), "ann", True) == Priced("sends 1 dead letter again (1 to t: bad)")
    with pytest.raises(RequestError, match="No dead letter has a reason with 'good'"):
        hosted.replay("tx", Replay("good"), "ann", True)
    timeless = timeless_reason("bad_ts", "timestamp_millis(ms)")
    pq.write_table(pa.Table.from_pylist([letter, letter | {"offset": 8, "reason": timeless}]), part)
    for reason, letters in (("b", "1 dead letter again (1 to t: bad)"), (timeless, "0 dead letters again")):
        priced = hosted.replay("tx", Replay(reason), "ann", True)
        assert priced == Priced(f"sends {letters}. {left_out_line(1)}"), "its rows would be doubled"
    kinds = f"1 to t: bad; 1 to t: {timeless}"
    twice = repeated_line([Unsent("t", timeless, 1)])
    priced = hosted.replay("tx", Replay("b", timeless=True), "ann", True)
    assert twice and priced == Priced(f"sends 2 dead letters again ({kinds}). {twice}")
    monkeypatch.setattr(Publisher, "reached", lambda self: Cursor(1))
    priced = hosted.replay("tx", Replay("BAD", timeless=True), "ann", True)
    assert priced == Priced("sends 0 dead letters again"), "they were sent before"
    for call in (lambda: hosted.replay("in", Replay(), "ann", True), lambda: hosted.letters("in", False)):
        with pytest.raises(RequestError, match="keeps no dead letters"):
            call()
    record(LetterFolder.of(folder), "ann", None, "127.0.0.1:9", {"bad": (-1, 1)})
    assert [kind.reason for kind in hosted.letters("tx", True)] == [timeless]
    (sent,) = (kind.sent for kind in hosted.letters("tx", False) if kind.reason == "bad")
    assert [one.who for one in sent] == ["ann"]
    (listed,) = hosted.dead_letters()
    assert len(listed.newest(pending=True)) == 2
    assert [line.endswith(f"bad ({sent_text(sent)})") for line in listed.newest("bad")[::2]] == [False, True]


def test_only_a_known_or_a_new_parameter_is_set(bench: Bench) -> None:
    def param(name: str, value: float, who: str) -> None:
        bench.pond.change(SetParameter(name, literal(value, "double"), who, before=bench.pond.spec.effects.last))

    bench.leader = SimpleNamespace(param=param)
    with pytest.raises(ChangeRefused, match=r"There is no parameter limit. `millpond param set --new limit=…` makes"):
        bench.hosted.set("limit", Value(200), "ann")
    assert bench.hosted.set("limit", Value(200, new=True), "ann").record == 1
    with pytest.raises(ChangeRefused, match=r"There is no parameter limt. Did you mean limit\? `millpond param set"):
        bench.hosted.set("limt", Value(200), "ann")
    assert bench.hosted.set("limit", Value(300), "ann").record == 2
    assert [(one.value, one.record) for one in bench.hosted.parameters()] == [(300.0, 2)]


def test_a_reload_of_functions_is_logged_with_its_requester(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.leader = SimpleNamespace(load_functions=lambda: (WORST,))
    with caplog.at_level(logging.INFO, "millpond.service"):
        (shown,) = bench.hosted.functions(True, "ann@1")
    assert (shown.digest, shown.queries) == (WORST.digest, ())
    assert caplog.messages == [f"functions were loaded for ann@1: worst@2 sha256 {WORST.digest}"]


def test_the_status_says_what_waits_and_what_is_incomplete(bench: Bench) -> None:
    assert (bench.hosted.status().sources, bench.hosted.status().problems) == ((), ())
    followers = [FollowerStatus("sink:one", 3, 0), FollowerStatus("query:one", 3, 0, note="[MP-OVERFLOW] …")]
    problem = Problem("MP-OVERFLOW", "query one", "Query one is quarantined.", True)
    bench.leader = SimpleNamespace(
        status=lambda: followers, behind=lambda: [Behind("tx", "records", 7)], problems=lambda: [problem]
    )
    found = bench.hosted.status()
    assert [one.name for one in found.followers] == ["sink:one"]
    assert found.sources == (SourceShown("tx", "records", 7),)
    assert found.problems == ("[MP-OVERFLOW] Query one is quarantined.",)


def test_the_status_does_not_wait_for_a_spark_that_has_stalled(bench: Bench) -> None:
    def behind() -> list[Behind]:
        raise AssertionError("Spark never answers")

    bench.leader, bench.stalled = SimpleNamespace(status=list, behind=behind, problems=list), True
    assert bench.hosted.status().sources == ()
