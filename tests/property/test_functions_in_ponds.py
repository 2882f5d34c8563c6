"""Queries with user functions beside others in one pond: results as recomputed; failures quarantine only them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.inputs.examples import seeds
from kit.judges.answers import answers, dealt, whole
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.functions import UserFunction
from millpond.model.query import Named, Query
from millpond.model.windows import Counted, Range, Session, Sliding, Window
from millpond.runtime.functions import call_functions as answering

pytestmark = pytest.mark.usefixtures("sample_functions")
SECOND = 1_000_000
WINDOWS = (
    Sliding(10 * SECOND, 10 * SECOND), Sliding(45 * SECOND, 15 * SECOND), Sliding(7 * SECOND, 3 * SECOND, 2 * SECOND),
)  # fmt: skip
AMOUNT, KEY = Column("amount", "double"), Column("k", "string")
HEAVY = call("gt", (AMOUNT, literal(3.0, "double")), "boolean")


def function(attribute: str, kind: str, returns: str = "string", **rest: Any) -> UserFunction:
    return UserFunction(attribute, "1", f"sample_functions:{attribute}", kind, ("double",), returns, 30_000, **rest)


def query(name: str, called: UserFunction, window: Window, condition: Expression | None = None) -> Query:
    aggregate = Aggregate(called.function, AMOUNT, condition, called.returns)
    return Query(
        name, "events", "ts", 3600 * SECOND, window, (KEY,), (aggregate,),
        (Named("start", Column("window.start", "timestamp")), Named("k", Column("key:0", "string")),
         Named("found", Column("agg:0", called.returns))),
        functions=(called,),
    )  # fmt: skip


def events(seed: int, count: int = 120) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    amounts = [1.0, 2.0, 3.5, 4.0, 5.25, None]
    found = [(dice.choice("abc"), dice.choice(amounts), dice.randrange(90)) for _ in range(count)]
    return [{"k": k, "amount": amount, "ts": second * SECOND} for k, amount, second in found]


def expected(rows: list[dict[str, Any]], window: Sliding, heavy: bool, given: Any) -> dict[tuple[int, str], Any]:
    """By start and key what `given` makes of the values, in order of time, events of one time by value."""
    groups: dict[tuple[int, str], list[tuple[int, float, float | None]]] = {}
    for row in rows:
        for interval in window.assign(row["ts"]):
            held = groups.setdefault((interval.start_us, row["k"]), [])
            if not heavy or (row["amount"] is not None and row["amount"] > 3):
                held.append((row["ts"], row["amount"] if row["amount"] is not None else -1.0, row["amount"]))
    return {at: given([value for _, _, value in sorted(held)]) if held else None for at, held in groups.items()}


def test_sessions_are_windows_too(tmp_path: Path) -> None:
    gap = Session(4 * SECOND)
    called = [function("joined", "holistic"), function("Joined", "mergeable"), function("joined_all", "grouped")]
    queries = [query(made.kind, made, gap) for made in called]
    rows = events(5)
    right: dict[tuple[int, str], str] = {}
    for k in "abc":
        run: list[tuple[int, float, float | None]] = []
        for row in sorted((row["ts"], row["amount"] or -1.0, row["amount"]) for row in rows if row["k"] == k):
            if run and row[0] - run[-1][0] > gap.gap_us:
                right[run[0][0], k] = joined([value for _, _, value in run])
                run = []
            run.append(row)
        right[run[0][0], k] = joined([value for _, _, value in run])
    found = answers(tmp_path / "p", queries, [rows[:50], rows[50:]], 2)
    assert len(right) > 6
    for made in called:
        assert found_in(found.rows[made.kind]) == right, made.kind


@pytest.mark.parametrize("window", [Range(4 * SECOND), Counted(4, 3)])
def test_runs_of_events_are_windows_too(tmp_path: Path, window: Range | Counted) -> None:
    called = [function("joined", "holistic"), function("Joined", "mergeable"), function("joined_all", "grouped")]
    rows = events(6)
    right: list[tuple[int, str, str]] = []
    for k in "abc":
        mine = sorted((row["ts"], row["amount"] or -1.0, row["amount"]) for row in rows if row["k"] == k)
        for i, (time, _, _) in enumerate(mine):
            if isinstance(window, Range):
                frame = [row for row in mine if time - window.preceding_us <= row[0] <= time]
                right.append((time - window.preceding_us, k, joined([value for _, _, value in frame])))
            elif (i + 1) % window.every == 0:
                frame = mine[max(0, i + 1 - window.size) : i + 1]
                right.append((frame[0][0], k, joined([value for _, _, value in frame])))
    found = answers(tmp_path / "p", [query(made.kind, made, window) for made in called], [rows[:50], rows[50:]], 2)
    assert len(right) > 30
    for made in called:
        assert sorted((row["start"], row["k"], row["found"]) for row in found.rows[made.kind]) == sorted(right)


def joined(values: list[float | None]) -> str:
    return "".join("-," if value is None else f"{value:g}," for value in values)


def found_in(rows: list[dict[str, Any]]) -> dict[tuple[int, str], Any]:
    return {(row["start"], row["k"]): row["found"] for row in rows}


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_answers_are_those_of_a_recomputation(tmp_path: Path, seed: int) -> None:
    called = {
        "holistic": function("joined", "holistic"),
        "mergeable": function("Joined", "mergeable"),
        "grouped": function("joined_all", "grouped"),
    }
    queries = [
        query(f"{kind}_{i}_{heavy}", made, window, HEAVY if heavy else None)
        for (kind, made), (i, window), heavy in itertools.product(called.items(), enumerate(WINDOWS), (False, True))
    ]
    rows = events(seed)
    epochs = [rows[:50], [], rows[50:80], rows[80:]]
    for instances, partition in ((1, whole), (3, dealt(seed))):
        found = answers(tmp_path / str(instances), queries, epochs, instances, deal=partition)
        assert not found.quarantined
        for i, window in enumerate(WINDOWS):
            for heavy in (False, True):
                right = expected(rows, window, heavy, joined)
                for kind in called:
                    assert found_in(found.rows[f"{kind}_{i}_{heavy}"]) == right, (kind, window, heavy)


def test_rows_that_may_change_are_recomputed(tmp_path: Path) -> None:
    called = [function("joined", "holistic"), function("Joined", "mergeable"), function("joined_all", "grouped")]
    rows, window = events(8), WINDOWS[1]
    modes = (("emit", {"emit": "update"}), ("correct", {"delay_us": 0, "correct_us": 3600 * SECOND}))
    queries = [replace(query(f"{made.kind}_{how}", made, window), **mode) for made in called for how, mode in modes]
    found = answers(tmp_path / "p", queries, [rows[:50], rows[50:80], rows[80:]], 2, drained=False)
    right = expected(rows, window, False, joined)
    closed = {at: text for at, text in right.items() if at[0] + window.size_us <= max(row["ts"] for row in rows)}
    assert 0 < len(closed) < len(right)
    for made in called:
        assert found_in(found.rows[f"{made.kind}_emit"]) == right
        assert found_in(found.rows[f"{made.kind}_correct"]) == closed


def test_no_call_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the rows of a result are cut into calls."""
    made, window, rows = function("joined_all", "grouped"), WINDOWS[1], events(7, 40)
    right = expected(rows, window, False, joined)
    for most in (1, 3, 10, 1000):
        monkeypatch.setattr(answering, "EVENTS_AT_ONCE", most)
        found = answers(tmp_path / str(most), [query("q", made, window)], [rows])
        assert found_in(found.rows["q"]) == right
        bad = replace(function("raises", "holistic", "double"))
        reason = answers(tmp_path / f"bad{most}", [query("bad", bad, WINDOWS[0])], [FAILING]).quarantined["bad"]
        assert 'for the key ["b"].' in reason


