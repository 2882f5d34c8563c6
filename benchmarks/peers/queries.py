"""N queries against the peers: Flink SQL, plain Structured Streaming, Bytewax, on the canonical workload in one run.

    python benchmarks/peers/queries.py [--minutes 25] [--counts 1,8,100] [--engines flink-heap,…] [--small]

Every cell is a process of its own (two cores, 4 GB of heap) that answers N windowed queries over bank transactions:
count, sum and maximum per customer over N different windows, rows to nowhere, state durable (`settings.py`). First it
answers the same queries over the same events, at most a third of its time, to warm up; then the measured pass begins
when its queries are planned and ends when all rows are out, or when its time is over: then the events that it had
taken are a prefix of the sample, which the table says. A pond is never stopped before its end, nor plain Spark before
each query has a batch. An engine that fails, or does not end, runs once more for less time. `events/s` is of that
pass; CPU and memory (proportional set size) are those of all its processes; `whole` is the process from its start to
its end, warm-up and all.

Not alike, each in favour of a peer: plain Spark leaves its last windows open; a prefix closes few windows, or none;
Bytewax hands nothing from one customer to another, so it needs no watermark over all. Flink and Bytewax read the same
events from two files, each in order of time, because they promise no order of files.

Before anything is measured each engine writes its rows of eight queries over a small sample; the digests of the
sorted rows must be the same. `vs_flink_N`: events/s of Millpond over those of Flink with heap state.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import here  # noqa: F401
from compared import dealt, digest, leave, multiples, newest_second
from install import environment
from meter import Failed, Measured, measured
from picture import Panel, draw
from results import FOLDER
from settings import CHECKPOINT_SECONDS, CORES, FLINK, FLINK_STATE, SPARK, SPARK_STATE
from workload import LARGE, SMALL, Size, transactions

COUNTS = (1, 2, 4, 8, 16, 32, 100)
ENGINES = ("millpond", "flink-heap", "flink-rocksdb", "spark-memory", "spark-rocksdb", "bytewax")
START_SECONDS = 15
"""What starting an engine takes of a cell's time, about."""
LESS = 0.35
"""The part of its time that an engine gets once more when it did not come through."""


class Cell(NamedTuple):
    """The measurements of a cell. `share` of the sample; bytes of state if the engine reports them, otherwise NaN."""

    engine: str
    count: int
    events_s: float
    share: float
    cpu_us: float
    peak_mb: float
    state_mb: float
    whole: float


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    options = _arguments(argv)
    size = SMALL if options.small else LARGE
    seconds = (options.minutes * 60 / (len(options.engines) * len(options.counts)) - START_SECONDS) / 1.35
    if seconds < 1:
        raise SystemExit("That leaves no time for a cell: more --minutes, fewer --counts or --engines.")
    with tempfile.TemporaryDirectory(prefix="millpond-peers-") as scratch:
        work = Path(scratch)
        check(options.engines, SMALL, work)
        cells = []
        for count in options.counts:
            for engine in options.engines:
                for most in (seconds, seconds * LESS):
                    try:
                        cells.append(run(engine, size, multiples(count), most, work))
                    except Failed as failure:
                        print(f"{engine}, N={count}, {most:.0f} s: failed\n{failure}", file=sys.stderr, flush=True)
                        continue
                    print(_line(cells[-1]), flush=True)
                    break
    print("\n" + table(cells))
    found = figures(cells)
    if not options.small:
        draw(results / "peers.svg", "N windowed queries over one stream", panels(cells))
    leave("peers", found, None if options.small else results)
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="N queries against the peers.")
    parser.add_argument("--minutes", type=float, default=25.0, help="about how long everything may take")
    parser.add_argument("--counts", type=lambda text: tuple(map(int, text.split(","))), default=COUNTS)
    parser.add_argument("--engines", type=lambda text: tuple(text.split(",")), default=ENGINES)
    parser.add_argument("--small", action="store_true", help="40,000 events, to see that it works")
    found = parser.parse_args(argv)
    if unknown := set(found.engines) - set(ENGINES):
        parser.error(f"no engine is called {', '.join(sorted(unknown))}: there are {', '.join(ENGINES)}")
    return found


def check(engines: Sequence[str], size: Size, work: Path) -> str:
    """The digest that the rows of all engines have over a small sample.

    Raises:
        SystemExit: they differ.
    """
    windows, source, found = multiples(8), transactions(size), {}
    for engine in engines:
        out = work / "rows"
        one = {"source": str(_input(engine, source)), "windows": windows, "seconds": 600, "out": str(out)}
        _started(engine, [one], work)
        found[engine] = digest(out, len(windows), newest_second(source))
        print(f"{engine}: {found[engine][0]} rows of 8 queries, SHA-256 {found[engine][1][:16]}", flush=True)
        shutil.rmtree(out)
    if len(set(found.values())) != 1:
        raise SystemExit("The engines do not answer the same.")
    return next(iter(found.values()))[1]


def run(engine: str, size: Size, windows: Sequence[tuple[int, int]], seconds: float, work: Path) -> Cell:
    """One cell; a pond is never stopped before its end."""
    source = transactions(size)
    limit = 1e6 if engine == "millpond" else seconds
    warm = {"source": str(_input(engine, source)), "windows": windows, "out": None, "seconds": seconds / 3}
    timed = {**warm, "seconds": limit}
    found = _started(engine, [warm, timed], work)
    sums = {name: sum(one.get(name) or 0 for one in found.ends) for name in ("events", "state_bytes")}
    whole = all(one.get("whole", True) for one in found.ends)
    events = size.events if whole else sums["events"]
    return Cell(
        engine, len(windows), events / found.seconds, events / size.events, found.cpu / max(1, events) * 1e6,
        found.peak_mb, sums["state_bytes"] / 1e6 or float("nan"), found.whole,
    )  # fmt: skip


