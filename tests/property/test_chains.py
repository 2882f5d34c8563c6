"""Queries over queries emit, epoch by epoch, the rows of nested plain loops, for any cut of the input."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import DELAYS, SECOND, SESSIONS, STREAM, WINDOWS
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from kit.naive.queries.deduplicate import without_repeats
from kit.naive.queries.output_modes import emitted_by_epoch
from kit.naive.queries.query_chain import as_events, chain_by_epoch, union_by_epoch
from kit.naive.queries.windows import Result
from kit.simulator.changing_pond import DyingLog, ForgetfulFiles
from millpond.errors import QueryTypeError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Order, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Range, Session, Sliding
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.options.output_modes import with_mode
from millpond.plan.upstream.rows_as_stream import bounds_of, chained_stream, united_stream
from millpond.plan.upstream.steps import united_names
from millpond.reconfigure.first_window import beginnings
from millpond.testing.compare import assert_same_rows, rows_of
from millpond.testing.trial import Trial

PROPERTY = settings(suppress_health_check=list(HealthCheck))
TOTAL = Column("total", "bigint")


def aggregates(value: Column, key: Column) -> tuple[Aggregate, ...]:
    top = Aggregate("max_by", key, None, f"array<{key.type}>", value, (literal(2, "int"),))
    return Aggregate("sum", value, None, "bigint"), Aggregate("count", None, None, "bigint"), top


def random_query(dice: random.Random, name: str, upstream: Query | None) -> Query:
    """By one key, by two or by none; its rows show a window or its bounds, and `total`, `n`, `k` for the next query."""
    stream, event_time = STREAM.name, "ts"
    keys: tuple[Column, ...] = (Column("k", "string"), Column("g", "bigint"))
    value = Column("v", "int")
    if upstream is not None:
        stream, event_time = upstream.name, dice.choice(sorted(bounds_of(upstream)))
        keys, value = (Column("k", "string"), Column("n", "bigint")), TOTAL
    chosen = dice.choice([keys[:1], keys[1:], keys, ()])
    if upstream is None and dice.randint(0, 3) == 0:
        return random_frames(dice, name, chosen)
    window = dice.choice([*WINDOWS, *SESSIONS[:4]])
    made = aggregates(value, keys[0])[: dice.choice([2, 3])]
    parts = ["end", "time"] if isinstance(window, Session) else ["start", "end", "time"]
    times = [Named("t", Column(f"window.{dice.choice(parts)}", "timestamp")), Named("w", Column("window", WINDOW))]
    text = keys[0] in chosen
    shown = Column(f"key:{chosen.index(keys[0])}", "string") if text else literal("none", "string")
    output = [Named("k", shown), Named("total", Column("agg:0", "bigint")), Named("n", Column("agg:1", "bigint"))]
    output += [Named("top", Column("agg:2", made[2].type))] if len(made) > 2 else []
    few = call("lt", (Column("agg:1", "bigint"), literal(3, "bigint")), "boolean")
    where = call("gt", (value, literal(0, "int")), "boolean")
    return Query(
        name, stream, event_time, dice.choice(DELAYS[:4]), window, chosen, made,
        (*output, *times[: dice.choice([1, 2])]), where if dice.randint(0, 2) == 0 else None,
        few if dice.randint(0, 3) == 0 else None,
    )  # fmt: skip


def random_frames(dice: random.Random, name: str, keys: tuple[Column, ...]) -> Query:
    """A row for each event, over events before it; its only time is that of the event."""
    window = dice.choice([Range(0), Range(5 * SECOND), Counted(1, 1), Counted(3, 1)])
    output = (
        Named("k", Column("event:0", "string")), Named("total", Column("agg:0", "bigint")),
        Named("n", Column("agg:1", "bigint")), Named("t", Column("window.time", "timestamp")),
    )  # fmt: skip
    made = aggregates(Column("v", "int"), Column("k", "string"))[:2]
    delay_us = dice.choice(DELAYS[:4])
    return Query(name, STREAM.name, "ts", delay_us, window, keys, made, output, event=(Column("k", "string"),))


def random_epochs(dice: random.Random) -> list[list[dict[str, Any]]]:
    empty, time = dict.fromkeys(field.name for field in STREAM.columns), dice.choice([0, -50, 1_700_000_000]) * SECOND
    epochs = []
    for _ in range(dice.randint(1, 6)):
        rows = []
        for _ in range(dice.randint(0, 8)):
            time += dice.choice([0, 1, SECOND, 4 * SECOND, 20 * SECOND])
            event = {"ts": time - dice.choice([0, 0, 2 * SECOND, 9 * SECOND]), "v": dice.choice([1, 2, 5, -3, None])}
            rows.append(empty | event | {"k": dice.choice(["a", "b", "ä", None]), "g": dice.randint(0, 2)})
        epochs.append(rows)
    return epochs


@settings(PROPERTY, max_examples=examples(18))
@given(seed=st.integers(0, 2**32), depth=st.integers(2, 3), instances=st.integers(1, 3), drained=st.booleans())
def test_each_epoch_answers_with_what_the_epoch_before_committed(
    seed: int, depth: int, instances: int, drained: bool, folders: Iterator[Path]
) -> None:
    dice, folder = random.Random(seed), next(folders)
    queries: list[Query] = []
    for i in range(depth):
        queries.append(random_query(dice, f"q{i}", queries[-1] if queries else None))
    epochs = random_epochs(dice)
    expected = chain_by_epoch(queries, epochs, drained=drained)
    chained = [chained_stream(query) for query in queries[:-1]]
    files = dice.choice([None, ForgetfulFiles(seed)])

    def started() -> Run:
        return Run(folder, queries, instances, others=chained, file_store=files)

    deal, named = dealt(seed), {query.name: rows for query, rows in zip(queries, expected, strict=True)}
    check_epochs(dice, folder, started, [deal(rows) for rows in epochs], drained=drained, expected=named)


def check_epochs(
    dice: random.Random, folder: Path, started: Callable[[], Run], epochs: Sequence[Any], *,
    drained: bool, expected: Mapping[str, Sequence[list[Result]]],
) -> None:  # fmt: skip
    """Run epochs, before or after whose commit some drivers die, and compare the rows of each with `expected`."""
    run, numbers = started(), []
    for rows in epochs:
        if dice.randint(0, 3) == 0:
            run = started()
        dies = dice.choice([None, None, "before", "after"])
        if dies is not None:
            run.pond.log = DyingLog(folder, dies)
            with pytest.raises(KeyboardInterrupt):
                run.epoch(rows)
            run = started()
        if dies != "after":
            run.epoch(rows)
        numbers.append(run.pond.manifest.epoch_n)
    if drained:
        run.pond.drain()
        numbers += range(numbers[-1] + 1, run.pond.manifest.n + 1)
    # a new driver's sinks begin at the first record: all rows there are
    found = started().sinks
    assert not run.pond.manifest.quarantined
    for name, of_epochs in expected.items():
        rows = dict(found[name].epochs())
        for number, wanted in zip(numbers, of_epochs, strict=False):
            table = rows.pop(number, None)
            assert_same_rows(wanted, [] if table is None else rows_of(table))
        assert not rows


def random_branch(dice: random.Random) -> Query | Selection:
    """A query with the columns k, total, n and the event time t: an aggregation, or a stateless one."""
    if dice.randint(0, 2) == 0:
        columns = [Named("k", Column("k", "string")), Named("total", Column("g", "bigint"))]
        columns += [Named("n", literal(1, "bigint")), Named("t", Column("ts", "timestamp"))]
        return Selection("", STREAM.name, tuple(columns), event_time="ts", delay_us=dice.choice(DELAYS[:4]))
    made = random_query(dice, "", None)
    return replace(made, output=tuple(item for item in made.output if item.name in ("k", "total", "n", "t")))


@settings(PROPERTY, max_examples=examples(12))
@given(seed=st.integers(0, 2**32), branches=st.integers(2, 3), instances=st.integers(1, 3), drained=st.booleans())
def test_a_query_over_united_rows_waits_for_all_branches(
    seed: int, branches: int, instances: int, drained: bool, folders: Iterator[Path]
) -> None:
    dice, folder = random.Random(seed), next(folders)
    chosen = [random_branch(dice) for _ in range(branches)]
    chosen[-1] = dice.choice([chosen[0], chosen[-1]])
    name, names = united_names(chosen, "t")
    chosen = [replace(one, name=of) for one, of in zip(chosen, names, strict=True)]
    upstream = replace(random_query(dice, name, None), output=(Named("t", Column("window.time", "timestamp")),))
    reader = random_query(dice, "reader", upstream)
    epochs = random_epochs(dice)
    expected = union_by_epoch(chosen, reader, epochs, drained=drained)
    deal = dealt(seed)

    def started() -> Run:
        return Run(folder, [reader], instances, others=[united_stream(name, chosen)])

    check_epochs(dice, folder, started, [deal(rows) for rows in epochs], drained=drained, expected={"reader": expected})


def pair(**more: Any) -> tuple[Query, Query]:
    """The sum of `v` by `k` and ten seconds, and of those the two largest of each minute."""
    dice = random.Random(1)
    base = random_query(dice, "spend", None)
    key, time = Column("key:0", "string"), Column("window.time", "timestamp")
    value = Column("v", "int")
    output = (Named("k", key), Named("total", Column("agg:0", "bigint")), Named("t", time))
    spend = replace(
        base, keys=(Column("k", "string"),), window=Sliding(10 * SECOND, 10 * SECOND), delay_us=0, where=None,
        aggregates=aggregates(value, Column("k", "string"))[:1], output=output, having=None, event=UNSET,
    )  # fmt: skip
    best = aggregates(TOTAL, Column("k", "string"))[2]
    top = replace(
        spend, name="top", stream="spend", event_time="t", keys=(), window=Sliding(60 * SECOND, 60 * SECOND),
        aggregates=(best,), output=(Named("top", Column("agg:0", best.type)), Named("w", Column("window", WINDOW))),
    )  # fmt: skip
    return replace(spend, **more), top


def events(*rows: tuple[int, str, int]) -> list[dict[str, Any]]:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return [empty | {"ts": time * SECOND, "k": k, "v": v} for time, k, v in rows]


@pytest.mark.parametrize("inline", [1 << 18, -1], ids=["in records", "in files"])
def test_the_largest_of_all_keys_come_an_epoch_after_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr("millpond.state.ports.files.Files.inline_bytes", inline)
    spend, top = pair()
    run = Run(tmp_path, [spend, top], 3, others=[chained_stream(spend)])
    run.epoch([events((1, "a", 5), (2, "b", 7), (3, "c", 1), (55, "a", 3), (56, "c", 9))])
    run.epoch([events((60, "a", 100))])
    assert len(run.answers().rows["spend"]) == 5
    assert run.answers().rows["top"] == []
    assert run.pond.pending
    run.epoch([[]])
    assert [row["top"] for row in run.answers().rows["top"]] == [["c", "b"]]
    assert not run.pond.pending
    counts = run.answers().counts["top"]
    assert (counts["read"], counts["applied"], counts["late"]) == (5, 5, 0)


def test_rows_that_wait_are_taken_without_input_until_none_do(tmp_path: Path) -> None:
    spend, top = pair()
    run = Run(tmp_path, [spend, top], others=[chained_stream(spend)])
    run.epoch([events((1, "a", 5), (61, "b", 7))])
    before = run.pond.manifest.n
    run.pond.settle()
    assert run.pond.manifest.n == before + 1
    assert [row["top"] for row in run.answers().rows["top"]] == [["a"]]


def test_rows_that_only_others_read_go_when_they_were_read(tmp_path: Path) -> None:
    spend, top = pair()
    run = Run(tmp_path, [spend, top], others=[chained_stream(spend)], keep_rows=False)
    run.epoch([events((1, "a", 5), (61, "b", 7))])
    assert run.ledger.live[-1]["rows"] == 1
    run.pond.settle()
    assert "rows" not in run.ledger.live[-1]
    assert run.ledger.counts["top"]["rows"] == 1


def test_a_query_over_one_that_raised_does_not_advance(tmp_path: Path) -> None:
    spend, top = pair()
    over = call("divide", (literal(1.0, "double"), call("cast", (Column("agg:0", "bigint"),), "double")), "double")
    spend = replace(spend, output=(*spend.output, Named("raises", over)))
    run = Run(tmp_path, [spend, top], others=[chained_stream(spend)])
    run.epoch([events((1, "a", 5), (11, "a", 0), (12, "b", 4))])
    run.epoch([events((61, "b", 7))])
    run.epoch([events((200, "b", 7))])
    run.pond.settle()
    run.pond.drain()
    assert [*run.answers().quarantined] == ["spend"]
    # a minute of which some rows are missing is never answered
    assert run.answers().rows["top"] == []


def test_a_query_added_over_another_answers_from_the_first_complete_window(tmp_path: Path) -> None:
    spend, top = pair()
    Run(tmp_path, [spend]).epoch([events((1, "a", 5), (31, "b", 7))])
    run = Run(tmp_path, [spend, top], others=[chained_stream(spend)])
    run.epoch([events((70, "a", 2), (125, "a", 9), (181, "a", 1))])
    run.pond.drain()
    assert [row["w"]["start"].timestamp() for row in run.answers().rows["top"]] == [60, 120, 180]


def test_a_drain_that_was_cut_short_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spend, top = pair()
    chained = [chained_stream(spend)]
    run = Run(tmp_path, [spend, top], 2, others=chained)
    run.epoch([events((1, "a", 5), (31, "b", 7))])
    with monkeypatch.context() as patch:
        patch.setattr("millpond.testing.local_pond.depth", lambda _setting: 0)
        run.pond.drain()
    assert run.pond.pending
    run = Run(tmp_path, [spend, top], 2, others=chained)
    run.pond.drain()
    run.pond.drain()
    assert [row["top"] for row in run.answers().rows["top"]] == [["b", "a"]]


def test_stateless_queries_and_served_ones_take_rows_too(tmp_path: Path) -> None:
    spend, _ = pair(serve=True)
    large = call("gt", (TOTAL, literal(6, "bigint")), "boolean")
    output = (Named("k", Column("k", "string")), Named("twice", call("add", (TOTAL, TOTAL), "bigint")))
    alert = Selection("alert", "spend", output, large)
    run = Run(tmp_path, [spend, alert], 2, others=[chained_stream(spend)])
    for rows in (events((1, "a", 5), (2, "b", 7)), events((11, "a", 8)), [], [], events((21, "c", 9))):
        run.epoch([rows])
    run.pond.drain()
    assert_same_rows(
        [{"k": "b", "twice": 14}, {"k": "a", "twice": 16}, {"k": "c", "twice": 18}], run.answers().rows["alert"]
    )


def test_a_trial_follows_the_rows_as_far_as_they_go() -> None:
    spend, top = pair()
    streams = [STREAM, chained_stream(spend)]
    with Trial.of(streams, [spend, top], only="top", instances=2) as trial:
        trial.feed("events", [{"ts": 1, "k": "a", "v": 5}, {"ts": 61 * SECOND, "k": "b", "v": 1}])
        assert [row["top"] for row in trial.rows("top")] == [["a"]]
        trial.advance("events", to=200 * SECOND)
        assert [row["top"] for row in trial.rows("top")] == [["b"]]
        with pytest.raises(QueryTypeError, match="The events of spend are the rows of a query"):
            trial.feed("spend", [])
    rows = [{"ts": i * SECOND, "k": "ab"[i % 2], "v": i} for i in range(200)]
    ordered = replace(STREAM, columns=(*STREAM.columns, Field("o", "bigint")), order=Order("g", "o", ("0",)))
    with Trial.of([ordered, streams[1]], [spend, top]) as trial:
        trial.assert_same_for_any_cut({"events": [{**row, "g": 0, "o": i} for i, row in enumerate(rows)]})


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_queries_over_deduplicated_rows_emit_changes_and_drop_repeats(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    spend, top = pair()
    key = Column("k", "string")
    spend = deduplicated(spend, STREAM, ["k", "v"], 5 * SECOND)
    shown = tuple(Named(f"a{i}", Column(f"agg:{i}", "bigint")) for i in (0, 1))
    output = (*shown, Named("k", Column("key:0", "string")), Named("w", Column("window", WINDOW)))
    by_key = replace(top, keys=(key,), aggregates=aggregates(TOTAL, key)[:2], output=output)
    changes = with_mode(replace(by_key, name="changes"), "update", None)
    once = deduplicated(replace(by_key, name="once"), chained_stream(spend), ["k"], 20 * SECOND)
    assert isinstance(changes, Query)
    queries = [spend, top, changes, once]
    epochs = [events(*((dice.randint(9 * i, 9 * i + 20), dice.choice("ab"), dice.randint(0, 3)) for _ in range(6)))
              for i in range(20)]  # fmt: skip
    run = Run(tmp_path, queries, 1 + seed % 3, others=[chained_stream(spend)])
    emitted = []
    for rows in epochs:
        before = len(run.sinks["changes"].table())
        run.epoch(dealt(seed)(rows))
        emitted.append(rows_of(run.sinks["changes"].table().slice(before)))
    twin, marked = without_repeats(spend, epochs)
    upstream, tops = chain_by_epoch([twin, top], marked, drained=True)
    read = [[], *(as_events(twin, rows) for rows in upstream)]
    never = 1 << 50  # no row is late for a query over it
    twins = emitted_by_epoch(replace(changes, delay_us=never), read[: len(emitted)])
    for mine, theirs in zip(twins, emitted, strict=True):
        assert_same_rows(mine, theirs)
    run.pond.drain()
    found = run.answers().rows
    assert_same_rows([row for rows in tops for row in rows], found["top"])
    left, kept = without_repeats(replace(once, delay_us=never), read)
    assert_same_rows(windows.answer(left, kept, drained=True), found["once"])
    assert run.ledger.counts["once"]["repeated"] > 0


def slow_branch() -> tuple[Query, Query, Stream]:
    """Sums of ten seconds, the sums of these by the minute, both as one stream, and the count of its rows by minute."""
    spend, _ = pair()
    shown = (Named("t", Column("window.time", "timestamp")),)
    quick = replace(spend, keys=(), aggregates=(), output=shown)
    minute = 60 * SECOND
    slow = replace(quick, stream="spend", event_time="t", window=Sliding(minute, minute), delay_us=minute)
    name, names = united_names([quick, slow], "t")
    quick, slow = (replace(one, name=of) for one, of in zip((quick, slow), names, strict=True))
    count = aggregates(Column("v", "int"), Column("k", "string"))[1]
    reader = replace(
        slow, name="reader", stream=name, delay_us=0, aggregates=(count,),
        output=(Named("n", Column("agg:0", "bigint")), Named("w", Column("window", WINDOW))),
    )  # fmt: skip
    return spend, reader, united_stream(name, [quick, slow])


@pytest.mark.parametrize("drained", [False, True])
def test_a_branch_that_emits_its_first_row_late_loses_none(tmp_path: Path, drained: bool) -> None:
    """Six rows of the quick branch and one of the slow one fall into each minute, and none is late."""
    spend, reader, union = slow_branch()
    run = Run(tmp_path, [spend, reader], 2, others=[chained_stream(spend), union])
    for first in range(1, 400, 200):  # the quick branch emits the rows of minutes before the slow one has begun
        run.epoch([events(*((second, "a", 5) for second in range(first, first + 200, 10)))])
    run.pond.settle()
    if drained:
        run.pond.drain()
    answers = run.answers()
    counts = answers.counts["reader"]
    assert (counts["late"], counts["dead"]) == (0, 0)
    rows = [row["n"] for row in answers.rows["reader"]]
    assert rows[:4] == [7] * 4
    assert sum(rows) == (40 + 7 if drained else 7 * len(rows))


def test_a_query_over_a_branch_that_is_ahead_begins_after_the_rows_that_were_read(tmp_path: Path) -> None:
    spend, reader, union = slow_branch()
    run = Run(tmp_path, [spend, reader], 2, others=[chained_stream(spend), union])
    for second in range(1, 110, 10):
        run.epoch([events((second, "a", 5))])
    manifest = run.pond.manifest
    added = replace(reader, name="added")
    since = beginnings(run.pond.spec, manifest, run.pond.spec.streams, [*run.pond.spec.computed, added])
    assert since["added"] > 79 * SECOND  # a row of the quick branch; the slow one has reached the first minute
