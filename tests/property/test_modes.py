"""Updating results: each epoch emits those of the naive twin, and their sum is the result over all events."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import (
    SECOND,
    SESSIONS,
    STREAM,
    UNEQUAL,
    WINDOWS,
    Case,
    Menu,
    aggregate_of,
    by_window,
    random_case,
)
from kit.inputs.examples import examples, seeds
from kit.inputs.strategies import cases_of
from kit.judges.answers import Run, dealt
from kit.naive.expressions import Raised
from kit.naive.queries import windows as oracle
from kit.naive.queries.output_modes import emitted_by_epoch
from kit.simulator.changing_pond import ChangingPond
from millpond.errors import OverflowedError
from millpond.followers.record_rows import RowsReader
from millpond.followers.view.view import ViewFollower, scan
from millpond.log.manifest import load
from millpond.log.records import EpochRecord, decode
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Parameter, call, conjunction, literal
from millpond.model.query import Named, Query, length_us
from millpond.model.stream import Field, Order, Stream
from millpond.model.windows import NEVER_LATE_US, RUNNING, Session, Sliding, Window
from millpond.plan.groups.build import build_plan
from millpond.plan.options.output_modes import only_distinct
from millpond.reconfigure.changes import SetParameter
from millpond.runtime.fold import fold
from millpond.state.backends.memory import MemoryStore
from millpond.testing.compare import assert_same_rows, canonical, rows_of
from millpond.testing.local_pond import read_section

PROPERTY = settings(suppress_health_check=list(HealthCheck))
MENU = Menu(windows=(*SESSIONS, *WINDOWS))
WITHOUT_ERRORS = Menu(raising=False, summed=("v", "amount", "f", "p"))
CORRECTED_FOR = (1, 7 * SECOND, 40 * SECOND, 3600 * SECOND)


ORDERED = Stream(
    "tx", (Field("k", "string"), Field("v", "int"), Field("amount", "double"), Field("ts", "timestamp"),
           Field("p", "int"), Field("o", "bigint")), order=Order("p", "o", ("0", "1")), max_ahead_us=None,
)  # fmt: skip


def changing(query: Query, seed: int) -> Query:
    """The query with a mode, and columns that say of which window and key a row is."""
    dice = random.Random(f"{query.name}{seed}")
    having = query.having
    if having is None and query.aggregates and dice.random() < 0.5:
        counts = [i for i, one in enumerate(query.aggregates) if one.type == "bigint" and one.function == "count"]
        # rows that come, and go again as there are more events
        having = call("lt", (Column(f"agg:{counts[0]}", "bigint"), literal(3, "bigint")), "boolean") if counts else None
    query = replace(query, output=(*query.output, *_places(query)), having=having)
    if dice.random() < 0.1:
        return query  # a neighbour whose rows are final
    if dice.random() < 0.5:
        return replace(query, emit="update")
    return replace(query, correct_us=dice.choice(CORRECTED_FOR))


def _places(query: Query) -> list[Named]:
    bounds = [Named(f"at_{end}", Column(f"window.{end}", "timestamp")) for end in ("start", "end")]
    return [*bounds, *(Named(f"by_{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(query.keys))]


SLIDES: tuple[Window, ...] = (Sliding(45 * SECOND, 15 * SECOND), Sliding(64 * SECOND, 2 * SECOND))
GAPS: tuple[Window, ...] = (Session(4 * SECOND), Session(30 * SECOND))
FEW = {SLIDES: ("0", "1"), GAPS: ("0", "3")}
"""How names of queries end that are enough of a restless case."""


def restless(
    seed: int, epochs: int, era: int = 0, longest: int = 200, logged: bool = False, windows: Sequence[Window] = SLIDES
) -> Case:
    """Few keys, much disorder, and a HAVING that rows meet at every third event: they come, go and come again.

    `era`: after this many epochs half of the keys are other ones. `logged`: the aggregates need single events.
    """
    dice, batches = random.Random(seed), []
    for now in range(epochs):
        eras = ("", f"era-{now // era}-") if era else ("",)
        batches.append([
            {"k": f"{dice.choice(eras)}{dice.randint(0, 1)}", "v": dice.randint(-3, 9),
             "amount": dice.randint(0, 999) / 100,
             "ts": (6 * now - dice.choice((0, 1, 5, 20, 60, 100, 150))) * SECOND}
            for _ in range(dice.randint(0, 8))
        ])  # fmt: skip
    key, count = Column("k", "string"), aggregate_of("count", None)
    value, amount = Column("v", "int"), Column("amount", "double")
    aggregates = (count, aggregate_of("sum", amount), aggregate_of("max", value))
    if logged:
        aggregates = (
            Aggregate("count_distinct", amount, None, "bigint"), Aggregate("max_by", amount, None, "double", value),
            Aggregate("collect_list", value, None, "array<int>"),
        )  # fmt: skip
    third = call("remainder", (Column("agg:0", "bigint"), literal(3, "bigint")), "bigint")
    havings = (None, call("eq", (third, literal(1, "bigint")), "boolean"))
    output = tuple(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates))
    queries = []
    for i, (window, having) in enumerate(itertools.product(windows, havings)):
        one = Query("", STREAM.name, "ts", 3 * SECOND, window, (key,), aggregates, output, None, having)
        one = replace(one, output=(*output, *_places(one)))
        queries.append(replace(one, name=f"final{i}"))
        queries.append(replace(one, name=f"update{i}", delay_us=30 * SECOND, emit="update"))
        queries += [replace(one, name=f"for{j}{i}", correct_us=j * SECOND) for j in (15, longest)]
    return Case(batches, queries)


def emitted_by(
    folder: Path, case: Case, instances: int, seed: int
) -> tuple[dict[str, list[list[dict[str, Any]]]], Run]:
    """The rows that a pond emits, by query and epoch."""
    run, deal = Run(folder, case.queries, instances, 16), dealt(seed)
    found: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            found[name].append(rows_of(sink.table().slice(before[name])))
    return found, run


def check(folder: Path, case: Case, instances: int, seed: int) -> list[dict[str, Any]]:
    """Compare each epoch with the naive twin, and all emitted rows with the oracle; returns the twin's rows."""
    found, run = emitted_by(folder, case, instances, seed)
    compared: list[dict[str, Any]] = []
    counts = run.answers().counts
    for query in case.queries:
        expected_counts = oracle.counts(query, case.epochs)
        assert counts.get(query.name, {}) == (expected_counts if expected_counts["read"] else {}), query
        twin = emitted_by_epoch if query.changing else oracle.answer_by_epoch
        try:
            expected = twin(query, case.epochs)
        except (Raised, OverflowedError):
            assert query.name in run.pond.manifest.quarantined, query
            continue
        assert query.name not in run.pond.manifest.quarantined, query
        for mine, theirs in zip(expected, found[query.name], strict=True):
            assert_same_rows(mine, theirs, about=str(query))
            compared += mine
        if query.changing:
            amounts(query, case, found[query.name])
    return compared