FAILING = [{"k": k, "amount": amount, "ts": SECOND} for k, amount in (("a", 1.0), ("b", 3.0), ("c", 5.0))]
BAD = [
    ("raises", {}, "raised ValueError: three is too many"),
    ("leaves", {}, "ended its process with status 5 saying: so long"),
    ("hoards", {}, "needs more than 256 MB of memory"),
    ("hangs", {"deadline_ms": 2500}, "did not answer within 2.5 s"),
    ("wrong_type", {}, "gave 'three' (str) for a double"),
]


@pytest.mark.parametrize(("attribute", "rest", "what"), BAD, ids=[case[0] for case in BAD])
def test_a_failure_quarantines_its_query_alone(tmp_path: Path, attribute: str, rest: dict[str, Any], what: str) -> None:
    bad = replace(function(attribute, "holistic", "double"), **rest)
    good = function("median", "holistic", "double")
    window = WINDOWS[0]
    queries = [query("bad", bad, window), query("good", good, window), query("other", replace(good, name="m"), window)]
    for instances in (1, 3) if attribute == "raises" else (3,):
        found = answers(tmp_path / str(instances), queries, [FAILING, [], FAILING[:1]], instances)
        assert list(found.quarantined) == ["bad"]
        assert found.quarantined["bad"].startswith(f"[MP-FUNCTION] The function {attribute}@1 {what}")
        assert ', for the key ["b"].' in found.quarantined["bad"]
        assert not found.rows["bad"]
        assert found_in(found.rows["good"]) == found_in(found.rows["other"]) == {
            (0, "a"): 1.0, (0, "b"): 3.0, (0, "c"): 5.0,
        }  # fmt: skip


def test_a_module_that_changed_quarantines_too(tmp_path: Path) -> None:
    stale = replace(function("median", "holistic", "double"), digest="0" * 64)
    rows = [{"k": "a", "amount": 1.0, "ts": SECOND}]
    found = answers(tmp_path / "p", [query("stale", stale, WINDOWS[0])], [rows])
    assert "is no longer what it was" in found.quarantined["stale"]
