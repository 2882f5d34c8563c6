"""Updating queries that are altered while events flow: finally each window has the rows of its version."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from kit.naive.queries.query_changes import NaiveChanges
from millpond.errors import ChangeRefused
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Retention
from millpond.model.windows import Session, Sliding
from millpond.reconfigure import validate
from millpond.reconfigure.changes import Alter, Promote
from millpond.reconfigure.validate import KnownPond, alter, discard, pause, promote, rollback, shadow
from millpond.testing.compare import assert_same_rows

START, END = (Column(f"window.{edge}", "timestamp") for edge in ("start", "end"))
BASE = Query(
    "spent", STREAM.name, "ts", 3 * SECOND, Sliding(20 * SECOND, 10 * SECOND), (Column("k", "string"),),
    (aggregate_of("count", None), aggregate_of("max", Column("v", "int"))),
    (Named("k", Column("key:0", "string")), Named("start", START), Named("end", END),
     Named("n", Column("agg:0", "bigint")), Named("most", Column("agg:1", "int"))),
    sink=Sink("memory"),
)  # fmt: skip
WINDOWS = (
    Sliding(20 * SECOND, 10 * SECOND), Sliding(30 * SECOND, 30 * SECOND), Sliding(5 * SECOND, 5 * SECOND),
    Sliding(7 * SECOND, 3 * SECOND, SECOND),
)  # fmt: skip


def at_least(number: int) -> Expression:
    return call("ge", (Column("v", "int"), literal(number, "int")), "boolean")


def more_than(number: int) -> Expression:
    return call("gt", (Column("agg:0", "bigint"), literal(number, "bigint")), "boolean")


def version(dice: random.Random, base: Query) -> Query:
    """Another threshold, HAVING, window, aggregate, delay: one of them or all."""
    made = base
    if dice.random() < 0.6:
        made = replace(made, where=dice.choice([None, at_least(dice.randint(0, 80))]))
    if dice.random() < 0.6:
        made = replace(made, having=dice.choice([None, more_than(dice.randint(0, 2))]))
    if dice.random() < 0.4:
        made = replace(made, window=dice.choice(WINDOWS))
    if dice.random() < 0.3:
        how = dice.choice(["max", "min"])
        made = replace(made, aggregates=(made.aggregates[0], aggregate_of(how, Column("v", "int"))))
    if dice.random() < 0.3:
        made = replace(made, delay_us=dice.choice([0, 3, 12]) * SECOND)
    return made


def final(query: Query) -> Query:
    """The query that emits final rows once, instead of updates."""
    return replace(query, emit=msgspec.UNSET, correct_us=msgspec.UNSET, delay_us=query.late_after_us)


def left_in_the_end(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content of a table that applies every emitted row; checks that revisions of a row have no gap."""
    held: dict[tuple[Any, ...], dict[str, Any]] = {}
    revisions: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = (row["k"], row["start"], row["end"])
        if "_revision" in row:
            assert row["_revision"] == revisions.get(key, -1) + 1
            revisions[key] = row["_revision"]
        held.pop(key, None)
        if row["_op"] == "upsert":
            held[key] = {name: row[name] for name in ("k", "start", "end", "n", "most")}
    return list(held.values())