def amounts(query: Query, case: Case, epochs: Sequence[Sequence[dict[str, Any]]]) -> None:
    """After each epoch, the emitted rows are the result over all events until then, without a missing revision."""
    standing: dict[Any, dict[str, Any]] = {}
    revisions: dict[Any, int] = {}
    plain = replace(query, emit=UNSET, correct_us=UNSET, delay_us=query.late_after_us)
    marks = oracle.watermarks(replace(query, correct_us=UNSET), case.epochs)[1:]
    every = oracle.answer_after_each(plain, case.epochs)
    for rows, closed in zip(epochs, marks, strict=True):
        for row in rows:
            own = dict(row)
            place = tuple(canonical(own[name]) for name in own if name.startswith(("at_", "by_")))
            how, revision = own.pop("_op"), own.pop("_revision", None)
            if how == "delete":
                assert canonical(standing.pop(place)) == canonical(own)
            else:
                standing[place] = own
            if query.corrected_for_us:
                revisions[place] = revisions.get(place, -1) + 1
                assert revision == revisions[place]
        try:
            expected = next(every)
        except (Raised, OverflowedError):
            assert query.corrected_for_us, "only a window that is not closed yet may have no result"
            return
        if query.corrected_for_us:
            expected = [row for row in expected if closed is not None and row["at_end"] <= closed]
        assert_same_rows(expected, list(standing.values()), about=str(query))


