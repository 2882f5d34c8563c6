"""A processor of the user's has the rows of the naive twin, for any cut, and when buckets migrate."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import STREAM
from kit.inputs.examples import seeds
from kit.judges.answers import Answers, Run, answers, dealt, run_with_moves
from kit.naive.processors import naive_rows
from millpond.followers.record_rows import RowsReader, key_columns
from millpond.followers.sinks.in_process import MemorySink
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, call, field_of, literal
from millpond.model.functions import KeyedState, UserFunction
from millpond.model.query import Named, Query
from millpond.model.types import struct_fields
from millpond.model.windows import Processed
from millpond.plan.groups.build import build_plan
from millpond.reconfigure import validate
from millpond.reconfigure.validate import KnownPond, keeps_state
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.inspect.next_close import next_due
from millpond.runtime.inspect.sharing import sharing
from millpond.state.ports.files import Files
from millpond.testing import Trial
from millpond.testing.local_pond import read_section

pytestmark = pytest.mark.usefixtures("sample_functions")
SECOND = 1_000_000
FIELDS = (("declines", "bigint"), ("amounts", "array<double>"), ("seen", "map<string,bigint>"))
ROW = "struct<time:timestamp,what:string,declines:bigint,amounts:array<double>>"
APPROVED, AMOUNT, KEY = Column("flag", "boolean"), Column("amount", "double"), Column("k", "string")


def function(name: str, timers: int | None = None, ttl: int | None = None) -> UserFunction:
    keyed = KeyedState(
        ("approved", "amount"), FIELDS, UNSET if ttl is None else ttl * SECOND,
        UNSET if timers is None else timers * SECOND,
    )  # fmt: skip
    version = f"{timers or 0}{ttl or 0:02}"  # one pond may call each
    return UserFunction(
        name, version, f"sample_functions:{name}", "stateful", ("boolean", "double"), ROW, 30_000, keyed=keyed
    )


def query(name: str, called: UserFunction, delay: int = 5, **more: Any) -> Query:
    row = Aggregate(called.function, APPROVED, None, called.returns, AMOUNT)
    fields = [field_of(Column("agg:0", called.returns), i) for i in range(len(struct_fields(called.returns)))]
    names = [field.name for field in struct_fields(called.returns)]
    output = (Named("k", Column("key:0", "string")), *map(Named, names, fields))
    window = Processed(called.state.ttl_us)
    return Query(
        name, "events", "ts", delay * SECOND, window, (KEY,), (row,), output, functions=(called,), **more
    )  # fmt: skip


def events(seed: int, count: int = 150, keys: str = "abcdef") -> list[dict[str, Any]]:
    """Events in order of time, apart from four seconds."""
    dice = random.Random(seed)
    found = [
        {
            "k": dice.choice(keys), "flag": dice.choice([True, False, False, None]),
            "amount": dice.choice([1.0, 2.5, None]), "ts": SECOND * (i // 2 + dice.randrange(4)),
        }
        for i in range(count)
    ]  # fmt: skip
    return [{**row, "ts": row["ts"] + (60 * SECOND if i > count // 2 else 0)} for i, row in enumerate(found)]


def cut(rows: list[dict[str, Any]], seed: int) -> list[list[dict[str, Any]]]:
    at = sorted(random.Random(seed).sample(range(len(rows)), 9))
    return [rows[first:end] for first, end in zip([0, *at], [*at, len(rows)], strict=True)]


def moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def expected(rows: list[dict[str, Any]], called: UserFunction, drained: bool = True) -> list[tuple[Any, ...]]:
    found, newest, samples = [], max(row["ts"] for row in rows), import_module("sample_functions")
    timed = called.state.timer_after_us is not None
    ttl = None if called.state.lasts_us is None else timedelta(microseconds=called.state.lasts_us)
    until = newest if drained else newest - 5 * SECOND
    for k in sorted({row["k"] for row in rows}):
        mine = sorted(
            (row["ts"], -1 if row["flag"] is None else row["flag"], row["amount"] or 0.0, i)
            for i, row in enumerate(rows) if row["k"] == k and row["ts"] <= until
        )  # fmt: skip
        ordered = [(moment(row["ts"]), (row["flag"], row["amount"])) for row in (rows[one[-1]] for one in mine)]
        timer = samples.streak_timer if timed else None
        made = naive_rows(ordered, samples.streak_event, timer, ttl, moment(until))
        epoch = moment(0)
        found += [
            (k, (time - epoch) // timedelta(microseconds=1), row["what"], row["declines"], row["amounts"])
            for time, row in made
        ]
    return sorted(found, key=repr)


def found_in(found: Answers, name: str) -> list[tuple[Any, ...]]:
    assert not found.quarantined
    rows = [tuple(row[part] for part in ("k", "time", "what", "declines", "amounts")) for row in found.rows[name]]
    return sorted(rows, key=repr)


CALLED = (
    function("PlainStreaks"), function("PlainStreaks", ttl=3), function("Streaks", timers=10),
    function("Streaks", timers=4, ttl=9), function("Streaks", timers=10, ttl=14),
)  # fmt: skip


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_rows_are_those_of_the_naive_twin_for_any_cut(tmp_path: Path, seed: int) -> None:
    rows = events(seed)
    right = {f"q{i}": expected(rows, called) for i, called in enumerate(CALLED)}
    assert min(map(len, right.values())) > 5
    queries = [query(f"q{i}", called) for i, called in enumerate(CALLED)]
    for instances, epochs in ((1, [rows]), (3, cut(rows, seed))):
        found = answers(tmp_path / str(instances), queries, epochs, instances, deal=dealt(seed))
        for name in right:
            assert found_in(found, name) == right[name], (name, instances)


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_migration_and_a_second_pond_change_nothing(tmp_path: Path, seed: int) -> None:
    rows, called = events(seed, 240, "abcdefghijklmnop"), dict(zip("ab", CALLED[-2:], strict=True))
    queries = [query(name, one) for name, one in called.items()]
    run = run_with_moves(tmp_path, queries, cut(rows, seed), random.Random(seed), seed, 0.6)
    for drained in (False, True):
        if drained:
            run.pond.drain()
        for name, one in called.items():
            assert found_in(run.answers(), name) == expected(rows, one, drained)


def test_many_epochs_merge_states_and_forget_old_ones(tmp_path: Path) -> None:
    called, rows = CALLED[-1], events(7, 400, "abcdefghijklmnop")
    run = Run(tmp_path / "p", [query("q", called)], 2, 16)
    for first in range(0, 400, 5):
        run.epoch([rows[first : first + 5]])
    assert found_in(run.answers(), "q") == expected(rows, called, drained=False)
    live = run.ledger.live[-1]
    assert live["events"] <= 2 * 2 * 8
    run.pond.advance("events", {ANY_PARTITION: rows[-1]["ts"] + 3600 * SECOND})
    for i in range(70):
        run.epoch([[{"k": "other", "flag": True, "amount": 1.0, "ts": rows[-1]["ts"] + (3600 + i) * SECOND}]])
    stored = [section for section in run.pond.manifest.sections.values() if section.kind == "events"]
    assert sum(section.rows for section in stored) < 60


def test_conditions_and_queries_share_one_state(tmp_path: Path) -> None:
    called, rows = CALLED[2], events(3)
    big = call("gt", (Column("v", "int"), literal(0, "int")), "boolean")
    rows = [{**row, "v": i % 3} for i, row in enumerate(rows)]
    what = field_of(Column("agg:0", called.returns), 1)
    queries = [query("every", called), query("some", called, where=big),
             query("late", called, having=call("eq", (what, literal("gave up", "string")), "boolean"))]  # fmt: skip
    found = answers(tmp_path / "p", queries, cut(rows, 1), 2)
    right = expected(rows, called)
    assert found_in(found, "every") == right
    assert found_in(found, "late") == [row for row in right if row[2] == "gave up"]
    assert found_in(found, "some") == expected([row for row in rows if row["v"]], called)
    assert len(build_plan(queries).groups) == 2


def test_sizes_and_what_is_due_next_are_known(tmp_path: Path) -> None:
    plain, timed = query("q", CALLED[0]), query("t", CALLED[2])
    run = Run(tmp_path / "t", [timed], 2, 16)
    for second in (1, 10):  # the watermark is at 5 s
        run.epoch([[{"k": "a", "flag": False, "amount": 1.0, "ts": second * SECOND}]])
    group = run.pond.plan.groups[0]
    due = next_due(group, group.queries[0], run.pond.manifest, Files(tmp_path / "t"), 2)
    assert due is not None and due.start_us == 10 * SECOND
    run.pond.advance("events", {ANY_PARTITION: 15 * SECOND})  # the second event sets a timer for 20 s
    due = next_due(group, group.queries[0], run.pond.manifest, Files(tmp_path / "t"), 2)
    assert due is not None and due.start_us == 20 * SECOND
    run = Run(tmp_path / "p", [plain], 2, 16)
    seconds = [("a", 1, False), ("b", 2, False), ("a", 3, False), ("b", 4, True), ("c", 9, False), ("a", 8, True)]
    for k, second, flag in seconds:
        run.epoch([[{"k": k, "flag": flag, "amount": 1.0, "ts": second * SECOND}]])
    manifest, group = run.pond.manifest, run.pond.plan.groups[0]
    files = Files(tmp_path / "p")
    due = next_due(group, group.queries[0], manifest, files, 2)  # the watermark is at 4 s
    assert due is not None and (due.start_us, due.needs_us) == (8 * SECOND, 13 * SECOND)
    # two waiting events, the state of a, and that of b, which was forgotten
    assert sharing(run.pond.plan, manifest, files, 2).alone["q"].cells == 4
    assert key_columns(plain) == ()  # a processor may make several equal rows
    other = replace(plain, output=plain.output[:2], having=call("isnotnull", (plain.output[2].expression,), "boolean"))
    assert keeps_state(plain, other) and not keeps_state(plain, query("q", CALLED[1]))


def test_queries_are_added_altered_and_dropped_while_the_pond_runs(tmp_path: Path) -> None:
    called, rows = CALLED[2], events(9)
    epochs, memory = cut(rows, 2), Sink("memory")
    first, later = replace(query("q", called), sink=memory), replace(query("later", called), sink=memory)
    gave_up = call("eq", (first.output[2].expression, literal("gave up", "string")), "boolean")
    run = Run(tmp_path, [first], 2, 16)
    reader = RowsReader(lambda _n, receipt, section: read_section(tmp_path, receipt, section))
    for i, batch in enumerate(epochs):
        known = KnownPond(run.pond.spec, run.pond.manifest)
        if i == 3:
            run.sinks["later"] = MemorySink("later", reader, run.pond.change(validate.add(known, later)))
            run.pond.follow(run.sinks["later"])
        if i == 6:
            assert found_in(run.answers(), "q") == expected([row for one in epochs[:6] for row in one], called, False)
            run.pond.change(validate.alter(known, replace(first, having=gave_up)))
        if i == 8:
            run.pond.change(validate.drop(known, "later"))
        run.epoch([batch])
    run.pond.drain()
    found, right = run.answers(), expected(rows, called)
    before = {repr(row) for row in expected([row for one in epochs[:6] for row in one], called, False)}
    assert found_in(found, "q") == [row for row in right if repr(row) in before or row[2] == "gave up"]
    assert found_in(found, "later") == expected([row for one in epochs[3:8] for row in one], called, False)


BROKEN = {
    "Raises": "raised ValueError: no", "WrongRows": "rows with the columns", "WrongCount": "states for",
    "EarlyTimer": "set a timer earlier", "WrongTime": "neither event nor timer", "NoPair": "not a pair",
}  # fmt: skip


def test_failing_processors_quarantine_their_queries_only(tmp_path: Path) -> None:
    queries = [*(query(name, function(name, timers=10)) for name in BROKEN), query("sound", CALLED[2])]
    found = answers(tmp_path / "p", queries, cut(events(1), 1), 2)
    assert found.quarantined.keys() == BROKEN.keys()
    for name, says in BROKEN.items():
        assert says in found.quarantined[name]
    assert found_in(found._replace(quarantined={}), "sound") == expected(events(1), CALLED[2])


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-state-per-key.md"
MINUTES = timedelta(minutes=10)


def declines_event(state: dict[str, Any] | None, time: datetime, approved: bool) -> Any:
    times = [] if state is None else state["times"]
    if not approved:
        return [], {"times": [*times, time][-3:], "timer": None}
    found = len(times) == 3 and time - times[0] <= MINUTES
    return [{"since": times[0]}] if found else [], None


def unanswered_event(state: dict[str, Any] | None, time: datetime, approved: bool) -> Any:
    if approved:
        return [], None
    return [], {"timer": time + MINUTES} if state is None else state


def unanswered_timer(_state: dict[str, Any], time: datetime) -> Any:
    return [{"since": time - MINUTES}], None


@pytest.mark.parametrize(("name", "event", "timer"), [
    ("Declines", declines_event, None), ("Unanswered", unanswered_event, unanswered_timer),
])  # fmt: skip
def test_the_examples_of_the_page_follow_their_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, event: Any, timer: Any
) -> None:
    code = re.findall(r"^```python\n((?:#|class).*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    module = f"page_{name.lower()}"
    (tmp_path / f"{module}.py").write_text("\n".join(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    dice = random.Random(5)
    rows = [
        {"k": dice.choice("abc"), "flag": dice.random() < 0.3, "ts": (i * 47 + dice.randrange(5)) * SECOND}
        for i in range(200)
    ]
    fields = (("times", "array<timestamp>"),) if timer is None else (("waits", "boolean"),)
    keyed = KeyedState(("approved",), fields, *((600 * SECOND, UNSET) if timer is None else (UNSET, 600 * SECOND)))
    row = "struct<time:timestamp,since:timestamp>"
    called = UserFunction(name, "1", f"{module}:{name}", "stateful", ("boolean",), row, 30_000, keyed=keyed)
    single = replace(query("q", called), aggregates=(Aggregate(called.function, APPROVED, None, row),))
    right = []
    for k in "abc":
        mine = [(moment(one["ts"]), (one["flag"],)) for one in rows if one["k"] == k]
        ttl = MINUTES if timer is None else None
        found = naive_rows(mine, event, timer, ttl, moment(rows[-1]["ts"]))
        right += [(k, time, made["since"]) for time, made in found]
    assert len(right) > 4
    for i, epochs in enumerate(([rows], cut(rows, 3))):
        made = answers(tmp_path / str(i), [single], epochs, 2)
        assert not made.quarantined
        times = [(one["k"], moment(one["time"]), moment(one["since"])) for one in made.rows["q"]]
        assert sorted(times) == sorted(right)


def test_a_trial_finds_a_processor_that_depends_on_the_cut() -> None:
    rows = events(11, 60, "abc")
    with Trial.of([STREAM], [query("q", CALLED[-1])]) as trial:
        trial.feed("events", rows[:30])
        trial.restart()
        trial.feed("events", rows[30:])
        trial.drain()
        found = [(row["k"], row["what"], row["declines"]) for row in trial.rows("q")]
        assert sorted(found) == sorted((row[0], *row[2:4]) for row in expected(rows, CALLED[-1]))
        trial.assert_same_for_any_cut({"events": rows}, seed=1, cuts=2)
    with Trial.of([STREAM], [query("q", function("CallCounter"))]) as trial, pytest.raises(AssertionError):
        trial.assert_same_for_any_cut({"events": rows}, seed=1, cuts=2)