@pytest.mark.parametrize("mode", ["update", "corrected"])
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_each_window_is_emitted_by_one_version(mode: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    case, deal = random_case(seed + 300, 300, 1, epochs=24), dealt(seed)
    how = {"emit": "update"} if mode == "update" else {"correct_us": dice.choice([5, 40]) * SECOND}
    first = version(dice, replace(BASE, **how))
    run = Run(tmp_path, [first], 2, 16)
    versions, begins = [first], [-(1 << 62)]
    alters = sorted(dice.sample(range(3, 20), 3))
    for number, rows in enumerate(case.epochs):
        run.epoch(deal(rows))
        if number in alters:
            new = version(dice, versions[-1])
            # as in a query text, which does not contain the mode
            said = new if dice.random() < 0.5 else replace(new, emit=msgspec.UNSET, correct_us=msgspec.UNSET)
            change = alter(KnownPond(run.pond.spec, run.pond.manifest), said)
            run.pond.change(change)
            assert isinstance(change, Alter)
            if isinstance(change.since_us, int):
                assert change.until_us == change.since_us
                versions.append(new)
                begins.append(change.since_us)
            else:
                versions[-1] = new
    run.pond.drain()
    found = run.answers()
    assert not found.quarantined
    wanted = []
    for new, begin, end in zip(versions, begins, [*begins[1:], 1 << 62], strict=True):
        for row in windows.answer(final(new), case.epochs, drained=True):
            if begin <= row["start"] < end:
                wanted.append(row)
    assert_same_rows(wanted, left_in_the_end(found.rows["spent"]), about=f"{mode} {begins}")
    assert len(versions) > 1 or seed
    run.epoch([[]])
    for ended in validate.ends(run.pond.spec, run.pond.manifest):
        run.pond.change(ended)
    versions = [one for one in run.pond.spec.all_queries if one.name.startswith("spent")]
    assert len(versions) == 1, "early versions are gone"


def test_rows_of_distinct_aggregates_are_emitted_again_after_their_outputs_were_altered(tmp_path: Path) -> None:
    base = replace(
        BASE, emit="update", aggregates=(Aggregate("count_distinct", Column("v", "int"), None, "bigint"),),
        output=(Named("n", Column("agg:0", "bigint")), Named("version", literal(1, "int"))),
    )  # fmt: skip
    later = replace(base, output=(*base.output[:1], Named("version", literal(2, "int"))))
    run = Run(tmp_path, [base], 1, 16)
    for _ in range(2):
        run.epoch([[EVENT | {"ts": 12 * SECOND}]])
    for new in (later, replace(later, window=Sliding(30 * SECOND, 30 * SECOND))):
        run.pond.change(alter(KnownPond(run.pond.spec, run.pond.manifest), new))
        run.epoch([[EVENT | {"ts": 12 * SECOND}]])
    assert [row["version"] for row in run.answers().rows["spent"]] == [1, 1, 2, 2, 2, 2]


EVENT = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True, "k": "a"}


def counting(name: str, size: int, delay: int = 0) -> Query:
    return replace(BASE, name=name, delay_us=delay * SECOND, window=Sliding(size * SECOND, size * SECOND))


