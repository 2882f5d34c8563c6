"""Values of the clock are those of the epoch that evaluates them, wherever a query uses them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from kit.inputs.cases import SECOND, STREAM, aggregate_of, random_case
from kit.judges.answers import Run, dealt
from millpond.log.records import EpochRecord, decode
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import NEVER_LATE_US, RUNNING
from millpond.plan.options.clock_parameters import ClockValue

TIME, KEY = Column("ts", "timestamp"), Column("k", "string")
NOW, BEFORE = ClockValue().parameter, ClockValue(-30 * SECOND).parameter
SECONDS = ClockValue(unit_us=SECOND).parameter


def test_each_use_has_the_instant_of_its_epoch(tmp_path: Path) -> None:
    case, dice, deal = random_case(5, 200, 0), random.Random(5), dealt(5)
    times = sorted(row["ts"] for rows in case.epochs for row in rows if row["ts"] is not None)
    base = times[len(times) // 2] // SECOND
    recent = call("gt", (TIME, BEFORE), "boolean")
    total, newer = Column("agg:0", "bigint"), Column("agg:1", "bigint")
    few = call("lt", (total, call("subtract", (SECONDS, literal(base, "bigint")), "bigint")), "boolean")
    queries: list[Query | Selection] = [
        Selection("new", STREAM.name, (Named("k", KEY), Named("ts", TIME), Named("n", NOW)), recent),
        Query(
            "sums", STREAM.name, "ts", NEVER_LATE_US, RUNNING, (KEY,),
            (aggregate_of("count", None), aggregate_of("count", None, recent)),
            (Named("k", Column("key:0", "string")), Named("n", total), Named("m", newer), Named("s", SECONDS)),
            having=few, emit="update",
        ),
    ]  # fmt: skip
    run = Run(tmp_path, queries, 2, 16)
    wanted, sums, counts, recents = Counter[Any](), Counter[Any](), Counter[Any](), Counter[Any]()
    instants = [(base + dice.randint(0, 20)) * SECOND + 7 for _ in case.epochs]
    for rows, instant in zip(case.epochs, instants, strict=True):
        run.pond.instant_us = instant
        run.epoch(deal(rows))
        timed = [row for row in rows if row["ts"] is not None]
        for row in timed:
            counts[row["k"]] += 1
            if row["ts"] > instant - 30 * SECOND:
                recents[row["k"]] += 1
                wanted[row["k"], row["ts"], instant] += 1
        seconds = instant // SECOND
        for key in {row["k"] for row in timed}:
            if counts[key] < seconds - base:
                sums[key, counts[key], recents[key], seconds] += 1
    found = run.answers().rows
    assert Counter((row["k"], row["ts"], row["n"]) for row in found["new"]) == wanted
    upserts = Counter((row["k"], row["n"], row["m"], row["s"]) for row in found["sums"] if row["_op"] == "upsert")
    assert upserts == sums and len(wanted) > 5 and sum(sums.values()) > 5
    records = [decode(run.pond.log.read(n) or b"").record for n in range(run.pond.manifest.n + 1)]
    assert [one.instant for one in records if isinstance(one, EpochRecord)] == instants
