"""Nexmark against Flink SQL: each query alone, then all of them combined, in one run.

    python benchmarks/peers/nexmark.py [--minutes 15] [--queries q0,q5,…] [--small]

Events are those of `nexmark_events.py`, queries those of `nexmark_queries.py`, where it also says which are missing and
why. Both engines read the same Parquet files (Flink each kind's events in one file, those of bids in two, each in order
of time), drop the rows, and keep their state as in `settings.py`; how cells are measured says `queries.py`. "All" is
one pond, and one statement set of Flink, of the queries that `--queries` names besides `all`, or of all. If an engine
reads only a prefix, its part is the mean over the queries of the part of their events that was read.
`tests/benchmarks/test_nexmark.py` compares the pond's rows with DuckDB's. `vs_flink_Q`: events/s of Millpond over those
of Flink, heap state.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import here  # noqa: F401
import pyarrow as pa
import pyarrow.parquet as pq
from compared import leave
from install import environment
from meter import Failed, Measured, measured
from nexmark_events import SCHEMAS, write
from nexmark_queries import QUERIES, flink_pass, flink_tables, streams
from results import FOLDER
from settings import EPOCH_FILES, FLINK, FLINK_STATE

ALL = "all"
START_SECONDS = 20


class Sample(NamedTuple):
    """How much: events in all, files of each kind."""

    events: int
    files: int


LARGE, SMALL = Sample(12_000_000, 24), Sample(50_000, 2)


class Cell(NamedTuple):
    """What a cell measured; `share` of the sample."""

    query: str
    engine: str
    events_s: float
    share: float
    cpu_us: float
    peak_mb: float


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="Nexmark against Flink SQL.")
    parser.add_argument("--minutes", type=float, default=15.0, help="about how long everything may take")
    parser.add_argument("--queries", type=lambda text: text.split(","), default=[*QUERIES, ALL])
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["millpond", "flink"])
    parser.add_argument("--small", action="store_true", help="50,000 events, to see that it works")
    given = parser.parse_args(argv)
    size = SMALL if given.small else LARGE
    seconds = (given.minutes * 60 / (len(given.queries) * len(given.engines)) - START_SECONDS) / 1.35
    if seconds < 1:
        raise SystemExit("That leaves no time for a cell: more --minutes, fewer --queries.")
    combined = [query for query in given.queries if query != ALL] or list(QUERIES)
    folder = Path(tempfile.gettempdir()) / f"millpond-nexmark-{size.events}-{size.files}"
    source, cells = write(folder, *size), []
    with tempfile.TemporaryDirectory(prefix="millpond-nexmark-") as scratch:
        for query in given.queries:
            for engine in given.engines:
                try:
                    cells.append(run(query, combined, engine, source, size, seconds, Path(scratch)))
                except Failed as failure:
                    print(f"{engine}, {query}: failed\n{failure}", file=sys.stderr, flush=True)
                    continue
                print(_line(cells[-1]), flush=True)
    print("\n" + table(cells))
    found = figures(cells)
    leave("nexmark", found, None if given.small else results)
    return found


def run(
    query: str, combined: Sequence[str], engine: str, source: Path, size: Sample, seconds: float, work: Path
) -> Cell:
    """One cell: a first pass over all of it, for a third of the time, warms the engine; `combined` is what ALL runs."""
    names = combined if query == ALL else [query]
    limits = (seconds / 3, seconds)
    given: dict[str, Any]
    if engine == "millpond":
        there = environment("pond")
        given = {"passes": [pond_pass(names, source, limit) for limit in limits]}
    else:
        there = environment("flink")
        folders = {kind: str(one_file(source, kind)) for kind in SCHEMAS}
        tables = flink_tables({**folders, "side_input": str(source / "side_input")}, SCHEMAS)
        options = {**FLINK, **FLINK_STATE["heap"], "execution.checkpointing.dir": f"file://{work}/checkpoints"}
        given = {"options": options, "jars": [f"file://{jar}" for jar in there.jars]}
        given["passes"] = [flink_pass(names, tables, limit) for limit in limits]
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(json.dumps(given))
        program = Path(__file__).with_name("pond_child.py" if engine == "millpond" else "flink_child.py")
        found = measured([str(there.python), "-u", str(program), str(spec)], there.variables)
    return _cell(query, engine, names, size, found)


def pond_pass(names: Sequence[str], source: Path, seconds: float) -> dict[str, Any]:
    """A pass of a pond that answers some queries combined; its epochs have as many events, whatever kinds they read."""
    given = {}
    for query in (QUERIES[name] for name in names):
        for name, text in query.pond.items():
            given[name] = (text, query.options)
    files = round(EPOCH_FILES / sum(SHARES[kind] for kind in kinds(names)))
    return {"text": streams(str(source), SCHEMAS, files), "queries": given, "seconds": seconds}


def one_file(source: Path, kind: str) -> Path:
    """The events of a kind in as many files as Flink can read side by side in order of time: bids in two, else one."""
    parts = 2 if kind == "bid" else 1
    folder = source / f"{kind}-in-{parts}"
    if not (folder / "_DONE").exists():
        folder.mkdir(exist_ok=True)
        whole = pa.concat_tables(pq.read_table(path) for path in sorted((source / kind).glob("*.parquet")))
        for part in range(parts):
            rows = whole.take(pa.array(range(part, len(whole), parts)))
            pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=1 << 17)
        (folder / "_DONE").touch()
    return folder


def _cell(query: str, engine: str, names: Sequence[str], size: Sample, found: Measured) -> Cell:
    end = found.ends[-1]
    read = sum(SHARES[kind] for kind in kinds(names)) * size.events
    if end["whole"]:
        events = read
    elif "scans" in end:
        events = read * part_read(names, end["scans"], size)
    else:  # bids are read once more where another column is their time
        twice = SHARES["bid"] * size.events if len(names) > 1 and "q12" in names else 0
        events = end["events"] * read / (read + twice)
    return Cell(query, engine, events / found.seconds, events / read, found.cpu / max(1, events) * 1e6, found.peak_mb)


def part_read(names: Sequence[str], scans: Mapping[str, int], size: Sample) -> float:
    """What part of its events had been read for a query, the mean of the queries; `scans`: events of each table.

    An engine that reads tables side by side may be at the end of one that a single query reads, and hardly have begun
    one that all others wait for.
    """
    parts = []
    for name in names:
        texts = " ".join(QUERIES[name].pond.values())
        tables = [table for table in scans if re.search(rf"STREAM {table}\b", texts)]
        parts.append(min(scans[table] / (SHARES[table.partition("_")[0]] * size.events) for table in tables))
    return sum(parts) / len(parts)


SHARES: Mapping[str, float] = {"person": 0.02, "auction": 0.06, "bid": 0.92}


def kinds(names: Sequence[str]) -> set[str]:
    """The kinds of events that some queries read."""
    texts = " ".join(text for name in names for text in QUERIES[name].pond.values())
    return {kind for kind in SCHEMAS if f"STREAM {kind}" in texts}


def _line(cell: Cell) -> str:
    return (
        f"{cell.query:4} {cell.engine:9} {cell.events_s / 1e3:9.1f} k events/s  {cell.share:6.1%} of the sample"
        f"  {cell.cpu_us:7.1f} us CPU/event  {cell.peak_mb:6.0f} MB"
    )


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a row per query."""
    lines = [
        "| query | Millpond, events/s | Flink, events/s | ratio | CPU µs/event | | peak MB | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by = {(cell.query, cell.engine): cell for cell in cells}
    for query in dict.fromkeys(cell.query for cell in cells):
        ours, theirs = by.get((query, "millpond")), by.get((query, "flink"))
        ratio = f"{ours.events_s / theirs.events_s:.2f}" if ours and theirs else ""
        pairs = [
            [form.format(value(cell)) if cell else "" for cell in (ours, theirs)]
            for form, value in (
                ("{:,.0f} k", lambda cell: cell.events_s / 1e3),
                ("{:.1f}", lambda cell: cell.cpu_us),
                ("{:,.0f}", lambda cell: cell.peak_mb),
            )
        ]
        lines.append("| " + " | ".join([query, *pairs[0], ratio, *pairs[1], *pairs[2]]) + " |")
    return "\n".join(lines)


def figures(cells: Sequence[Cell]) -> dict[str, float]:
    """Ratios, and events/s of each cell."""
    rates = {(cell.query, cell.engine): cell.events_s for cell in cells}
    found = {
        f"vs_flink_{query}": round(rate / rates[query, "flink"], 3)
        for (query, engine), rate in rates.items()
        if engine == "millpond" and (query, "flink") in rates
    }
    return found | {f"{engine}_{query}_events_s": round(rate) for (query, engine), rate in rates.items()}


if __name__ == "__main__":
    main()