def starts_of(run: Run, size: int) -> list[int]:
    """The starts, in seconds, of the emitted windows of a size; a window that was emitted twice occurs twice."""
    rows = run.answers().rows["mine"]
    return sorted(row["start"] // SECOND for row in rows if row["end"] - row["start"] == size * SECOND)


@pytest.mark.parametrize("kept_s", [0, 1000])
@pytest.mark.parametrize(("old", "new"), [((10, 30), (10, 0)), ((10, 0), (10, 30)), ((60, 0), (10, 0)),
                                          ((10, 0), (60, 0)), ((60, 0), (30, 5))])  # fmt: skip
def test_no_window_closes_between_two_versions(
    old: tuple[int, int], new: tuple[int, int], kept_s: int, tmp_path: Path
) -> None:
    stream = replace(STREAM, retain=Retention(slices_us=kept_s * SECOND, grain_us=10 * SECOND)) if kept_s else STREAM
    run = Run(tmp_path, [counting("mine", *old), counting("other", *new)], 1, 16, stream=stream)
    for second in range(2, 60, 10):
        run.epoch([[EVENT | {"ts": second * SECOND}]])
    change = alter(KnownPond(run.pond.spec, run.pond.manifest), counting("mine", *new))
    run.pond.change(change)
    for second in range(62, 150, 10):
        run.epoch([[EVENT | {"ts": second * SECOND}]])
    run.pond.drain()
    assert isinstance(change.since_us, int)
    handed = change.since_us // SECOND
    sizes = {old[0]: [*range(0, handed, old[0])]}
    sizes[new[0]] = [*sizes.get(new[0], []), *range(handed, 150, new[0])]
    assert {size: starts_of(run, size) for size in sizes} == sizes
    assert handed <= 60, "windows that the other query holds"


@pytest.mark.parametrize(("old", "new"), [((60, 0), (10, 0)), ((10, 0), (60, 0)), ((10, 0), (10, 30)),
                                          ((10, 30), (10, 0))])  # fmt: skip
def test_no_window_closes_between_a_query_and_its_promoted_shadow(
    old: tuple[int, int], new: tuple[int, int], tmp_path: Path
) -> None:
    run = Run(tmp_path, [counting("mine", *old)], 1, 16)
    run.epoch([[EVENT | {"ts": 2 * SECOND}]])
    run.pond.change(shadow(KnownPond(run.pond.spec, run.pond.manifest), counting("mine", *new)))
    starts = []
    for number, verb in enumerate((promote, rollback, discard)):
        for second in range(12 + 160 * number, 172 + 160 * number, 10):
            run.epoch([[EVENT | {"ts": second * SECOND}]])
        change = verb(KnownPond(run.pond.spec, run.pond.manifest), "mine")
        starts += [change.since_us] if isinstance(change, Promote) else []
        run.pond.change(change)
    run.epoch([[EVENT | {"ts": 492 * SECOND}]])
    run.pond.drain()
    first, second = (start // SECOND for start in starts if isinstance(start, int))
    assert 120 <= first <= 180
    sizes = {old[0]: [*range(0, first, old[0])]}
    sizes[new[0]] = [*sizes.get(new[0], []), *range(first, second, new[0])]
    sizes[old[0]] += range(second, 500, old[0])
    assert {size: starts_of(run, size) for size in sizes} == sizes
    for ended in validate.ends(run.pond.spec, run.pond.manifest):
        run.pond.change(ended)
    assert [one.name for one in run.pond.spec.all_queries] == ["mine"]


def test_a_replaced_version_with_sessions_ends_with_its_last_session(tmp_path: Path) -> None:
    base = replace(counting("mine", 10), window=Session(5 * SECOND))
    run = Run(tmp_path, [base], 2, 16)
    run.epoch([[EVENT | {"ts": 2 * SECOND}, EVENT | {"ts": 2 * SECOND, "k": "b"}]])

    def versions() -> list[str]:
        for ended in validate.ends(run.pond.spec, run.pond.manifest):
            run.pond.change(ended)
        return [one.name for one in run.pond.spec.all_queries]

    for gap in (6, 7):
        other = replace(base, window=Session(gap * SECOND))
        run.pond.change(alter(KnownPond(run.pond.spec, run.pond.manifest), other))
    assert versions() == ["mine", "mine@1", "mine@2"]
    for second in (5, 9, 13, 16):
        run.epoch([[EVENT | {"ts": second * SECOND}]])
    assert "mine@1" in versions(), "the session of one key goes on"
    for second in (60, 90, 120):
        run.epoch([[EVENT | {"ts": second * SECOND}]])
        run.pond.step()
    assert versions() == ["mine"]
    run.pond.drain()
    emitted = [(row["k"], row["start"] // SECOND, row["n"]) for row in run.answers().rows["mine"]]
    assert sorted(emitted) == [("a", 2, 5), ("a", 60, 1), ("a", 90, 1), ("a", 120, 1), ("b", 2, 1)]


@pytest.mark.parametrize("seed", seeds(0, 12))
def test_each_event_is_in_one_session_of_one_version(seed: int, tmp_path: Path) -> None:
    """Late events, sessions that bridge a hand-over, several hand-overs while sessions go on, and moved state."""
    dice = random.Random(seed)
    delay = dice.choice([0, 7])
    base = replace(BASE, delay_us=delay * SECOND, window=Session(dice.choice([3, 9]) * SECOND))
    if dice.random() < 0.5:  # it needs the events of each session
        base = replace(
            base, aggregates=(base.aggregates[0], Aggregate("count_distinct", Column("v", "int"), None, "bigint")),
            output=(*base.output[:-1], Named("most", Column("agg:1", "bigint"))),
        )  # fmt: skip
    run, naive = Run(tmp_path, [base], 2, 16), NaiveChanges([base])
    epochs, second = list[list[dict[str, Any]]](), 0
    for number in range(24):
        second += dice.choice([1, 2, 5, 15])
        rows = [
            EVENT | {"ts": (second - late) * SECOND, "k": dice.choice("abc"), "v": dice.randrange(4)}
            for late in dice.choices([0, 1, 3, 8], k=dice.choice([0, 1, 4]))
        ]  # fmt: skip
        if number in (8, 16):
            run.pond.move(tuple(dice.randrange(2) for _ in range(16)))
        run.epoch([rows])
        epochs.append(rows)
        naive.epoch()
        if dice.random() < 0.2:
            other = replace(base, window=Session(dice.choice([2, 3, 6, 9, 20]) * SECOND))
            change = alter(KnownPond(run.pond.spec, run.pond.manifest), other)
            run.pond.change(change)
            naive.change(change)
        for ended in validate.ends(run.pond.spec, run.pond.manifest) if number % 3 == 0 else ():
            run.pond.change(ended)
    run.pond.drain()
    naive.epoch()
    found = run.answers().rows["spent"]
    assert_same_rows(naive.rows(epochs, drained=True)["spent"], found, about=f"{seed}")
    assert sum(row["n"] for row in found) == run.answers().counts["spent"]["applied"]


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_final_rows_of_each_window_are_of_one_version(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    case, deal = random_case(seed + 500, 300, 1, epochs=24), dealt(seed)
    retain = Retention(slices_us=dice.choice([20, 500]) * SECOND, grain_us=5 * SECOND) if dice.random() < 0.5 else None
    mine, other = (replace(version(dice, BASE), having=None) for _ in range(2))
    stream = STREAM if retain is None else replace(STREAM, retain=retain)
    run = Run(tmp_path, [mine, replace(other, name="other")], 2, 16, stream=stream)
    versions, begins = [mine], [-(1 << 62)]
    for number, rows in enumerate(case.epochs):
        run.epoch(deal(rows))
        if number in (4, 7, 9, 15):
            # often what the other query has, so windows are complete from an earlier time on
            like = replace(other, name=mine.name) if dice.random() < 0.6 else versions[-1]
            new = replace(version(dice, like), having=None)
            change = alter(KnownPond(run.pond.spec, run.pond.manifest), new)
            run.pond.change(change)
            if isinstance(change.since_us, int):
                versions.append(new)
                begins.append(change.since_us)
    run.pond.drain()
    wanted = [
        row
        for new, begin, end in zip(versions, begins, [*begins[1:], 1 << 62], strict=True)
        for row in windows.answer(new, case.epochs, drained=True)
        if begin <= row["start"] < end
    ]
    assert_same_rows(wanted, run.answers().rows["spent"], about=f"{begins}")
    assert len(versions) > 2


def test_having_alone_hands_windows_over_where_rows_may_change(tmp_path: Path) -> None:
    base = replace(BASE, emit="update", window=Sliding(10 * SECOND, 10 * SECOND))
    run = Run(tmp_path, [base], 1, 16)
    event = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True, "k": "a"}
    run.epoch([[event | {"ts": 2 * SECOND}]])
    change = alter(KnownPond(run.pond.spec, run.pond.manifest), replace(base, having=more_than(5)))
    assert (change.since_us, change.until_us) == (10 * SECOND, 10 * SECOND)
    run.pond.change(change)
    run.epoch([[event | {"ts": 3 * SECOND}, event | {"ts": 12 * SECOND}]])
    emitted = [(row["start"], row["n"], row["_op"]) for row in run.answers().rows["spent"]]
    assert emitted == [(0, 1, "upsert"), (0, 2, "upsert")], "the early window has no HAVING, the late one fails it"
    only_output = replace(base, output=(*base.output[:-1], Named("most", literal(0, "int"))))
    same = alter(KnownPond(run.pond.spec, run.pond.manifest), replace(only_output, having=more_than(5)))
    assert same.since_us is msgspec.UNSET, "outputs alone are of the next row"


def test_corrections_are_counted_on_by_the_version_that_was_replaced(tmp_path: Path) -> None:
    base = replace(BASE, delay_us=0, correct_us=1000 * SECOND, window=Sliding(10 * SECOND, 10 * SECOND))
    run = Run(tmp_path, [base], 1, 16)
    event = {"v": 9, "amount": 1.0, "g": 1, "f": 1.0, "flag": True, "k": "a"}
    for second in (2, 50, 3):
        run.epoch([[event | {"ts": second * SECOND}]])
    run.pond.change(alter(KnownPond(run.pond.spec, run.pond.manifest), replace(base, where=at_least(100))))
    run.epoch([[event | {"ts": 4 * SECOND}]])
    emitted = [(row["n"], row["_revision"]) for row in run.answers().rows["spent"] if row["start"] == 0]
    assert emitted == [(1, 0), (2, 1), (3, 2)]


def test_alterations_whose_old_rows_could_not_be_retracted_are_refused(tmp_path: Path) -> None:
    base = replace(BASE, emit="update")
    run = Run(tmp_path, [base], 1, 16)
    pond = KnownPond(run.pond.spec, run.pond.manifest)
    others = [
        replace(base, emit=msgspec.UNSET, correct_us=5 * SECOND), replace(base, window=Session(5 * SECOND)),
        replace(BASE, window=Session(5 * SECOND)),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(ChangeRefused, match="could not retract"):
            alter(pond, other)
    once = Run(tmp_path / "final", [BASE], 1, 16)
    with pytest.raises(ChangeRefused, match="could not retract"):
        alter(KnownPond(once.pond.spec, once.pond.manifest), base)
    with pytest.raises(ChangeRefused, match="compares final rows only"):
        shadow(pond, replace(base, where=at_least(3)))
    with pytest.raises(ChangeRefused, match="a pause would lose"):
        pause(pond, base.name)
