"""Queries that are added, dropped, paused and changed between epochs have exactly the rows of the naive twin."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kit.inputs.cases import (
    SECOND,
    SESSIONS,
    STREAM,
    UNEQUAL,
    WINDOWS,
    Menu,
    aggregate_of,
    by_window,
    condition,
    query,
    random_case,
)
from kit.inputs.examples import seeds
from kit.judges.answers import dealt, table_of
from kit.naive.queries.grouping_sets import plain_queries
from kit.naive.queries.query_changes import NaiveChanges, Plain
from kit.simulator.changing_pond import ChangingPond, ForgetfulFiles
from millpond.errors import ChangeRefused, UnsupportedQuery
from millpond.followers.prune import PruneFollower
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import MemorySink
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.records import ChangeRecord, Receipt, decode
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import ALWAYS, StoredQuery
from millpond.model.endpoints import Sink
from millpond.model.expressions import Call, Column, Expression, Literal, Parameter, call, columns_of, literal
from millpond.model.query import Deduplication, GroupingSet, Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Retention
from millpond.model.windows import Range, Sliced, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.options.complete_column import has_complete_column, with_complete
from millpond.reconfigure import lifecycle, validate
from millpond.reconfigure.catalog import complete_from, history
from millpond.reconfigure.change_price import COMPLETE_AT_ONCE, COMPLETE_LATER, price_of
from millpond.reconfigure.changes import Add, Alter, Change, SetParameter, change_of
from millpond.reconfigure.placement_changes import scale
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import maps
from millpond.runtime.fold import fold, merge_segments
from millpond.runtime.inputs.backfill import Past, RereadEvents, brought, stage_events
from millpond.runtime.task.column_layout import ReadColumn, StreamLayout
from millpond.state.ports.files import Files
from millpond.testing.compare import assert_same_rows, rows_of
from millpond.testing.local_pond import read_section

MENU = Menu(summed=("v", "amount", "p"), raising=False, variance=False, events=False)
SLICED = MENU._replace(windows=(*WINDOWS, *UNEQUAL))
MIXED = MENU._replace(windows=(*WINDOWS, *SESSIONS))
MEMORY = Sink("memory")


def kept(query: Plain) -> Plain:
    return msgspec.structs.replace(query, sink=MEMORY)


class Changing:
    """A local pond whose queries change, and the naive twin that gets the same changes."""

    def __init__(self, folder: Path, queries: Sequence[Plain], instances: int, retain: Retention | None = None) -> None:
        self.retains, self.backfills, self.repeats = retain is not None, False, False
        self._stream = STREAM if retain is None else msgspec.structs.replace(STREAM, retain=retain)
        self._folder, self._sinks = folder, dict[str, MemorySink]()
        self._read: list[list[pa.Table]] = []
        self._reader = RowsReader(lambda _n, receipt, section: read_section(folder, receipt, section))
        started = [kept(one) for one in queries]
        self._files = ForgetfulFiles(instances, 9) if instances == 2 else None  # four may put them
        self.pond = ChangingPond(folder, [self._stream], started, instances, 16, file_store=self._files)
        self.naive: NaiveChanges | NaiveSets = NaiveChanges(started)
        self._turn = 0
        self.change(SetParameter("least", literal(3, "bigint")))
        self.known = {one.name: one for one in started}
        for one in started:
            self._follow(one.name, -1)

    def _follow(self, name: str, since: int) -> None:
        if name not in self._sinks:  # the rows of a name that comes again are its rows, too
            self._sinks[name] = MemorySink(name, self._reader, since)
            self.pond.follow(self._sinks[name])

    def between(self) -> KnownPond:
        return KnownPond(self.pond.spec, self.pond.manifest)

    def change(self, change: Change) -> Change:
        backfilled = isinstance(change, Add) and isinstance(change.backfill_us, int)
        n = self.pond.change(change, partial(self._brought, change)) if backfilled else self.pond.change(change)
        self.naive.change(change)
        if isinstance(change, Add):
            self._follow(change.name, n)
            self.known[change.name] = change.stored.query  # type: ignore[assignment]
        return change

    def _brought(self, change: Add, n: int) -> tuple[Receipt, ...]:
        """The events of all epochs, read again in any order."""
        past = Past(self.pond.log, STREAM.name)
        epochs = [*past.upto(n // 2), *past.upto(n - 1)]
        assert len(epochs) == len(self._read)
        fields = [ReadColumn(field.name, at, field.type) for at, field in enumerate(STREAM.columns, 1)]
        layout = StreamLayout(STREAM.name, (*fields, ReadColumn("file", len(fields) + 1, "string")))
        pairs = [(f"epoch {i}", table) for i, tables in enumerate(self._read) for table in tables]
        files = {name: int(name.split()[1]) for name, _ in pairs}
        random.Random(n).shuffle(pairs)
        again = RereadEvents(layout, "ts", tuple(epochs), len(fields) + 1, files)
        batches = (_read_again(name, table) for name, table in pairs)
        staged = list(stage_events(again, batches, Files(self._folder), f"backfill/{change.name}{n}/0"))
        return brought(Files(self._folder), staged, f"{change.name}@0", fields, n)

    def restart(self) -> None:
        """Another driver takes over, without given queries."""
        self._turn += 1
        sinks = list(self._sinks.values())
        token, files = f"turn-{self._turn}", self._files
        self.pond = ChangingPond(self._folder, [self._stream], None, 1, 16, sinks, token=token, file_store=files)

    def move(self, dice: random.Random) -> None:
        """Give buckets other owners, or the pond another number of instances."""
        now = maps(self.pond.setting, self.pond.manifest)[1].instances
        other = dice.randint(1, 4)
        if other != now:
            self.change(scale(self.between(), other))
        else:
            self.pond.move(tuple(dice.randrange(now) for _ in range(16)))

    def epoch(self, parts: Sequence[Sequence[dict[str, Any]]]) -> None:
        known = self.between()
        for end in validate.ends(known.spec, known.manifest):
            self.pond.change(end)
        self._read.append([table_of(part) for part in parts])
        self.pond.epoch({STREAM.name: self._read[-1]})
        self.naive.epoch()

    def check_history(self) -> None:
        """Each change is in the history once, and the newest map is that of the newest change of instances."""
        log = self.pond.log
        listed = [(one.n, one.change) for one in history(log, self.pond.manifest)]
        records = [decode(log.read(n) or b"").record for n in range(self.pond.manifest.n + 1)]
        made = [(r.n, change) for r in records if isinstance(r, ChangeRecord) and (change := change_of(r.change))]
        assert listed == made[::-1]

    def check(self, epochs: Sequence[Sequence[dict[str, Any]]], about: object) -> int:
        self.pond.drain()
        self.naive.epoch()
        self.check_history()
        assert not self.pond.manifest.quarantined
        expected = self.naive.rows(epochs, drained=True)
        for name, rows in expected.items():
            assert_same_rows(rows, rows_of(self._sinks[name].table()), about=f"{about}: {name}")
        return sum(map(len, expected.values()))


def _read_again(name: str, table: pa.Table) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in table.columns]
    every = [pa.array([0] * len(table), pa.int32()), *columns, pa.array([name] * len(table), pa.string())]
    return pa.RecordBatch.from_arrays(every, ["stream", *table.column_names, "file"])


def random_query(dice: random.Random, name: str, menu: Menu, others: Sequence[Plain]) -> Plain:
    """A new query, or one that is mostly equal to another."""
    if dice.random() < 0.15:
        where = dice.choice((condition(dice, MENU), at_least("v")))
        return kept(Selection(name, STREAM.name, (Named("k", Column("k", "string")),), where))
    fresh = query(dice, name, menu)
    siblings = [one for one in others if isinstance(one, Query)]
    if siblings and dice.random() < 0.6:
        other = dice.choice(siblings)
        fresh = msgspec.structs.replace(
            other, name=name, window=dice.choice((other.window, fresh.window)),
            where=dice.choice((other.where, fresh.where)), delay_us=dice.choice((other.delay_us, fresh.delay_us)),
            having=dice.choice((other.having, None)),
        )  # fmt: skip
    if dice.random() < 0.3:
        part = dice.choice(("where", "having"))
        counted = next((i for i, one in enumerate(fresh.aggregates) if one.type == "bigint"), None)
        if part == "where" or counted is not None:
            fresh = msgspec.structs.replace(fresh, **{part: at_least("v" if part == "where" else f"agg:{counted}")})
    return kept(fresh)


def at_least(column: str) -> Expression:
    """A condition with a live parameter."""
    value: Expression = Column(column, "bigint" if ":" in column else "int")
    wide = value if ":" in column else Call("cast", (value,), "bigint")
    return call("ge", (wide, Parameter("least", "bigint")), "boolean")


def altered(dice: random.Random, old: Plain, menu: Menu) -> Plain:
    """Another version with the same columns."""
    fresh = query(dice, old.name, menu)
    if isinstance(old, Selection):
        return msgspec.structs.replace(old, where=fresh.where)
    kinds: list[dict[str, Any]] = [
        {"having": fresh.having if fresh.aggregates == old.aggregates else None},
        {"where": fresh.where},
        {"window": fresh.window},
        {"delay_us": fresh.delay_us},
        {"window": fresh.window, "where": fresh.where},
        {"window": fresh.window, "delay_us": fresh.delay_us},
        {"aggregates": tuple(msgspec.structs.replace(one, filter=fresh.where) for one in old.aggregates)},
    ]
    return msgspec.structs.replace(old, **dice.choice(kinds))


ID = Column("v", "int")

RECALLED, BACKFILLED = "recalled", "backfilled"


def change_at_random(dice: random.Random, run: Changing, menu: Menu) -> str:
    """Make a random change, or be refused; its kind."""
    pond = run.between()
    current = lifecycle.current(pond.spec)
    names = [one.name for one in current] or ["none"]
    some = dice.choice(names)
    more = ("add",) * 6 if run.retains else ()
    kind = dice.choice((*more, "add", "add", "drop", "pause", "resume", "resume", "alter", "alter", "param", "param",
                        "shadow", "shadow", "promote", "promote", "promote", "rollback", "rollback",
                        "discard"))  # fmt: skip
    try:
        if kind == "add":
            name = f"q{dice.randint(0, 9)}"
            again = run.known.get(name)
            new_query = altered(dice, again, menu) if again else random_query(dice, name, menu, current)  # type: ignore[arg-type]
            if run.repeats and not again and dice.random() < 0.5 and isinstance(new_query, Query):
                named = tuple(key for key in new_query.keys if isinstance(key, Column))
                if len(named) == len(new_query.keys) and not any(one.logged for one in new_query.aggregates):
                    new_query = msgspec.structs.replace(new_query, deduplicate=Deduplication((*named, ID), 9 * SECOND))
            sliding = isinstance(new_query, Query) and isinstance(new_query.window, Sliced)
            if run.retains and not again and sliding and not has_complete_column(new_query):
                new_query = with_complete(new_query)
            back = None
            if run.backfills and sliding and dice.random() < 0.6:
                newest = pond.manifest.max_time.get(STREAM.name, {}).get("*", 0)
                back = dice.choice((ALWAYS, ALWAYS, newest - dice.randint(0, 60) * SECOND))
            try:
                change: Change = validate.add(pond, new_query, backfill_us=back)
            except UnsupportedQuery:
                return "refused"
        elif kind in ("alter", "shadow"):
            old = next((one for one in current if one.name == some), None)
            if old is None:
                return "nothing"
            make = validate.alter if kind == "alter" else validate.shadow
            change = make(pond, altered(dice, old, menu))  # type: ignore[arg-type]
        elif kind == "param":
            change = validate.param(pond, "least", dice.randint(0, 60))
        else:
            change = getattr(validate, kind)(pond, some)
    except (ChangeRefused, UnsupportedQuery):
        return "refused"
    run.change(change)
    if isinstance(change, Add) and change.backfill_us is not msgspec.UNSET:
        return BACKFILLED
    return RECALLED if isinstance(change, Add) and change.recall_us is not msgspec.UNSET else kind


def aggregated(number: int) -> Query:
    """A query with one cell in all."""
    aggregates = (aggregate_of("count", None),)
    outputs = (Named("n", Column("agg:0", "bigint")),)
    window = Sliding(10 * SECOND, 10 * SECOND)
    return Query(f"q{number}", STREAM.name, "ts", 0, window, (), aggregates, outputs, sink=MEMORY)


def random_run(
    folder: Path, seed: int, menu: Menu, events: int = 160, epochs: int = 14, retain: Retention | None = None,
    backfills: bool = False, repeats: bool = False,
) -> set[str]:  # fmt: skip
    """A pond whose queries change at random; what was done to it."""
    dice = random.Random(seed)
    case = random_case(seed, events, 3, epochs=epochs, menu=menu)
    case = case._replace(queries=by_window(case.queries)) if seed % 4 == 1 else case
    run, deal, done = Changing(folder, case.queries, 1 + seed % 3, retain), dealt(seed), set[str]()
    run.backfills, run.repeats = backfills, repeats
    for batch in case.epochs:
        for _ in range(dice.choice((0, 1, 1, 2, 4))):
            done.add(change_at_random(dice, run, menu))
        if dice.random() < 0.25:
            run.move(dice)
        if dice.random() < 0.1:
            run.restart()
        run.epoch(deal(batch))
    run.check(case.epochs, seed)
    return done


class NaiveSets:
    """The naive twin of queries with grouping sets: a plain query for each set, all changed alike."""

    def __init__(self, queries: Sequence[Query], parameters: dict[str, Literal]) -> None:
        self._sets = [NaiveChanges(plain, parameters) for plain in zip(*map(plain_queries, queries), strict=True)]

    def change(self, change: Change) -> None:
        for i, naive in enumerate(self._sets):
            if isinstance(change, Add | Alter):
                query = change.stored.query
                assert isinstance(query, Query)
                stored = StoredQuery.of(plain_queries(query)[i])
                naive.change(msgspec.structs.replace(change, stored=stored))
            else:
                naive.change(change)

    def epoch(self) -> None:
        for naive in self._sets:
            naive.epoch()

    def rows(self, epochs: Sequence[Sequence[dict[str, Any]]], *, drained: bool) -> dict[str, list[Any]]:
        found = [naive.rows(epochs, drained=drained) for naive in self._sets]
        return {name: [row for rows in found for row in rows[name]] for name in found[0]}


def rolled_up(query: Query) -> Query:
    """The query by the ROLLUP of two keys."""
    keys = Column("k", "string"), Column("flag", "boolean"), literal(0, "bigint")
    sets = GroupingSet((0, 1), 0), GroupingSet((0,), 1), GroupingSet((), 3)
    results = [one for one in query.output if all(name.startswith("agg:") for name in columns_of(one.expression))]
    shown = [Named(f"by_{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(keys)]
    start = Named("at", Column("window.start", "timestamp"))
    return msgspec.structs.replace(query, keys=keys, sets=sets, output=(*results, start, *shown), having=None)


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_queries_with_grouping_sets_change_as_a_plain_query_for_each_set_does(tmp_path: Path, seed: int) -> None:
    case = random_case(seed, 120, 3, epochs=10, menu=SLICED)
    one, two, three = (kept(rolled_up(one_)) for one_ in case.queries if isinstance(one_, Query))
    run, deal = Changing(tmp_path, [one], 2), dealt(seed)
    run.naive = NaiveSets([one], {"least": literal(3, "bigint")})
    changes: dict[int, Callable[[KnownPond], Change]] = {
        2: lambda known: validate.add(known, two),
        3: lambda known: validate.alter(known, msgspec.structs.replace(one, where=three.where)),
        4: lambda known: scale(known, 3),
        5: lambda known: validate.alter(known, msgspec.structs.replace(two, window=three.window)),
        7: lambda known: validate.drop(known, one.name),
    }
    for i, batch in enumerate(case.epochs):
        if i in changes:
            run.change(changes[i](run.between()))
        if i == 6:
            run.restart()
        run.epoch(deal(batch))
    assert run.check(case.epochs, seed) > 50


@pytest.mark.parametrize("seed", seeds(0, 6))
def test_changes_between_random_epochs_are_those_of_the_naive_twin(tmp_path: Path, seed: int) -> None:
    random_run(tmp_path, seed, MIXED if seed % 2 else SLICED)


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_answers_are_those_of_the_naive_twin_when_slices_are_coalesced(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    if seed % 4 == 3:
        monkeypatch.setattr(merge_segments, "PORTION_BYTES", 200)
        monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    retain = Retention(40 * SECOND, 0, 5 * SECOND * (seed % 2)) if seed % 3 == 0 else None
    random_run(tmp_path, 300 + seed, SLICED, epochs=25, retain=retain)


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_answers_with_events_and_deduplication_are_those_of_the_naive_twin(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    random_run(tmp_path, 400 + seed, SLICED._replace(events=True), epochs=25, repeats=True)


def test_no_event_is_counted_that_repeats_one_from_before_its_query_came(tmp_path: Path) -> None:
    dice = random.Random(8)
    epochs = [[event(second, dice) | {"v": dice.randint(0, 99)} for _ in range(3)] for second in range(40, 140)]
    ten = msgspec.structs.replace(aggregated(0), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2)
    for at, rows in enumerate(epochs):
        if at == 20:
            once = msgspec.structs.replace(
                aggregated(1), window=ten.window, deduplicate=Deduplication((ID,), 20 * SECOND)
            )  # fmt: skip
            run.change(validate.add(run.between(), once))
        run.epoch([rows])
    assert run.check(epochs, "repeats") > 6


@pytest.mark.parametrize("function", ["count_distinct", "last"])
def test_tallies_and_events_outlive_the_delays_by_which_they_were_kept(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    dice = random.Random(6)
    epochs = [
        [event(second - dice.choice((0, 0, 10, 25)), dice) | {"v": dice.randint(0, 5)} for _ in range(9)]
        for second in range(40, 120)
    ]
    logged = (Aggregate(function, Column("v", "int"), None, "bigint" if function == "count_distinct" else "int"),)
    by_delay = {
        delay: msgspec.structs.replace(
            aggregated(i), aggregates=logged, window=Sliding(30 * SECOND, 30 * SECOND), delay_us=delay * SECOND
        )
        for i, delay in enumerate((0, 30, 60))
    }  # fmt: skip
    run = Changing(tmp_path, [by_delay[0], by_delay[30]], 2)
    for at, rows in enumerate(epochs):
        if at == 10:
            run.change(validate.drop(run.between(), by_delay[30].name))
        if at == 20:
            run.change(validate.add(run.between(), by_delay[60]))
        run.epoch([rows])
    assert run.check(epochs, "delays") > 3


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_what_a_stream_retains_makes_later_queries_whole_from_before_they_came(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    slices, events, grain = dice.choice((0, 30, 600)), dice.choice((0, 20, 300, 300)), dice.choice((0, 1, 5))
    every = [field.name for field in STREAM.columns]
    names = tuple(every if seed % 3 else dice.sample(every, 4)) if events else ()
    retain = Retention(slices * SECOND, events * SECOND, grain * SECOND, names)
    menu = MIXED if seed % 2 else SLICED
    random_run(tmp_path, 100 + seed, menu._replace(events=seed % 2 == 0), retain=retain)


@pytest.mark.parametrize("seed", [*seeds(0, 4), 115])
def test_a_query_is_backfilled_with_the_events_that_epochs_read_before_it_came(tmp_path: Path, seed: int) -> None:
    menu = SLICED._replace(events=seed % 2 == 0)
    retain = Retention(0, 30 * SECOND, 0, ("k", "v")) if seed % 3 == 0 else None
    random_run(tmp_path, 200 + seed, menu, retain=retain, backfills=True)


def test_a_backfilled_query_emits_all_rows_of_its_past(tmp_path: Path) -> None:
    dice = random.Random(4)
    epochs = [
        [event(second + i / 10 - dice.choice((0, 0, 0, 15)), dice) | {"v": dice.randint(0, 9)} for i in range(10)]
        for second in range(20, 85)
    ]
    ten = msgspec.structs.replace(aggregated(1), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2)
    for rows in epochs[:30]:
        run.epoch([rows[:5], rows[5:]])
    sliding = {"window": Sliding(25 * SECOND, 5 * SECOND, SECOND), "delay_us": 4 * SECOND}
    distinct = (Aggregate("count_distinct", Column("k", "string"), None, "bigint"),)
    variants = {
        "sliding": (sliding, ALWAYS), "late": (sliding, 38 * SECOND),
        "key": ({"keys": (Column("k", "string"),)}, ALWAYS), "events": ({"aggregates": distinct}, ALWAYS),
    }  # fmt: skip
    for name, (fields, back) in variants.items():
        change = validate.add(run.between(), msgspec.structs.replace(ten, name=name, **fields), backfill_us=back)
        price = price_of(run.between(), change, run.pond.setting)
        assert price.cost == COMPLETE_AT_ONCE
        assert price.complete_from_us == (None if back == ALWAYS else 41 * SECOND)
        run.change(change)
    run.restart()
    sections = run.pond.manifest.sections.values()
    assert {one.group for one in sections if one.kind == "backfill"} == {f"{name}@0" for name in variants}
    for rows in epochs[30:]:
        run.epoch([rows])
        assert not [one for one in run.pond.manifest.sections.values() if one.kind == "backfill"]
    assert run.check(epochs, "backfilled") > 30
    assert not run.pond.spec.effects.recalled
    whole = {name: complete_from(run.pond.spec, name) for name in variants}
    assert whole == {name: 41 * SECOND if name == "late" else None for name in variants}
    groups = {one.group for one in run.pond.manifest.sections.values() if one.kind == "segment"}
    assert groups <= {group.id for group in run.pond.plan.groups}


def test_events_that_are_retained_make_any_window_whole(tmp_path: Path) -> None:
    dice = random.Random(4)
    epochs = [[event(second + i / 10, dice) | {"v": dice.randint(0, 9)} for i in range(10)] for second in range(60)]
    ten = msgspec.structs.replace(aggregated(1), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2, Retention(0, 45 * SECOND, 0, ("v", "k")))
    for rows in epochs[:30]:
        run.epoch([rows[:5], rows[5:]])
    large = call("ge", (Column("v", "int"), literal(5, "int")), "boolean")
    variants = {
        "filter": {"where": large},
        "window": {"window": Sliding(17 * SECOND, 3 * SECOND, 2 * SECOND), "delay_us": 4 * SECOND},
        "key": {"keys": (Column("k", "string"),), "window": Sliding(25 * SECOND, 5 * SECOND)},
        "events": {"aggregates": (Aggregate("count_distinct", Column("k", "string"), None, "bigint"),), "where": large},
    }
    newest = max(row["ts"] for row in epochs[29])
    for name, fields in variants.items():
        change = validate.add(run.between(), msgspec.structs.replace(ten, name=name, **fields))
        price = price_of(run.between(), change, run.pond.setting)
        assert (change.recall_us, price.cost) == (newest - 45 * SECOND, COMPLETE_AT_ONCE)
        run.change(change)
    run.restart()
    for rows in epochs[30:]:
        run.epoch([rows])
    assert run.check(epochs, "recalled") > 40
    kept = [one for one in run.pond.manifest.sections.values() if one.group == run.pond.plan.retained[0].id]
    assert 0 < len(kept) < 40  # merged as they come, and gone when they are too old
    assert min(int(one.info["last"]) for one in kept) > 14 * SECOND  # type: ignore[arg-type]
    assert not run.pond.spec.effects.recalled  # the versions that began with them have ended, and their state is freed
    groups = {one.group for one in run.pond.manifest.sections.values() if one.kind == "segment"}
    assert groups <= {group.id for group in run.pond.plan.groups}


def test_events_are_retained_also_while_no_query_with_windows_reads_the_stream(tmp_path: Path) -> None:
    dice = random.Random(5)
    epochs = [[event(second + i / 10, dice) for i in range(10)] for second in range(60)]
    ten = msgspec.structs.replace(aggregated(1), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2, Retention(0, 45 * SECOND, 0, ("k",)))
    for at, rows in enumerate(epochs):
        if at == 20:
            run.change(validate.drop(run.between(), ten.name))
        if at == 35:
            run.restart()
        if at == 50:
            change = validate.add(run.between(), ten)
            assert change.recall_us == epochs[49][-1]["ts"] - 45 * SECOND
            run.change(change)
        run.epoch([rows])
    # [0, 10) before the drop; [40, 50), which was open at the second add, and [50, 60)
    assert run.check(epochs, "watched") == 1 + 2


def test_slices_that_are_retained_at_a_grain_cover_a_longer_window(tmp_path: Path) -> None:
    dice = random.Random(3)
    epochs = [[event(second + i / 10, dice) for i in range(10)] for second in range(60)]
    ten = msgspec.structs.replace(aggregated(1), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2, Retention(35 * SECOND, 0, 5 * SECOND))
    for rows in epochs[:50]:
        run.epoch([rows])
    starts = {}
    newest = max(row["ts"] for row in epochs[49])
    windows = {"thirty": (30, 5, 0), "shifted": (25, 25, 15), "finer": (6, 3, 0), "longer": (40, 40, 0)}
    for name, (size, slide, offset) in windows.items():
        window = Sliding(size * SECOND, slide * SECOND, offset * SECOND)
        change = validate.add(run.between(), msgspec.structs.replace(ten, name=name, window=window))
        starts[name] = change.since_us
        run.change(change)
    kept = newest - 35 * SECOND
    assert starts == {"thirty": kept, "shifted": kept, "finer": newest + 1, "longer": kept}
    for rows in epochs[50:]:
        run.epoch([rows])
    assert run.check(epochs, "retained") == 19
    held = [one for one in run.pond.manifest.sections.values() if one.kind == "segment"]
    assert min(int(one.info["first"]) for one in held) < 40 * SECOND  # type: ignore[arg-type]


@pytest.mark.parametrize("kept_s", [0, 2, 12])
def test_incomplete_windows_are_emitted_if_their_rows_may_say_so(tmp_path: Path, kept_s: int) -> None:
    dice = random.Random(5)
    epochs = [[event(second + i / 10, dice) for i in range(10)] for second in range(60)]
    ten = msgspec.structs.replace(aggregated(1), window=Sliding(10 * SECOND, 10 * SECOND))
    run = Changing(tmp_path, [ten], 2, Retention(0, kept_s * SECOND))
    for rows in epochs[:30]:
        run.epoch([rows])
    fine = msgspec.structs.replace(ten, name="fine", window=Sliding(20 * SECOND, 5 * SECOND))
    change = validate.add(run.between(), with_complete(fine))
    newest = max(row["ts"] for row in epochs[29])
    # at 29.9 s the windows that began at 10, 15, 20 and 25 s are open
    assert (change.incomplete_us, change.since_us) == (10 * SECOND, 30 * SECOND)
    assert change.whole_us == (newest - kept_s * SECOND if kept_s else 30 * SECOND)
    run.change(change)
    run.restart()
    for rows in epochs[30:]:
        run.epoch([rows])
    run.check(epochs, "incomplete")
    emitted = rows_of(run._sinks["fine"].table())
    # without retained events it saw nothing of [10, 30), with those of two seconds no window is whole that was open
    complete = {0: [False, False, False, True], 2: [False, False, False, False], 12: [False, False, True, True]}
    assert [row["_complete"] for row in emitted[:4]] == complete[kept_s]
    assert all(row["_complete"] for row in emitted[4:])


def wide(name: str, key: str) -> Query:
    """A query whose state is a cell per key."""
    aggregates = aggregate_of("sum", Column("amount", "double")), aggregate_of("count", None)
    outputs = (Named("n", Column("agg:1", "bigint")),)
    window = Sliding(100 * SECOND, 50 * SECOND)
    return Query(name, STREAM.name, "ts", 0, window, (Column(key, "string"),), aggregates, outputs, sink=MEMORY)


def on_disk(folder: Path, *places: str) -> int:
    return sum(file.stat().st_size for place in places for file in (folder / place).rglob("*") if file.is_file())


def many_keys(second: int) -> list[dict[str, Any]]:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return [empty | {"k": f"key-{i}", "amount": 1.0, "ts": second * SECOND + i} for i in range(40_000)]


def test_what_is_dropped_gives_its_bytes_back(tmp_path: Path) -> None:
    run = Changing(tmp_path, [aggregated(1)], 2)
    run.pond.follow(PruneFollower(Files(tmp_path), LocalFolder(tmp_path / "log"), lambda: 1 << 62, 0.0))
    places = "delta", "cache"
    for second in range(3):
        run.epoch([many_keys(second)])
    alone = on_disk(tmp_path, *places)
    run.change(validate.add(run.between(), wide("wide", "k")))
    for second in range(3, 6):
        run.epoch([many_keys(second)])
    assert on_disk(tmp_path, *places) > alone + 1_000_000
    run.change(validate.drop(run.between(), "wide"))
    gone = {"segment", "keys"}
    group = build_plan([wide("wide", "k")]).groups[0].id
    assert not [one for one in run.pond.manifest.sections.values() if one.kind in gone and one.group == group]
    for second in range(6, 9):  # sections of rows wait for their followers, files for pruning
        run.epoch([many_keys(second)[:10]])
    assert on_disk(tmp_path, *places) <= alone + 4096


def test_a_query_that_needs_what_is_kept_answers_the_windows_that_are_open(tmp_path: Path) -> None:
    #   events at 0 … 9 s, watermark 9 s; windows of 20 s every 10 s are cut at 0, 10, 20: those that are open hold all
    dice = random.Random(2)
    epochs = [[event(second + i / 10, dice) for i in range(10)] for second in range(30)]
    twenty = msgspec.structs.replace(aggregated(1), window=Sliding(20 * SECOND, 10 * SECOND), delay_us=5 * SECOND)
    ten = msgspec.structs.replace(twenty, name="ten", window=Sliding(10 * SECOND, 10 * SECOND))
    fine = msgspec.structs.replace(twenty, name="fine", window=Sliding(15 * SECOND, 5 * SECOND))
    other = msgspec.structs.replace(ten, name="other", where=call("isnotnull", (Column("k", "string"),), "boolean"))
    run = Changing(tmp_path, [twenty], 2)
    for rows in epochs[:18]:
        run.epoch([rows])
    starts, firsts = {}, {}
    for added in (ten, fine, other):
        change = validate.add(run.between(), added)
        price = price_of(run.between(), change, run.pond.setting)
        starts[added.name], firsts[added.name] = (change.since_us, price.cost), price.first
        run.change(change)
    newest = max(row["ts"] for row in epochs[17])
    # the watermark is at 12.9 s: the window that ends at 20 s is open, and its slices begin at 0
    assert starts["ten"] == (0, COMPLETE_AT_ONCE)
    assert starts["fine"] == starts["other"] == (newest + 1, COMPLETE_LATER)
    for rows in epochs[18:]:
        run.epoch([rows])
    # of ten, the window that ends at 10 s was closed before
    assert firsts == {
        name: tuple(one * SECOND for one in times)
        for name, times in {"ten": (10, 20, 25), "fine": (20, 35, 40), "other": (20, 30, 35)}.items()
    }
    assert len(run.naive.rows(epochs, drained=True)["ten"]) == 2
    assert run.check(epochs, "covered") == 4 + 2 + 2 + 1


def test_a_query_begins_where_time_is_still_cut_at_its_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    #   ten seconds beside an hour that waits for an hour: what is older than the open ten seconds is one slice
    monkeypatch.setattr(fold, "FAN_IN", 2)
    dice = random.Random(2)
    epochs = [[event(second + i / 10, dice) for i in range(10)] for second in range(60)]
    ten = msgspec.structs.replace(aggregated(1), delay_us=5 * SECOND)
    hour = {"window": Sliding(3600 * SECOND, 3600 * SECOND), "delay_us": 3600 * SECOND}
    run = Changing(tmp_path, [ten, msgspec.structs.replace(ten, name="hour", **hour)], 2)
    for rows in epochs[:48]:
        run.epoch([rows])
    patient = msgspec.structs.replace(ten, name="patient", delay_us=3600 * SECOND)
    twenty = msgspec.structs.replace(ten, name="twenty", window=Sliding(20 * SECOND, 20 * SECOND))
    for new_query in (patient, twenty):
        change = validate.add(run.between(), new_query)
        assert change.since_us == 40 * SECOND, "the watermark is at 42.9 s"
        run.change(change)
    for rows in epochs[48:]:
        run.epoch([rows])
    assert run.check(epochs, "cut") == 6 + 1 + 2 + 1


def test_what_a_query_with_frames_counts_is_in_no_cell(tmp_path: Path) -> None:
    named = call("isnotnull", (Column("k", "string"),), "boolean")
    twenty = msgspec.structs.replace(aggregated(1), window=Sliding(20 * SECOND, 10 * SECOND))
    frames = msgspec.structs.replace(twenty, name="frames", window=Range(5 * SECOND), where=named)
    run = Changing(tmp_path, [twenty, frames], 1)
    run.epoch([[event(second, random.Random(second)) for second in range(18)]])
    new_query = msgspec.structs.replace(twenty, name="named", where=named)
    assert validate.add(run.between(), new_query).since_us == 17 * SECOND + 1


def event(second: float, dice: random.Random) -> dict[str, Any]:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return empty | {"k": dice.choice(("a", None)), "ts": int(second * SECOND)}