@pytest.mark.parametrize("first", seeds(0, 1, step=6))
def test_seeded_cases_equal_the_naive_twin(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 6):
        case = random_case(seed, 60, 5, menu=MENU if seed % 2 else WITHOUT_ERRORS)
        queries = by_window(case.queries) if seed % 3 == 2 else case.queries
        case = case._replace(queries=[changing(query, seed) for query in queries])
        compared += len(check(next(folders), case, 1 + seed % 3, seed))
    assert compared > 300


@pytest.mark.parametrize("windows", [SLIDES, GAPS, UNEQUAL])
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_rows_that_come_and_go_are_deleted_and_counted(
    seed: int, windows: tuple[Window, ...], folders: Iterator[Path]
) -> None:
    case = restless(seed, 30 if windows == GAPS else 18, logged=seed % 2 == 1, windows=windows)
    rows = check(next(folders), case, 1 + seed % 3, seed)
    assert len(rows) > (1000 if windows == SLIDES else 150)
    assert sum(row.get("_op") == "delete" for row in rows) > 40
    assert max(row.get("_revision", 0) for row in rows) > (4 if windows == SLIDES else 1)


def counted_sessions(**rest: Any) -> Query:
    count, ends = aggregate_of("count", None), ("start", "end")
    bounds = (Named(end, Column(f"window.{end}", "timestamp")) for end in ends)
    output = (*bounds, Named("n", Column("agg:0", "bigint")))
    return Query(stream=STREAM.name, event_time="ts", window=Session(10 * SECOND), keys=(), aggregates=(count,),
                 output=output, **rest)  # fmt: skip


UPDATED = counted_sessions(name="update", delay_us=105 * SECOND, emit="update")
CORRECTED = counted_sessions(name="corrected", delay_us=5 * SECOND, correct_us=100 * SECOND)


