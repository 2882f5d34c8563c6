"""Why a query emits nothing: each cause in a pond without Spark, found from its files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.facts import (
    Facts,
    QueryRecords,
    find_facts,
    is_running,
    newest_time,
)
from millpond.control.diagnose.why_message import QueryFates, WhyShown, WindowShown
from millpond.control.diagnose.why_report import Why, draw
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import section_reader
from millpond.errors import ForeignPondError, QueryTypeError
from millpond.followers.record_rows import RowsReader
from millpond.followers.runner import FollowerStatus
from millpond.followers.sinks.make_sink import sink_follower
from millpond.log.manifest import Manifest
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import StoredQuery
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Derivation, Field, Malformed, Order, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Processed, Session, Sliding
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.reconfigure.change_price import COMPLETE_LATER, price_of
from millpond.reconfigure.placement_changes import scale
from millpond.reconfigure.validate import KnownPond, add, alter
from millpond.state.ports.files import IDENTITY, Files

SECOND = 1_000_000
FIELDS = (Field("ts", "timestamp"), Field("c", "string"), Field("v", "bigint"))
TX = Stream("tx", FIELDS)
ORDERED = Stream(
    "tx", (*FIELDS, Field("p", "string"), Field("o", "bigint")), None, Order("p", "o", ("0", "1")), max_ahead_us=None
)
V = Column("v", "bigint")
CONSOLE = Sink("console")
SUM = Aggregate("sum", V, None, "bigint")
LARGE = call("gt", (V, literal(100, "bigint")), "boolean")


def query(
    where: Expression | None = None, having: Expression | None = None, sink: Sink = CONSOLE,
    delay: int = 5, argument: Expression = V,
) -> Query:  # fmt: skip
    aggregates = (Aggregate("count", None, None, "bigint"), replace(SUM, argument=argument))
    output = (Named("n", Column("agg:0", "bigint")), Named("s", Column("agg:1", "bigint")))
    keys = (Column("c", "string"),)
    window = Sliding(10 * SECOND, 10 * SECOND)
    return Query("q", "tx", "ts", delay * SECOND, window, keys, aggregates, output, where, having, sink)


class Bench:
    """A pond that is looked at from outside."""

    def __init__(self, folder: Path, registered: Query, stream: Stream = TX) -> None:
        self.folder = folder
        self.pond = ChangingPond(folder, [stream], [registered], instances=2)
        (folder / IDENTITY).write_text("local")

    def follow(self, registered: Query) -> None:
        rows = RowsReader(section_reader(Files(self.folder)))
        self.pond.follow(sink_follower(registered, "local", rows, self.folder / "cursors"))

    def events(self, seconds: Sequence[float | None], v: int = 1, **more: Sequence[object]) -> None:
        times = [None if second is None else round(second * SECOND) for second in seconds]
        columns = {"ts": pa.array(times, pa.int64()), "c": ["a"] * len(times), "v": [v] * len(times), **more}
        self.pond.epoch({"tx": [pa.table(columns)]})

    def facts(self) -> Facts:
        return find_facts(*read_truth(self.folder), "q")

    def why(self) -> Why:
        return explain_why(self.facts())

    def texts(self) -> dict[str, str]:
        why = self.why()
        assert draw(why).count("→ ") == len(why.causes) > 0
        return {cause.code: cause.text for cause in why.causes}


@pytest.fixture
def folder(tmp_pond: Path) -> Path:
    return tmp_pond


def test_nothing_was_read_as_nothing_has_run(folder: Path) -> None:
    texts = Bench(folder, query()).texts()
    assert texts["nothing-read"].startswith("No event of the stream tx was read: no epoch has been committed.")


@pytest.mark.parametrize(
    ("made", "says"),
    [(None, "does not exist: check the path"), (".hidden", "holds no file that Spark"), ("a.json", "run the pond")],
)
def test_nothing_was_read_from_a_folder(folder: Path, tmp_path: Path, made: str | None, says: str) -> None:
    place = tmp_path / "in"
    if made is not None:
        place.mkdir()
        (place / made).touch()
    stream = Stream("tx", FIELDS, Source("json", (("path", str(place)),)))
    text = Bench(folder, query(), stream).texts()["nothing-read"]
    assert str(place) in text
    assert says in text


def test_epochs_without_an_event(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([])
    assert bench.texts()["nothing-read"].startswith("1 epoch committed, but not one event of the stream tx was read.")


def test_everything_is_filtered(folder: Path) -> None:
    bench = Bench(folder, query(where=LARGE))
    bench.events([1, 2, 33])
    why = bench.why()
    assert why.causes[0].code == "all-filtered"
    assert why.causes[0].text.startswith("All of the 3 events read are filtered by WHERE (v > 100)")
    assert bench.facts().due is None


def test_updates_wait_for_nothing_and_corrections_are_not_late(folder: Path, tmp_path: Path) -> None:
    bench = Bench(folder, replace(query(), emit="update"))
    bench.events([1])
    assert bench.facts().due is None
    assert bench.texts()["rows-are-out"].startswith("1 row was emitted")
    assert "delay 5 seconds, emits updates" in draw(bench.why())
    bench = Bench(tmp_path / "corrected", replace(query(), correct_us=50 * SECOND))
    bench.events([1, 100])
    bench.events([50, 60])
    assert bench.facts().recent.counts.late == 0
    bench.events([44, 45])
    late = "late: 55 seconds (the delay plus the time in which rows are corrected) or more behind"
    assert late in str(bench.why().causes)


def test_everything_since_a_record_is_late(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 100])
    bench.events([2, 3])
    bench.events([94.9, 95])
    why = bench.why()
    assert why.causes[0].code == "all-late"
    assert why.causes[0].text.startswith("All of the 4 events read since record 1 are late: 5 seconds (the delay) or")
    bench.events([95.1])
    assert "all-late" not in bench.texts()


def test_everything_is_dead(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([None, None])
    text = bench.texts()["all-dead"]
    assert "ts is missing or more than 1 hour ahead of the driver's clock" in text


def test_a_time_that_does_not_compute_is_shown_with_its_expression(folder: Path) -> None:
    made = Derivation("ev WITH timestamp_seconds(sec) AS ts", ("ev",), "d")
    bench = Bench(folder, query(), Stream("tx", FIELDS, made_of=made))
    bench.events([None])
    assert bench.why().facts.labels == (("tx", "ev, with ts"),)
    says = "dead: ts is missing, cannot be computed (ev WITH timestamp_seconds(sec) AS ts) or more than 1 hour ahead"
    assert says in bench.texts()["all-dead"]
    assert draw(bench.why()).startswith("q: ev, with ts by c"), "it is named as in the text of the query"


def test_dead_events_may_have_dead_letters_with_the_reasons(folder: Path) -> None:
    kept = Malformed("dead-letter", Sink("parquet", "/dead"))
    bench = Bench(folder, query(), Stream("tx", FIELDS, Source("rate", ()), malformed=kept))
    bench.events([None])
    says = "The dead letters of tx have the reasons for its records: `millpond dlq list /dead`"
    assert says in bench.texts()["all-dead"]


def test_only_dead_letters_since_the_last_applied_event_are_its_reason(folder: Path) -> None:
    kept = Malformed("dead-letter", Sink("parquet", "/dead"))
    bench = Bench(folder, query(), Stream("tx", FIELDS, Source("rate", ()), malformed=kept))
    bench.events([1, None])
    bench.events([None])
    facts = replace(bench.facts(), dead_reasons=(("the old one", 9),))

    def dead(written: int, *reasons: tuple[str, int]) -> str:
        recent = replace(facts.recent, letters=9, letters_since_applied=written)
        found = explain_why(replace(facts, recent=recent, dead_reasons_since_applied=reasons)).causes
        texts = {cause.code: cause.text for cause in found}
        assert "dead: the old one" in texts["some-lost"]
        return texts["all-dead"]

    assert "ts is missing" in dead(0) and "the old one" not in dead(0)
    assert "dead: the new one" in dead(1, ("the new one", 1))
    listed = dead(2, ("ts, a + b, fails", 2), ("the new one", 1)).split("\n")
    assert listed[0].endswith("reason, also those of other queries over tx (`millpond dlq list /dead`):")
    assert listed[1:] == ["  2  ts, a + b, fails", "  1  the new one"]
    listed = dead(12, *((f"the schema {n} is not in the registry", 1) for n in range(12))).split("\n")
    assert len(listed) == 12 and listed[-1] == "  and 2 more reasons"


def test_reasons_of_a_topic_name_no_files_and_advice_follows_them(folder: Path) -> None:
    of_files, of_topic = Source("json", (("path", "in"),)), Source("kafka", (("subscribe", "t"),))
    bench = Bench(folder, query(), Stream("tx", FIELDS, of_files))
    bench.events([100])
    bench.events([1, None])
    facts = bench.facts()

    def none_applied(source: Source, order: Order | None) -> str:
        stream = replace(facts.stream, source=source, order=order)
        return next(one.text for one in explain_why(replace(facts, stream=stream)).causes if one.code == "none-applied")

    text = none_applied(of_files, None)
    assert "1 late: 5 seconds (the delay) or more behind the newest event of earlier epochs, or in a window" in text
    assert "input (`--drain`); 1 dead: ts is missing" in text
    assert text.endswith(". Files are read in the order of their modification times. A longer DELAY waits for more.")
    text = none_applied(of_topic, Order("partition", "offset"))
    assert "iles" not in text and "epochs" not in text
    assert "1 late: 5 seconds (the delay) or more behind an earlier record of their partition, or in a window" in text
    failing = explain_why(replace(facts, failure="[MP-SOURCE] No broker.")).causes[0]
    assert failing.code == "failing" and failing.text.endswith(": [MP-SOURCE] No broker.")


def test_control_characters_of_a_reason_are_escapes_wherever_the_report_is_printed(folder: Path) -> None:
    reason = "ValueError: bad card '\x1b]0;owned\x07\x1b[2J\u202e\u2028'"
    why = explain_why(replace(Bench(folder, query()).facts(), quarantined=reason))
    shown = why.shown()
    for text in (str(why), why._repr_html_(), str(shown), shown._repr_html_()):
        assert r"\x1b]0;owned\x07\x1b[2J\u202e\u2028" in text
        assert all(part.isprintable() for part in text.split("\n"))
    assert shown.quarantined == reason, "fields have the text as it is"


def test_what_raises_is_dead(folder: Path) -> None:
    bench = Bench(folder, query(argument=call("divide", (V, call("subtract", (V, V), "bigint")), "bigint")))
    bench.events([1])
    assert "all-dead" in bench.texts()


def test_missing_columns_of_some_events_are_shown_with_the_rows(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, None, 100])
    assert bench.texts()["some-lost"].startswith("It did not count 1 of the 3 events read: 1 dead: ts is missing or")
    bench.events([2, 101])
    text = bench.texts()["some-lost"]
    assert " 2 of the 5 events read: 1 late: " in text and "; 1 dead: " in text
    bench.events([None])
    assert "all-dead" in bench.texts() and " 3 of the 6 " in bench.texts()["some-lost"]


def test_a_mixture_takes_no_part(folder: Path) -> None:
    bench = Bench(folder, query(where=LARGE))
    bench.events([1, None])
    text = bench.texts()["none-applied"]
    assert text.startswith("None of the 2 events read was applied: 1 filtered by WHERE")
    assert "1 dead: " in text


def test_the_window_is_open_and_what_is_missing_closes_it(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 14.9])
    why = bench.why()
    assert [cause.code for cause in why.causes] == ["window-open"]
    assert why.causes[0].text == (
        "The next row is due when the window 1970-01-01 00:00:00Z to 1970-01-01 00:00:10Z closes. That needs an event "
        "of 1970-01-01 00:00:15Z or later in tx (its end plus the delay of 5 seconds); the newest is "
        "1970-01-01 00:00:14.9Z."
    )
    # a hair before nothing comes, at that time it does: what is said is what happens
    bench.events([14.999999])
    assert bench.facts().recent.counts.rows == 0
    bench.events([15])
    facts = bench.facts()
    assert facts.recent.counts.rows == 1
    assert facts.due is not None
    assert facts.due.start_us == 10 * SECOND


def test_a_processor_waits_for_the_time_of_an_event_or_timer(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([3])
    facts = bench.facts()
    assert isinstance(facts.query, Query)
    why = explain_why(replace(facts, query=replace(facts.query, window=Processed())))
    assert why.causes[0].text.startswith(
        "The next event or timer of a key is processed at 1970-01-01 00:00:10Z. That needs an event of "
        "1970-01-01 00:00:15Z or later in tx (its time plus the delay of 5 seconds); "
    )


def test_a_session_is_open_until_no_event_prolongs_it(folder: Path) -> None:
    bench = Bench(folder, replace(query(), window=Session(10 * SECOND)))
    bench.events([1, 9, 14])
    why = bench.why()
    assert [cause.code for cause in why.causes] == ["window-open"]
    assert why.causes[0].text.startswith(
        "The next row is due when the session 1970-01-01 00:00:01Z to 1970-01-01 00:00:24Z closes, if no event "
        "prolongs it. That needs an event of 1970-01-01 00:00:29Z or later"
    )
    assert "sessions with a gap of 10 seconds" in draw(why)
    bench.events([29])
    assert bench.facts().recent.counts.rows == 1


def test_the_window_waits_for_the_slowest_partition(folder: Path) -> None:
    bench = Bench(folder, query(), ORDERED)
    bench.events([1, 40], p=["0", "0"], o=[0, 1])
    text = bench.texts()["window-open"]
    assert "or later in every source partition of tx" in text
    assert "It waits for partition 1 (no event yet) to reach that time, or to be idle for 1 minute" in text
    for idle, where in (((True, False), "every source partition of tx that is not idle"), ((True, True), "tx")):
        parts = tuple(replace(one, idle=now) for one, now in zip(bench.facts().partitions, idle, strict=True))
        causes = explain_why(replace(bench.facts(), partitions=parts)).causes
        assert any(f"or later in {where} (its end" in cause.text for cause in causes)
    bench.events([12], p=["1"], o=[0])
    assert "It waits for partition 1 (1970-01-01 00:00:12Z) to" in bench.texts()["window-open"]
    assert "1          1970-01-01 00:00:12Z         waited for" in draw(bench.why())
    bench.events([15], p=["1"], o=[1])
    assert bench.facts().recent.counts.rows == 1


def test_having_withholds_every_row(folder: Path) -> None:
    having = call("gt", (Column("agg:1", "bigint"), literal(10, "bigint")), "boolean")
    bench = Bench(folder, query(having=having))
    bench.events([1, 2, 11, 30])
    texts = bench.texts()
    assert next(iter(texts)) == "having"
    assert texts["having"] == "All 2 rows of closed windows did not meet HAVING (sum(v) > 10)."
    assert "window-open" in texts
    bench.events([61], v=20)
    bench.events([80])
    assert "having" not in bench.texts()
    assert (bench.facts().recent.counts.withheld, bench.facts().recent.counts.rows) == (3, 1)


def test_the_sink_lags(folder: Path, tmp_path: Path) -> None:
    followed = query(sink=Sink("json", str(tmp_path / "out")))
    bench = Bench(folder, followed)
    bench.events([1, 20])
    text = bench.texts()["sink-behind"]
    assert text.startswith(f"Rows are committed up to record 1, but the sink (json {tmp_path}/out) has none yet.")
    bench.follow(followed)
    bench.events([20])
    assert "sink-behind" not in bench.texts()


def test_the_error_of_a_sink_is_reported_within_its_process(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 20])
    status = [FollowerStatus("sink:q", 0, 2, 3, "[MP-PLACE] disk full"), FollowerStatus("sink:other", 0, 2, 3, "no")]
    causes = explain_why(find_facts(*read_truth(folder), "q", status)).causes
    assert [cause.code for cause in causes].count("sink-behind") == 1
    assert "sink:q: [MP-PLACE] disk full" in causes[0].text


@pytest.mark.parametrize(("sink", "code"), [("noop", "no-sink"), ("memory", "in-memory")])
def test_rows_that_go_nowhere_else(folder: Path, sink: str, code: str) -> None:
    bench = Bench(folder, query(sink=Sink(sink)))
    bench.events([1, 20])
    assert code in bench.texts()


def test_it_is_quarantined(folder: Path) -> None:
    most = literal(2**63 - 1, "bigint")
    bench = Bench(folder, query(argument=call("coalesce", (most, V), "bigint")))
    bench.events([1, 2, 30])
    texts = bench.texts()
    assert list(texts) == ["quarantined"]
    assert "[MP-OVERFLOW] A result of query 'q' leaves its type" in texts["quarantined"]


class ChainBench(Bench):
    """The query `q` reads the rows of `spend`, which may raise."""

    def __init__(self, folder: Path, raises: bool = False) -> None:
        spend = replace(query(), name="spend", output=(*query().output, Named("w", Column("window", WINDOW))))
        if raises:
            zero = call("subtract", (Column("agg:0", "bigint"), Column("agg:0", "bigint")), "bigint")
            over = call("divide", (literal(1.0, "double"), call("cast", (zero,), "double")), "double")
            spend = replace(spend, output=(*spend.output, Named("raises", over)))
        of_rows = replace(query(delay=0, argument=Column("s", "bigint")), stream="spend", event_time="w.time", keys=())
        of_rows = replace(of_rows, window=Sliding(60 * SECOND, 60 * SECOND))
        self.folder = folder
        self.pond = ChangingPond(folder, [TX, chained_stream(spend)], [spend, of_rows], instances=2)
        (folder / IDENTITY).write_text("local")


def test_why_names_what_upstream_queries_wait_for(folder: Path) -> None:
    bench = ChainBench(folder)
    bench.events([1, 2, 8])
    texts = bench.texts()
    assert "not one event of the stream spend was read" in texts["nothing-read"]
    assert "It reads the rows of spend, one epoch after they are committed" in texts["reads-rows"]
    bench.events([30])
    bench.pond.settle()
    text = bench.texts()["window-open"]
    assert "That needs spend to have emitted all rows before 1970-01-01 00:01:00Z" in text
    assert "it has emitted all rows up to 1970-01-01 00:00:29.999998Z" in text


def test_the_newest_time_of_a_union_is_one_that_all_its_branches_have_reached() -> None:
    steps = tuple(StoredQuery.of(replace(query(), name=name)) for name in ("fast", "slow"))
    union = replace(TX, name="union", united=steps)
    manifest = replace(Manifest(), max_time={"union": {"*": 5, "rows": 9}, "tx": {"*": 5, "rows": 9}})
    assert (newest_time(union, manifest), newest_time(TX, manifest)) == (5, 9)
    assert newest_time(union, replace(manifest, max_time={"union": {"rows": 9}})) is None


def test_a_query_over_a_quarantined_one_does_not_advance(folder: Path) -> None:
    bench = ChainBench(folder, raises=True)
    bench.events([1, 2, 8])
    bench.events([300])
    bench.pond.settle()
    first = bench.why().causes[0]
    assert first.code == "upstream-quarantined"
    assert "It reads rows of spend, which is quarantined: [MP-OVERFLOW]" in first.text


def test_rows_are_out(folder: Path) -> None:
    followed = query()
    bench = Bench(folder, followed)
    bench.follow(followed)
    bench.events([1, 20])
    texts = bench.texts()
    assert list(texts) == ["window-open", "rows-are-out"]
    assert texts["rows-are-out"] == "1 row was emitted, the last by record 1."
    bench.pond.drain()
    assert list(bench.texts()) == ["rows-are-out"]


def test_a_driver_that_has_ended_is_reported(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    bench = Bench(folder, query())
    bench.events([1])
    facts = bench.facts()
    recent = replace(facts.recent, host=socket.gethostname(), pid=ended.pid)
    assert facts.running is None
    causes = explain_why(replace(facts, running=False, recent=recent)).causes
    assert [cause.code for cause in causes] == ["window-open", "not-running"]
    assert "--once --drain" in causes[0].text
    assert str(ended.pid) in causes[1].text


def test_the_report_is_sent_as_plain_fields(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 12, 3])
    why = bench.why()
    shown = why.shown(80)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=WhyShown) == shown
    assert (shown.text, str(shown), shown.causes) == (draw(why, 80), draw(why, 80), why.causes)
    assert shown.text.split(", to ")[0].replace("\n ", "") == f"{shown.query}: {shown.computes}"
    assert (shown.query, shown.sink, shown.record, shown.epochs, shown.reaches_start) == ("q", "console", 1, 1, True)
    assert shown.counts == QueryFates(3, 3) == why.facts.recent.counts
    assert shown.due == WindowShown(0, 10 * SECOND, 15 * SECOND) and shown.newest_us == 12 * SECOND
    assert [why.facts.quarantined, why.facts.failure] == ["", ""] and shown.quarantined is shown.failure is None
    failing = explain_why(replace(why.facts, failure="[MP-STORE] It vanished.", quarantined="[MP-OVERFLOW] v")).shown()
    assert (failing.failure, failing.quarantined) == ("[MP-STORE] It vanished.", "[MP-OVERFLOW] v")
    assert "<pre>q: " in failing._repr_html_()


def test_only_a_process_of_this_host_is_looked_for() -> None:
    def runs(host: str, pid: int) -> bool | None:
        return is_running(QueryRecords(0, True, QueryFates(), QueryFates(), host=host, pid=pid))

    assert (runs(socket.gethostname(), os.getpid()), runs("elsewhere", os.getpid())) == (True, None)


def test_no_such_query_or_pond(folder: Path, tmp_path: Path) -> None:
    Bench(folder, query())
    with pytest.raises(QueryTypeError, match="It has q"):
        find_facts(*read_truth(folder), "p")
    with pytest.raises(ForeignPondError):
        read_truth(tmp_path / "none")


def test_the_picture(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 2, 14])
    text = draw(bench.why())
    assert "  read                  3  ████" in text
    assert "  window due  ━" in text
    assert "1970-01-01 00:00:14Z ▲" in text
    assert "┃ needed: 1970-01-01 00:00:15Z" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    narrow = draw(bench.why(), 80)
    assert all(len(line) <= 80 for line in narrow.splitlines()) and "┃ needed: 1970-01-01 00:00:15Z" in narrow
    head, below, *_ = (narrowest := draw(bench.why(), 60)).splitlines()
    assert all(len(line) <= 60 for line in narrowest.splitlines()), narrowest
    assert below.startswith("  ") and f"{head}{below[1:]}" == narrow.splitlines()[0], "the first line is wrapped, too"


def test_a_query_that_came_later_says_when_its_first_row_can_come(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 2])
    bench.events([37])
    bench.events([37])
    later = replace(query(), name="later", window=Sliding(60 * SECOND, 20 * SECOND))
    spec, manifest = bench.pond.spec, bench.pond.manifest
    change = add(KnownPond(spec, manifest), later)
    price = price_of(KnownPond(spec, manifest), change, bench.pond.setting)
    bench.pond.change(change)
    # what is kept makes windows complete from 30 s on, but the first that starts there or later starts at 40 s
    assert (price.complete_from_us, price.cost) == (30 * SECOND, COMPLETE_LATER)
    assert price.first == (40 * SECOND, 100 * SECOND, 105 * SECOND)
    assert price.adds.startswith("one more query: later\n  group     shares ") and "measures  none more" in price.adds

    def causes() -> dict[str, str]:
        why = explain_why(find_facts(*read_truth(folder), "later"))
        assert ("┃ needed: 1970-01-01 00:01:45Z" in draw(why)) == (why.causes[0].code != "rows-are-out")
        return {cause.code: cause.text for cause in why.causes}

    assert causes()["nothing-read"].startswith("No event of the stream tx was read since later was added.")
    bench.events([38, 39])
    text = causes()["not-complete-yet"]
    assert text.startswith(
        "later was added while the pond ran, and is complete from 1970-01-01 00:00:30Z on. Its first window is "
        "1970-01-01 00:00:40Z to 1970-01-01 00:01:40Z: the first row can be emitted when an event of 1970-01-01 "
        "00:01:45Z or later was read from tx (its end plus the delay of 5 seconds); the newest is 1970-01-01 00:00:39Z."
    )
    assert "The 2 events applied until now belong to windows that start before that, which are not emitted" in text
    bench.events([51])
    ((code, text),) = causes().items()
    assert code == "window-open" and "1970-01-01 00:00:40Z to 1970-01-01 00:01:40Z closes" in text
    bench.events([104])
    assert list(causes()) == ["window-open"]
    bench.events([106])
    bench.events([107])
    why = explain_why(find_facts(*read_truth(folder), "later"))
    assert [cause.code for cause in why.causes][1:] == ["window-open", "rows-are-out"]


def test_rows_of_earlier_versions_are_rows_of_the_query(folder: Path) -> None:
    bench = Bench(folder, query())
    bench.events([1, 2, 30])
    spec, manifest = bench.pond.spec, bench.pond.manifest
    bench.pond.change(alter(KnownPond(spec, manifest), query(where=LARGE)))
    bench.events([50], v=200)
    assert "2 rows were emitted" in bench.texts()["rows-are-out"]


def test_a_change_of_owners_is_reported_until_a_second_epoch_has_followed(tmp_path: Path) -> None:
    run = Bench(tmp_path, query())
    run.events([1, 2])
    run.pond.move((1,) * 64, "slots lie elsewhere")
    first = run.why().causes[0]
    assert first.code == "state-moves" and "(slots lie elsewhere). The next epoch moves" in first.text
    run.events([3])
    texts = [cause.text for cause in run.why().causes if cause.code == "state-moves"]
    assert len(texts) == 1 and "the newest epoch migrated their state, and was committed 0.0 s" in texts[0]
    run.pond.change(scale(KnownPond(run.pond.spec, run.pond.manifest), 3))
    assert "(requested)" in run.why().causes[0].text
    run.events([4])
    run.events([5])
    assert all(cause.code != "state-moves" for cause in run.why().causes)
