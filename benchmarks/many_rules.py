"""What an epoch of many rules costs, step by step, in one thread without Spark: 1,000 to 6,000 rules, the same events.

    python benchmarks/many_rules.py [--small] [--counts 1000,6000] [--files 4] [--profile]

The rules are those of `peers/rules.py`: a tumbling minute per customer, each with a threshold and a country, a kind or
a card of its own. Each count runs in a process of its own: two source partitions, two instances, an epoch per file of
the canonical transactions. `gather`, `fold`: seconds of CPU of an epoch, all tasks together, with packets written and
read; `driver`: the rest of it. `--small` takes epochs of 20,000 events, `--profile` prints where the time went.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow.parquet as pq
from results import FOLDER, keep
from workload import LARGE, Size, transactions

from kit.simulator.changing_pond import ChangingPond
from millpond.log.manifest import Manifest
from millpond.log.records import Entry, EpochRecord
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.testing import local_pond

COUNTS = (1_000, 2_000, 4_000, 6_000)
TRICKLE = Size(160_000, 8, 100_000)
MINUTE_US = 60_000_000
FIELDS = (
    Field("ts", "timestamp"), Field("customer", "string"), Field("card", "string"), Field("country", "string"),
    Field("kind", "string"), Field("amount", "double"),
)  # fmt: skip
VALUES = (
    *(("country", name) for name in ("gr", "de", "fr", "es")),
    *(("kind", name) for name in ("pos", "web", "atm", "transfer")),
    *(("card", name) for name in ("visa", "mc", "amex")),
)


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="What an epoch of many rules costs.")
    parser.add_argument("--counts", type=lambda text: tuple(map(int, text.split(","))), default=COUNTS)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="epochs of 20,000 events")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--alone", action="store_true", help="one count, in this process")
    options = parser.parse_args(argv)
    if options.alone:
        found = measured(options.counts[0], TRICKLE if options.small else LARGE, options.files, options.profile)
        print(json.dumps(found))
        return found
    figures: dict[str, float] = {}
    flags = [f"--{name}" for name in ("small", "profile") if getattr(options, name)]
    passed_on = ["--files", str(options.files), *flags]
    for count in options.counts:
        program = [sys.executable, __file__, "--alone", "--counts", str(count), *passed_on]
        lines = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        print(*lines[:-1], sep="\n", end="\n" if lines[1:] else "")
        one = json.loads(lines[-1])
        print(f"{count:>6} rules: " + ", ".join(f"{name} {value:,.3f}" for name, value in one.items()), flush=True)
        figures |= {f"rules_{count}_{name}": value for name, value in one.items()}
    if not options.profile:
        keep("many_rules_small" if options.small else "many_rules", figures, results)
    return figures


def rules(count: int) -> list[Query]:
    """`count` queries with conditions that are all different."""
    return [
        _rule(f"rule{number:05}", round(20 + 400 * number / count, 4), *VALUES[number % len(VALUES)])
        for number in range(count)
    ]


def _rule(name: str, limit: float, column: str, value: str) -> Query:
    amount = Column("amount", "double")
    above = call("gt", (amount, literal(limit, "double")), "boolean")
    equal = call("eq", (Column(column, "string"), literal(value, "string")), "boolean")
    aggregates = Aggregate("count", None, None, "bigint"), Aggregate("sum", amount, None, "double")
    output = (
        Named("window", Column("window", WINDOW)), Named("customer", Column("key:0", "string")),
        Named("n", Column("agg:0", "bigint")), Named("s", Column("agg:1", "double")),
    )  # fmt: skip
    where: Expression | None = conjunction([above, equal])
    return Query(
        name, "s", "ts", 0, Sliding(MINUTE_US, MINUTE_US), (Column("customer", "string"),), aggregates, output, where,
        None, Sink("noop"),
    )  # fmt: skip


class _Clock:
    """Seconds that were spent in each step."""

    def __init__(self) -> None:
        self.gather = self.fold = 0.0

    def watch(self) -> None:
        """Watch the gather and the fold of ponds without Spark from now on."""
        gathering, folding = local_pond.gather, local_pond.fold

        def gathered(*given: Any) -> Iterator[Any]:
            began = process_time()
            found = list(gathering(*given))
            self.gather += process_time() - began
            return iter(found)

        def folded(*given: Any) -> Any:
            began = process_time()
            found = folding(*given)
            self.fold += process_time() - began
            return found

        watched: dict[str, Callable[..., Any]] = {"gather": gathered, "fold": folded}
        for name, step in watched.items():
            setattr(local_pond, name, step)


def measured(count: int, size: Size, files: int, profile: bool) -> dict[str, float]:
    """Medians over epochs, the first left out."""
    parts = sorted(transactions(size).glob("*.parquet"))[:files]
    watched, clock = cProfile.Profile(), _Clock()
    with tempfile.TemporaryDirectory(prefix="millpond-rules-") as scratch:
        began = process_time()
        pond = ChangingPond(Path(scratch), [Stream("s", FIELDS)], rules(count), instances=2)
        seconds: dict[str, list[float]] = {"plan_s": [process_time() - began]}
        clock.watch()
        newest = _Newest()
        pond.follow(newest)
        for number, path in enumerate(parts):
            table = pq.read_table(path, columns=[field.name for field in FIELDS])
            half = len(table) // 2
            clock.gather = clock.fold = 0.0
            began = process_time()
            if profile and number:
                watched.enable()
            pond.epoch({"s": [table.slice(0, half), table.slice(half)]})
            watched.disable()
            took = process_time() - began
            if number:
                one = {"epoch_s": took, "gather_s": clock.gather, "fold_s": clock.fold}
                one["driver_s"] = took - clock.gather - clock.fold
                for name, value in (one | newest.sizes).items():
                    seconds.setdefault(name, []).append(float(value))
    if profile:
        pstats.Stats(watched).sort_stats("tottime").print_stats(30)
    found = {name: statistics.median(values) for name, values in seconds.items()}
    return found | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


class _Newest:
    """A follower that keeps the rows of the newest record."""

    name = "newest"

    def __init__(self) -> None:
        self.sizes: dict[str, float] = {}
        self._cursor = -1

    def cursor(self) -> int:
        """See `Follower.cursor`."""
        return self._cursor

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`."""
        self._cursor = n
        if isinstance(record.record, EpochRecord):
            counts = record.record.counts
            rows = sum(found.get("rows", 0) for found in counts.values())
            state = sum(section.size for section in manifest.sections.values() if section.kind == "segment")
            self.sizes = {"packets_mb": counts["*"].get("bytes_moved", 0) / 1e6, "rows": rows, "state_mb": state / 1e6}


if __name__ == "__main__":
    main()