def _input(engine: str, source: Path) -> Path:
    return dealt(source) if engine.startswith(("flink", "bytewax")) else source


def _started(engine: str, passes: Sequence[Mapping[str, Any]], work: Path) -> Measured:
    kind, _, state = engine.partition("-")
    there = environment("pond" if kind == "millpond" else kind)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec, program = Path(folder) / "spec.json", Path(__file__).with_name(f"{PROGRAMS[kind]}.py")
        if kind == "flink":
            options = {**FLINK, **FLINK_STATE[state], "execution.checkpointing.dir": f"file://{folder}/checkpoints"}
            request = {"options": options, "jars": [f"file://{jar}" for jar in there.jars]}
            request["passes"] = [flink_sql(**one) for one in passes]
        else:
            request = {"conf": {**SPARK, **SPARK_STATE.get(state, {})}, "passes": passes}
        spec.write_text(json.dumps(request))
        more = [str(CORES), str(CHECKPOINT_SECONDS)] if kind == "bytewax" else []
        return measured([str(there.python), "-u", str(program), str(spec), *more], there.variables)


PROGRAMS = {"millpond": "pond_child", "flink": "flink_child", "spark": "spark_child", "bytewax": "bytewax_child"}


def flink_sql(source: str, windows: Sequence[tuple[int, int]], seconds: float, out: str | None) -> dict[str, Any]:
    """The N queries as Flink's documentation writes windowed aggregations: table functions of windows."""
    tables = [
        "CREATE TABLE events (ts TIMESTAMP_LTZ(6), customer STRING, amount DOUBLE, et AS CAST(ts AS TIMESTAMP_LTZ(3)),"
        f" WATERMARK FOR et AS et) WITH ('connector' = 'filesystem', 'path' = 'file://{source}', 'format' = 'parquet')"
    ]
    inserts = []
    for number, (size, slide) in enumerate(windows):
        to = f"'filesystem', 'path' = 'file://{out}/{number}', 'format' = 'csv'" if out else "'blackhole'"
        tables.append(
            f"CREATE TABLE out{number} (customer STRING, window_end BIGINT, n BIGINT, s DOUBLE, m DOUBLE)"
            f" WITH ('connector' = {to})"
        )
        length, step = (f"INTERVAL '{value}' SECOND(4)" for value in (size, slide))
        window = f"TUMBLE(TABLE events, DESCRIPTOR(et), {length})"
        if size != slide:
            window = f"HOP(TABLE events, DESCRIPTOR(et), {step}, {length})"
        inserts.append(
            f"INSERT INTO out{number} SELECT customer,"
            " CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_end) AS BIGINT),"
            f" COUNT(*), SUM(amount), MAX(amount) FROM {window} GROUP BY customer, window_start, window_end"
        )
    return {"tables": tables, "inserts": inserts, "seconds": seconds}


def _line(cell: Cell) -> str:
    return (
        f"{cell.engine:14} N={cell.count:<4} {cell.events_s / 1e3:9.1f} k events/s  {cell.share:6.1%} of the sample"
        f"  {cell.cpu_us:8.1f} us CPU/event  {cell.peak_mb:7.0f} MB  state {cell.state_mb:8.1f} MB"
        f"  whole {cell.whole:5.0f} s"
    )


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a row per engine and number of queries."""
    ours = {cell.count: cell.events_s for cell in cells if cell.engine == "millpond"}
    lines = [
        "| queries | engine | events/s | Millpond is | sample | CPU µs/event | peak MB | state MB | whole s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells, key=lambda one: (one.count, ENGINES.index(one.engine))):
        ratio = f"{ours.get(cell.count, float('nan')) / cell.events_s:.1f} x" if cell.events_s else "no events yet"
        state = "" if cell.state_mb != cell.state_mb else f"{cell.state_mb:,.1f}"
        lines.append(
            f"| {cell.count} | {cell.engine} | {cell.events_s / 1e3:,.1f} k | {ratio} | {cell.share:.0%}"
            f" | {cell.cpu_us:,.1f} | {cell.peak_mb:,.0f} | {state} | {cell.whole:,.0f} |"
        )
    return "\n".join(lines)


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """Throughput, CPU, memory and state by number of queries."""
    counts = sorted({cell.count for cell in cells})
    titles = {
        "events_s": "events/s", "cpu_us": "CPU microseconds per event", "peak_mb": "peak MB", "state_mb": "state MB",
    }  # fmt: skip
    found = []
    for field, title in titles.items():
        series = {}
        for engine in dict.fromkeys(cell.engine for cell in cells):
            by = {cell.count: getattr(cell, field) for cell in cells if cell.engine == engine}
            series[engine] = [by.get(count, float("nan")) for count in counts]
        found.append(Panel(title, counts, series, log=True))
    return found


def figures(cells: Sequence[Cell]) -> dict[str, float]:
    rates = {(cell.engine, cell.count): cell.events_s for cell in cells}
    found = {}
    for (engine, count), rate in rates.items():
        if engine != "millpond" and rate and ("millpond", count) in rates:
            name = "flink" if engine == "flink-heap" else engine.replace("-", "_")
            found[f"vs_{name}_{count}"] = round(rates["millpond", count] / rate, 2)
    for cell in cells:
        name = f"{cell.engine.replace('-', '_')}_{cell.count}"
        found[f"{name}_events_s"] = round(cell.events_s)
        found[f"{name}_peak_mb"] = round(cell.peak_mb)
    return found


if __name__ == "__main__":
    main()
