"""`explain` for queries whose windows are runs of events: the plan, a price, and the stored events."""

from __future__ import annotations

from pathlib import Path

from kit.judges.answers import Run
from millpond.control.diagnose.cost_report import price_of_state
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Counted, Range, Sliding, Window
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan
from millpond.runtime.inspect.sharing import sharing
from millpond.state.ports.files import Files

MINUTE = 60_000_000
SUM = Aggregate("sum", Column("amount", "double"), None, "double")


def query(name: str, window: Window, where: bool = False) -> Query:
    some = call("gt", (Column("v", "int"), literal(0, "int")), "boolean") if where else None
    return Query(
        name, "events", "ts", 5 * MINUTE, window, (Column("k", "string"),), (SUM,),
        (Named("s", Column("agg:0", "double")),), some,
    )  # fmt: skip


FRAME, SOME = query("frame", Range(10 * MINUTE)), query("some", Range(30 * MINUTE), where=True)
SLIDES, LAST = query("slides", Sliding(10 * MINUTE, 10 * MINUTE)), query("last", Counted(10, 5))


def test_the_plan_says_what_events_are_kept() -> None:
    said = explain(build_plan([FRAME, SOME, SLIDES, LAST]))
    assert "windows   10 minutes, 10 minutes before each event, 30 minutes before each event" in said
    assert "  events    stored individually, each once: 1 value, 3 predicates\n" in said
    assert "            for 35 minutes of event time: the longest frame and its delay\n" in said
    assert "    amount  <- frame, some\n" in said
    assert "windows   the last 10 events every 5 events" in said
    assert "            the last 9 events of each key, of any age, and a count for each key and filter" in said
    assert said.count("computed from stored events") == 3
    # cells are those of the sliding window: what frames count is kept by nobody
    assert "measures  2, used 3 times, each stored once" not in said
    assert "measures  3, used 3 times, each stored once" in said
    assert "measures  none" in explain(build_plan([FRAME]))


def test_a_frame_costs_events_not_cells() -> None:
    found = price(build_plan([SLIDES]), SOME)
    text = price_text(found, price_of_state(found, None))
    assert "  group     shares " in text and "measures  none more; none shared" in text and "filters   1 more" in text
    assert "kept      for 35 minutes of event time" in text
    assert "state     about 25 bytes for each stored event" in text
    assert "10 minutes" not in text
    alone = price(build_plan([]), LAST)
    assert "kept      the last 9 events of each key" in price_text(alone, price_of_state(alone, None))


def test_what_is_held_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, [FRAME, SOME, LAST], 2)
    for minute in range(40):
        run.epoch([[{"k": "a", "amount": 1.0, "v": minute % 2, "ts": minute * MINUTE}]])
    found = sharing(run.pond.plan, run.pond.manifest, Files(tmp_path), 2)
    # the watermark is at 34: frames of events from 34 min 1 µs on reach back to 24 min 1 µs, and to 4 min 1 µs
    assert found.alone["frame"].cells == 15
    assert found.alone["some"].cells == 18
    assert found.alone["last"].cells == 5 + 9
    assert found.shared.cells == 18 + 7 + 14
    assert found.shared.bytes < found.apart.bytes
