"""Trials over generated events: moved time acts like the time of an event, and the cut has no effect."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from millpond.model.spec import PondSpec
from millpond.model.stream import Order, Stream
from millpond.testing import Trial, events
from millpond.testing.compiled_file import load_compiled

SHOP = Path(__file__).parents[1] / "unit" / "testing" / "shop.json"
SPEC: PondSpec = load_compiled(SHOP).spec
STREAMS: dict[str, Stream] = {stream.name: stream for stream in SPEC.streams}
NAMES = ["spend", "sales", "shares"]


@settings(max_examples=examples(15))
@given(events(STREAMS["tx"], span=timedelta(hours=3), in_time=False), st.integers(-60, 400), st.booleans())
def test_moved_time_is_the_time_of_an_event_that_no_query_takes(rows: list, minute: int, restarted: bool) -> None:
    """`sales` takes events that are `ok` only, so one that is not moves time and does nothing else."""
    to = 1_767_225_600_000_000 + minute * 60_000_000
    half = len(rows) // 2
    with Trial(SHOP, only=["sales"]) as moved, Trial(SHOP, only=["sales"]) as fed:
        nothing = {"day": None, "price": None, "ok": False, "ts": to}
        for trial in (moved, fed):
            trial.feed("tx", rows[:half])
        moved.advance("tx", to=to)
        fed.feed("tx", [nothing])
        if restarted:
            moved.restart()
        assert moved.rows("sales") == fed.rows("sales")
        for trial in (moved, fed):
            trial.feed("tx", rows[half:])
            trial.drain()
        assert moved.rows("sales") == fed.rows("sales")
        # an event may be too late to move anything; it is read all the same
        assert moved.fates("sales")["applied"] == fed.fates("sales")["applied"]
        assert moved.fates("sales")["read"] + 1 == fed.fates("sales")["read"]


@settings(max_examples=examples(6))
@given(events(STREAMS["tx"]), st.integers(0, 1000))
def test_generated_events_are_in_time_and_no_cut_changes_an_answer(rows: list, seed: int) -> None:
    with Trial(SHOP, only=NAMES) as trial:
        trial.assert_same_for_any_cut({"tx": rows}, seed=seed, cuts=3)


@settings(max_examples=examples(6))
@given(st.data(), st.booleans(), st.integers(0, 1000))
def test_the_order_of_a_stream_makes_late_events_the_same_for_any_cut(
    data: st.DataObject, named: bool, seed: int
) -> None:
    """Times go up and down within a source partition; either the order names several of them, or there is one."""
    calls = STREAMS["calls"]
    if named:
        calls = msgspec.structs.replace(calls, order=Order("part", "off", ("0", "1", "2")))
    rows = data.draw(events(calls))
    with Trial.of([calls], SPEC.queries, only=["callers"]) as trial:
        trial.assert_same_for_any_cut({"calls": rows}, seed=seed, cuts=3)


def test_a_source_partition_that_was_not_waited_for_is_reported() -> None:
    rows = [
        {"part": part, "off": off, "who": "a", "ts": f"2026-01-01 00:{minute:02}:00"}
        for part, off, minute in [(0, 0, 0), (0, 1, 30), (1, 0, 0)]
    ]
    with Trial(SHOP, only=["callers"]) as trial, pytest.raises(AssertionError, match="name all of them in the order"):
        trial.assert_same_for_any_cut({"calls": rows})


@settings(max_examples=examples(12))
@given(st.data())
def test_generated_events_fit_their_stream(data: st.DataObject) -> None:
    tx, given_ = STREAMS["tx"], {"size(tags)": st.integers(0, 3)}
    rows = data.draw(events(tx, columns=given_))
    assert all("tags" not in row for row in rows)
    with Trial(SHOP, only=[*NAMES, "tagged"]) as trial:
        trial.feed("tx", rows)
        assert trial.fates("spend")["read"] == len(rows)
        assert trial.fates("spend")["late"] == 0


@given(st.sampled_from(["part:int", "part:string"]), st.data())
def test_source_partitions_are_those_that_the_order_names(field: str, data: st.DataObject) -> None:
    name, kind = field.split(":")
    part, *others = STREAMS["calls"].columns
    columns = (type(part)(name, kind), *others)
    stream = Stream("calls", columns, order=Order("part", "off", ("7", "8")))
    rows = data.draw(events(stream))
    assert {row["part"] for row in rows} <= ({7, 8} if kind == "int" else {"7", "8"})
    assert [row["off"] for row in rows] == list(range(len(rows)))