def emitted_in_seconds(run: Run, epochs: Sequence[Sequence[int]]) -> dict[str, list[list[tuple[Any, ...]]]]:
    """The rows of a run over events at some seconds, by query and epoch."""
    emitted: dict[str, list[list[tuple[Any, ...]]]] = {name: [] for name in run.sinks}
    for seconds in epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch([[{"k": "a", "ts": second * SECOND} for second in seconds]])
        for name, rows in emitted.items():
            found = rows_of(run.sinks[name].table().slice(before[name]))
            own = [(row["start"] // SECOND, row["end"] // SECOND, *[*row.values()][2:]) for row in found]
            rows.append(sorted(own))
    return emitted


def test_sessions_that_are_prolonged_or_merged_are_deleted_as_they_were(tmp_path: Path) -> None:
    """Emitted in time, prolonged, bridged by a late event, and closed for good."""
    run = Run(tmp_path, [UPDATED, CORRECTED])
    emitted = emitted_in_seconds(run, ([0, 30], [8], [60], [20, 35], [13], [200], [95, 96]))
    assert emitted["update"] == [
        [(0, 10, 1, "upsert"), (30, 40, 1, "upsert")],
        [(0, 10, 1, "delete"), (0, 18, 2, "upsert")],
        [(60, 70, 1, "upsert")],
        [(20, 45, 3, "upsert"), (30, 40, 1, "delete")],
        [(0, 18, 2, "delete"), (0, 45, 6, "upsert"), (20, 45, 3, "delete")],
        [(200, 210, 1, "upsert")],
        [(96, 106, 1, "upsert")],  # that of 95 is late
    ]
    assert emitted["corrected"] == [
        [(0, 10, 1, "upsert", 0)],
        [(0, 10, 1, "delete", 1), (0, 18, 2, "upsert", 0)],
        [(30, 40, 1, "upsert", 0)],
        [(20, 45, 3, "upsert", 0), (30, 40, 1, "delete", 1)],
        [(0, 18, 2, "delete", 1), (0, 45, 6, "upsert", 0), (20, 45, 3, "delete", 1)],
        [(60, 70, 1, "upsert", 0)],
        [(96, 106, 1, "upsert", 0)],
    ]


def test_counts_of_corrections_go_with_their_sessions(tmp_path: Path) -> None:
    run, live = Run(tmp_path, [CORRECTED]), []
    emitted = []
    for seconds in ([0, 4], [30], [2], [3], [300]):
        emitted += emitted_in_seconds(run, [seconds])["corrected"]
        live.append(sum(bool(section.info.get("revisions")) for section in run.pond.manifest.sections.values()))
    rows = [[(0, 14, 2 + i, "upsert", i)] for i in range(3)]
    assert emitted == [[], *rows, [(30, 40, 1, "upsert", 0)]]
    assert live == [0, 0, 1, 2, 0]


def test_sessions_that_began_before_their_query_are_not_emitted(tmp_path: Path) -> None:
    other = counted_sessions(name="other", delay_us=105 * SECOND)
    emitted_in_seconds(Run(tmp_path, [other]), [[0, 40]])
    emitted = emitted_in_seconds(Run(tmp_path, [other, UPDATED, CORRECTED]), [[45, 70], [61], [90], [52], [200]])
    assert emitted["update"] == [
        [(70, 80, 1, "upsert")],
        [(61, 80, 2, "upsert"), (70, 80, 1, "delete")],
        [(90, 100, 1, "upsert")],
        [(61, 80, 2, "delete")],  # it is one of 40 to 80 now
        [(200, 210, 1, "upsert")],
    ]
    assert emitted["corrected"] == [
        [], [], [(61, 80, 2, "upsert", 0)], [(61, 80, 2, "delete", 1)], [(90, 100, 1, "upsert", 0)],
    ]  # fmt: skip


@pytest.mark.parametrize("windows", [SLIDES, GAPS])
@pytest.mark.parametrize("logged", [False, True])
def test_revisions_are_counted_on_when_keys_end_and_segments_merge(
    logged: bool, windows: tuple[Window, ...], folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    longest = 40 if windows == SLIDES else 70
    case, folder = restless(5, 60, era=3, longest=longest, logged=logged, windows=windows), next(folders)
    case = case._replace(queries=[query for query in case.queries if query.name.endswith(("0", "1"))])
    assert len(check(folder, case, 1, 5)) > 500
    pond = ChangingPond(folder, [STREAM], case.queries)
    records = [decode(pond.log.read(n) or b"").record for n in range(pond.manifest.n)]
    epochs = [record for record in records if isinstance(record, EpochRecord)]
    written = [section for epoch in epochs for receipt in epoch.receipts for section in receipt.sections]
    assert max(int(section.info["generation"]) for section in written if section.info.get("revisions")) > 0
    assert max(int(section.info["level"]) for section in written if section.info.get("revisions")) > 0


@pytest.mark.parametrize("instances", [1, 3])
def test_rows_of_few_keys_change_with_those_of_many(instances: int, tmp_path: Path) -> None:
    """What is stored of few keys is in narrow columns, which hold no slot of the keys that come later."""
    case = restless(1, 0)
    epochs = [
        [{"k": f"key-{i}", "v": i, "amount": 1.0, "ts": now * SECOND} for i in range(many)]
        for now, many in enumerate((3, 5, 100, 500, 3, 7))
    ]  # fmt: skip
    queries = [query for query in case.queries if query.name in ("update0", "for2001", "final0")]
    assert len(check(tmp_path, Case(epochs, queries), instances, 1)) > 1_000


@pytest.mark.parametrize("windows", [SLIDES, GAPS])
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_a_view_holds_the_newest_undeleted_row(seed: int, windows: tuple[Window, ...], tmp_path: Path) -> None:
    case = restless(seed, 30, windows=windows)
    queries = [replace(query, serve=True) for query in case.queries if query.name.endswith(FEW[windows])]
    case, folder, store = case._replace(queries=queries), tmp_path / "pond", MemoryStore()
    run = Run(folder, queries, 2, 16)
    reader = RowsReader(lambda _n, receipt, section: read_section(folder, receipt, section))
    sizes = {query.name: length_us(query.window) for query in queries}
    log = run.pond.log
    run.pond.follow(ViewFollower(store, reader, 16, lambda: sizes, lambda: load(log, run.pond.manifests), log.read))
    newest: dict[str, dict[str, dict[str, Any]]] = {query.name: {} for query in queries if query.changing}
    twin = {query.name: emitted_by_epoch(query, case.epochs) for query in queries if query.changing}
    for i, batch in enumerate(case.epochs):
        run.epoch(dealt(seed)(batch))
        for name, held in newest.items():
            for row in sorted(twin[name][i], key=lambda row: (row["_op"] != "delete", row["at_end"])):
                key, known = row["by_0"], held.get(row["by_0"])
                if row["_op"] == "delete":
                    if known is not None and known["at_end"] == row["at_end"]:
                        del held[key]
                elif known is None or row["at_end"] >= known["at_end"]:
                    held[key] = row
            found = {
                msgspec.json.decode(key)[0]: msgspec.json.decode(document)
                for bucket in scan(store, name, 16)
                for key, document in zip(bucket.keys, bucket.documents, strict=True)
            }
            assert {key: one["window"] for key, one in found.items()} == {
                key: [row["at_start"], row["at_end"]] for key, row in held.items()
            }
            for key, one in found.items():
                assert one["row"]["a0"] == held[key]["a0"]
                assert one["row"].get("_revision") == held[key].get("_revision")
                assert "_op" not in one["row"]


@pytest.mark.parametrize("windows", [SLIDES, GAPS])
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_no_cut_changes_the_final_rows(seed: int, windows: tuple[Window, ...], tmp_path: Path) -> None:
    case = restless(seed, 24, logged=seed % 2 == 1, windows=windows)
    dice, rows = random.Random(seed), [row for batch in case.epochs for row in batch]
    for o, row in enumerate(rows):
        row.update(p=dice.randint(0, 1), o=o)
    queries = [replace(query, stream="tx") for query in case.queries if query.name.endswith(FEW[windows])]
    found = []
    for turn in range(3):
        run, at = Run(tmp_path / str(turn), queries, 1 + turn, 16, stream=ORDERED), 0
        while at < len(rows):
            more = dice.randint(1, (5, 30, 200)[turn])
            run.epoch([[row for row in rows[at : at + more] if row["p"] == p] for p in (0, 1)])
            at += more
        if turn:
            run.pond.drain()
        standing: dict[tuple[Any, ...], dict[str, Any]] = {}
        for query in queries:
            for row in rows_of(run.sinks[query.name].table()):
                place = query.name, row["at_start"], row["at_end"], row["by_0"]
                standing.pop(place, None)
                if row.pop("_op", "upsert") == "upsert":
                    standing[place] = {name: value for name, value in row.items() if name != "_revision"}
        found.append({place: row for place, row in standing.items() if turn or place[0].startswith("update")})
    assert found[1] == found[2]
    assert {place: row for place, row in found[1].items() if place in found[0]} == found[0] != {}


@settings(PROPERTY, max_examples=examples(15))
@given(case=cases_of(max_events=30, max_queries=4, menu=MENU), instances=st.integers(1, 3), seed=st.integers(0, 9))
def test_small_nasty_streams_equal_the_naive_twin(
    case: Case, instances: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(folder, case._replace(queries=[changing(query, seed) for query in case.queries]), instances, seed)
    shutil.rmtree(folder)


@pytest.mark.parametrize("seed", (40, 41, 43))
def test_cells_split_by_signature_emit_the_same_changes(seed: int, folders: Iterator[Path]) -> None:
    case = random_case(seed, 80, 2, menu=WITHOUT_ERRORS)
    queries = []
    for i, query in enumerate(query for query in case.queries for _ in range(12)):
        above = call("gt", (Column("amount", "double"), literal(i * 40.0, "double")), "boolean")
        where = conjunction([part for part in (query.where, above) if part is not None])
        queries.append(changing(replace(query, name=f"{query.name}_{i}", where=where), seed))
    assert any(group.signed for group in build_plan(queries).groups)
    assert len(check(next(folders), case._replace(queries=queries), 2, seed)) > 100


def test_all_events_so_far_are_counted_after_a_drain_too_and_by_a_query_that_comes_later_from_then_on(
    tmp_path: Path,
) -> None:
    counts = Query(
        "so_far", STREAM.name, "ts", NEVER_LATE_US, RUNNING, (Column("k", "string"),), (aggregate_of("count", None),),
        (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint"))), emit="update",
    )  # fmt: skip
    closed = replace(counts, name="closed", window=Sliding(10 * SECOND, 10 * SECOND), delay_us=SECOND, emit=UNSET)
    untimed = replace(counts, name="untimed", event_time="")
    run = Run(tmp_path, [counts, closed, untimed], 2)
    for start in range(5):
        run.epoch([[{"k": "ab"[i % 2], "ts": (10 * start + i) * SECOND} for i in range(10)]])
    run.pond.drain()
    assert run.pond.manifest.watermark_floor == {STREAM.name: 50 * SECOND}
    old = [{"k": "a", "ts": -3 * SECOND}]
    run.epoch([old])
    answers = run.answers()
    assert answers.rows["so_far"][-1] == {"k": "a", "n": 26, "_op": "upsert"}
    assert sum(row["n"] for row in answers.rows["closed"]) == 50
    assert (answers.counts["so_far"]["late"], answers.counts["closed"]["late"]) == (0, 1)
    added = [replace(one, name=f"later_{one.name}") for one in (counts, untimed)]
    later = Run(tmp_path, [counts, closed, untimed, *added], 2)
    later.epoch([old])
    found = later.answers().rows
    for name in ("so_far", "untimed"):
        assert found[name][-1]["n"] == 27 and found[f"later_{name}"] == [{"k": "a", "n": 1, "_op": "upsert"}]


@pytest.mark.parametrize("seed", seeds(50, 2))
def test_a_repeated_value_changes_no_row_of_distinct_aggregates(seed: int, folders: Iterator[Path]) -> None:
    case = random_case(seed, 80, 2, menu=Menu(raising=False, windows=WINDOWS if seed % 2 else UNEQUAL))
    distinct = tuple(Aggregate(name, Column("v", "int"), None, "bigint") for name in ("count_distinct", "sum_distinct"))
    output = tuple(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(distinct))
    queries = [
        replace(query, aggregates=distinct, output=(*output, *_places(query)), having=None, emit="update")
        for query in case.queries
    ]
    assert len(check(next(folders), case._replace(queries=queries), 2, seed)) > 10
    assert all(map(only_distinct, queries))


def test_rows_of_distinct_aggregates_are_emitted_again_after_a_parameter_has_changed(tmp_path: Path) -> None:
    count = Aggregate("count_distinct", Column("v", "int"), None, "bigint")
    least = Parameter("least", "bigint")
    plain = Query(
        "plain", STREAM.name, "ts", NEVER_LATE_US, RUNNING, (Column("k", "string"),), (count,),
        (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint"))), emit="update",
    )  # fmt: skip
    above = replace(plain, name="above", having=call("ge", (Column("agg:0", "bigint"), least), "boolean"))
    more = replace(plain, name="more", output=(*plain.output, Named("least", least)))
    run = Run(tmp_path, [plain, above, more])
    for value in (2, 1, 1):
        run.pond.change(SetParameter("least", literal(value, "bigint")))
        run.epoch([[{"k": "a", "v": 7, "ts": SECOND}]])
    rows = run.answers().rows
    row = {"k": "a", "n": 1, "_op": "upsert"}
    assert rows["plain"] == [row]
    assert rows["above"] == [row, row]
    assert [one["least"] for one in rows["more"]] == [2, 1, 1]
