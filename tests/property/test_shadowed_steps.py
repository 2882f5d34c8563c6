"""Shadows whose inner steps differ: each window is emitted by one version, and differences are those of both."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries.query_chain import chain_by_epoch
from kit.naive.queries.windows import Batch
from millpond.errors import ChangeRefused
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Sliding
from millpond.plan.upstream.rows_as_stream import inner_stream
from millpond.plan.upstream.steps import step_name
from millpond.reconfigure import validate
from millpond.reconfigure.changes import Promote, Shadow
from millpond.reconfigure.shadow_report import Difference, ShadowComparison
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import closed_until
from millpond.testing.compare import assert_same_rows
from millpond.testing.local_pond import read_section

K, EVER = Column("k", "string"), 1 << 62
STEP = Query(
    "step", STREAM.name, "ts", 2 * SECOND, Sliding(5 * SECOND, 5 * SECOND), (K,),
    (Aggregate("count", None, None, "bigint"), Aggregate("max", Column("v", "int"), None, "int")),
    (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint")),
     Named("most", Column("agg:1", "int")), Named("w", Column("window", WINDOW))),
)  # fmt: skip
LAST = Query(
    "mine", "", "w.time", 0, Sliding(20 * SECOND, 20 * SECOND), (K,),
    (Aggregate("sum", Column("n", "bigint"), None, "bigint"), Aggregate("max", Column("most", "int"), None, "int")),
    (Named("k", Column("key:0", "string")), Named("start", Column("window.start", "timestamp")),
     Named("end", Column("window.end", "timestamp")), Named("n", Column("agg:0", "bigint")),
     Named("most", Column("agg:1", "int"))),
    sink=Sink("memory"),
)  # fmt: skip


class Version(NamedTuple):
    """The steps of a text: the query, and the inner queries below it, lowest first."""

    steps: tuple[Query, ...]
    query: Query

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(inner_stream(step) for step in self.steps)

    def rows(self, epochs: Sequence[Batch], *, drained: bool) -> list[dict[str, Any]]:
        """The rows of this version alone, over all epochs."""
        return [row for rows in chain_by_epoch([*self.steps, self.query], epochs, drained=drained)[-1] for row in rows]


def version(dice: random.Random) -> Version:
    """Another inner window, threshold or delay, one or two inner steps, or another window of the last step."""
    at_least = call("ge", (Column("v", "int"), literal(dice.randint(0, 60), "int")), "boolean")
    window = dice.choice([Sliding(size * SECOND, slide * SECOND) for size, slide in ((5, 5), (10, 10), (4, 2), (5, 5))])
    delay_us = dice.choice([2, 2, 9]) * SECOND
    steps = [replace(STEP, window=window, where=dice.choice([None, at_least]), delay_us=delay_us)]
    steps[0] = replace(steps[0], name=step_name(steps[0], "w.time"))
    if dice.random() < 0.4:
        above = replace(
            STEP, stream=steps[0].name, event_time="w.time", delay_us=0, window=Sliding(10 * SECOND, 10 * SECOND),
            aggregates=LAST.aggregates,
        )  # fmt: skip
        steps.append(replace(above, name=step_name(above, "w.time")))
    size = dice.choice([20, 20, 20, 30]) * SECOND
    return Version(tuple(steps), replace(LAST, stream=steps[-1].name, window=Sliding(size, size)))


def versions(dice: random.Random) -> tuple[Version, Version]:
    """Two versions with different inner steps."""
    old = new = version(dice)
    while new.query.stream == old.query.stream:
        new = version(dice)
    return old, new


class Shadowed:
    """A pond with one text, which gets a shadow; the differences are followed from then on."""

    def __init__(self, folder: Path, old: Version, instances: int) -> None:
        self.run = Run(folder, [old.query], instances, 16, others=old.streams)
        self._folder = folder
        self.comparison: ShadowComparison | None = None
        self.begun_us = -EVER

    @property
    def pond(self) -> KnownPond:
        return KnownPond(self.run.pond.spec, self.run.pond.manifest)

    def shadow(self, new: Version) -> Shadow:
        change = validate.shadow(self.pond, new.query, new.streams)
        self.run.pond.change(change)
        self.compare()
        return change

    def compare(self) -> None:
        """Compare from now on, as a pond does when it is opened again."""
        manifest, queries = self.run.pond.manifest, self.run.pond.spec.all_queries
        both = [query for query in queries if query.name in ("mine", "mine@shadow")]
        self.begun_us = max(-EVER if (time := closed_until(one, manifest)) is None else time for one in both)
        self.comparison = ShadowComparison(
            "mine", "mine@shadow", lambda _n, receipt, section: read_section(self._folder, receipt, section),
            manifest.n, manifest,
        )  # fmt: skip
        self.run.pond.follow(self.comparison)

    def promote(self, *, back: bool = False) -> Promote:
        change = (validate.rollback if back else validate.promote)(self.pond, "mine")
        self.run.pond.change(change)
        if isinstance(change.since_us, int):  # both emit the rows of windows from then on
            self.begun_us = -EVER
        return change

    def difference(self) -> Difference:
        assert self.comparison is not None
        return self.comparison.with_windows(self.pond.spec)


def random_epochs(dice: random.Random) -> list[list[dict[str, Any]]]:
    empty, time = dict.fromkeys(field.name for field in STREAM.columns), dice.choice([0, 1_700_000_000]) * SECOND
    epochs = []
    for _ in range(24):
        rows = []
        for _ in range(dice.randint(0, 12)):
            time += dice.choice([0, SECOND, SECOND, 4 * SECOND])
            event = {"ts": time - dice.choice([0, 0, SECOND, 9 * SECOND]), "v": dice.choice([1, 20, 50, 70, None])}
            rows.append(empty | event | {"k": dice.choice(["a", "b", None])})
        epochs.append(rows)
    return epochs


def counted(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in ("k", "n", "most", "start", "end")) for row in rows)


def parsed(rows: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a difference, with times in microseconds."""
    found = [dict.fromkeys(("k", "n", "most")) | json.loads(row) for row in rows]
    return [row | {name: microseconds(row[name]) for name in ("start", "end")} for row in found]


def microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime.fromtimestamp(0, timezone.utc)) // timedelta(microseconds=1)


@pytest.mark.parametrize("seed", seeds(0, 24))
def test_windows_and_differences_are_those_of_both_versions_alone(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    old, new = versions(dice)
    epochs, deal = random_epochs(dice), dealt(seed)
    alone = {each: each.rows(epochs, drained=True) for each in (old, new)}
    pond = Shadowed(tmp_path, old, 1 + seed % 3)
    shadowed, *exchanged = sorted(dice.sample(range(1, 22), 3))
    reopened = dice.sample(range(shadowed, 23), 1)
    front, behind, begins, since = [old], new, [-EVER], -EVER
    for number, rows in enumerate([*epochs, None]):
        if rows is None:
            pond.run.pond.drain()
        else:
            pond.run.epoch(deal(rows))
        if pond.comparison is not None:
            found = pond.difference()
            closed = -EVER if found.closed_us is None else found.closed_us
            both = [
                counted(
                    row for row in alone[each] if since <= row["start"] and pond.begun_us < row["end"] <= closed
                )
                for each in (front[-1], behind)
            ]  # fmt: skip
            assert counted(parsed(found.only_query)) == both[0] - both[1]
            assert counted(parsed(found.only_shadow)) == both[1] - both[0]
            assert found.same == (both[0] & both[1]).total()
        if number == shadowed:
            change: Shadow | Promote = pond.shadow(new)
        elif number in exchanged:
            change = pond.promote(back=number == exchanged[1])
            behind, made = front[-1], behind
            front.append(made)
            begins.append(change.since_us if isinstance(change.since_us, int) else -EVER)
        if number in (shadowed, *exchanged) and isinstance(change.since_us, int):
            since = change.since_us
        if number in reopened:
            pond.compare()
    answers = pond.run.answers()
    assert not answers.quarantined
    wanted = [
        row for each, begin, end in zip(front, begins, [*begins[1:], EVER], strict=True)
        for row in alone[each] if begin <= row["start"] < end
    ]  # fmt: skip
    assert_same_rows(wanted, answers.rows["mine"], about=str(begins))
    pond.run.pond.change(validate.discard(pond.pond, "mine"))
    pond.run.epoch([[]])
    for ended in validate.ends(pond.pond.spec, pond.pond.manifest):
        pond.run.pond.change(ended)
    left = {step.name for stream in pond.pond.spec.streams for step in stream.steps}
    assert left == {step.name for step in old.steps}, "the inner queries of the other version are gone"


@pytest.mark.parametrize("reopened", range(3, 22, 2))
def test_equal_versions_with_other_delays_differ_in_no_window_after_a_restart(tmp_path: Path, reopened: int) -> None:
    slow = replace(STEP, delay_us=25 * SECOND)
    steps = [replace(step, name=step_name(step, "w.time")) for step in (replace(STEP), slow)]
    old, new = (Version((step,), replace(LAST, stream=step.name)) for step in steps)
    pond = Shadowed(tmp_path, old, 1)
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    times = [range(epoch * 4, epoch * 4 + 4) for epoch in range(30)]
    for number, seconds in enumerate(times):
        pond.run.epoch(dealt(0)([empty | {"ts": time * SECOND, "v": 5, "k": "a"} for time in seconds]))
        if number == 1:
            pond.shadow(new)
        if number == reopened:
            pond.compare()
    found = pond.difference()
    assert (found.only_query, found.only_shadow) == ([], [])
    assert found.first is not None and found.closed_us is not None
    assert found.same == (found.closed_us + SECOND - found.first.start_us) // (20 * SECOND)


def test_a_shadow_of_another_source_or_of_counted_windows_is_refused(tmp_path: Path) -> None:
    dice = random.Random(1)
    old, new = versions(dice)
    pond = Shadowed(tmp_path, old, 1)
    counting = replace(new.query, window=Counted(3, 3))
    with pytest.raises(ChangeRefused, match="would differ from it in an inner query"):
        validate.shadow(pond.pond, counting, new.streams)
    other = Stream("other", (Field("k", "string"), *STREAM.columns[1:]), STREAM.source)
    step = replace(old.steps[0], stream="other", name="@other")
    with pytest.raises(ChangeRefused, match="reads another stream"):
        validate.shadow(pond.pond, replace(old.query, stream="@other"), (other, inner_stream(step)))
