"""Changes of queries while a pond works, beside stopping and restarting plain Structured Streaming; a steady load.

`--small` has little state. A pond with a row of state for each customer and hour, one small query that is changed, and
four others, gets small files at a fixed pace. Each kind of change is made a few times, with a quiet time before each.
The last line is one JSON object, kept in `results/` with a timeline. `effective_s_max`: from a change's acceptance
(analysed, checked, waiting for the epoch at hand) to the begin of the first epoch that is answered by it; the largest
median of a kind. `p99_ratio_max`: p99 of the seconds of epochs after a change over that of quiet epochs, the largest of
any kind (all its changes, with twenty seconds after each: a whole round of most windows); `p99_ratio_all`: of all
kinds together; `p99_ratio_max_chance`, `others_p99_ratio_max_chance`: what taking the largest of a dozen small samples
makes of nothing: nineteen times out of twenty the largest ratio is below that when after each change there is a quiet
time, drawn at random from all of them (`p99_ratio_max_even`, …: every second time). An epoch of fewer instances takes
longer, quiet or not, so each is compared with quiet ones of as many as it has. After `scale` all epochs count until the
last of its state has moved and is merged, a hundred times as many as other changes have; most of the keys are on one
instance in half of them, so all are compared with quiet ones of that number which takes longer.
`others_p99_ratio_max`, `others_p99_ratio_all`: the same of the time from a file's arrival until it is in the answers
of the queries that are not changed. `vs_restart_min`: how much longer
plain Spark's query with state is interrupted by stopping it and starting it from its checkpoint (for `scale`: with its
state repartitioned in between) than the pond by a change, the least of any kind; of each the median time between two
commits around it, less a quiet one, but at least 5 ms. To change a query of plain Spark its application is stopped and
the changed one is started (`restart_s`, `live_plain.py`); `restart_in_session_s`, `vs_in_session_min`: within the same
application, whose code is then the old one, and which still has the state in memory. Plain Spark has `plain_state_mb`
of state in memory, the pond `state_mb` on disk. Only seconds in which the machine had its CPUs count (`own_time.py`),
`stolen` is the other part of the pond's time.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from live_load import PATIENCE, SCHEMA, SPARE, Arrivals, Arrived, Load, Size
from live_plain import CORES
from live_restarts import LEAST_S, compared, restarts
from own_time import OwnTime
from picture import timeline
from pyspark.sql import SparkSession
from results import FOLDER, keep

from millpond import Pond, spark_session
from millpond.gc_freeze import freeze_loaded_objects
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Stream
from millpond.placement.moves import buckets_moving
from millpond.spark.driver.epochs import Epoch

PATIENCE_S = 60.0
LITTLE = 2_000_000
"""Bytes that an epoch writes at most in which no state is merged that came or moved in large amounts."""

HALF = "0-511"
"""Buckets whose served rows move to another store and back."""

STATE = ("segment", "keys", "events", "tallies")

FIGURES = "effective_s", "p99_ratio", "others_p99_ratio"
"""The measurements of a kind of change."""

LONGER = 8
"""How much longer it is quiet while there are fewer instances, which is rare."""

DRAWS = 1000
"""So often quiet times are drawn at random."""

SCALED = 3
"""In one of this many turns the number of instances changes: half of the state moves, and back."""


LARGE = Size(Load(1_000_000, 5_000, 0.4), 1800.0, 8.0, 20.0, 6, 6, 3, (5, 10, 20, 30), 40)
"""It leaves half of the time of two cores, as a pond's own policy asks for (`placement.autoscale_policy`): where none
is left, what files wait for tells how fast the machine is, and little of what is changed.
"""

SMALL = Size(Load(2_000, 200, 0.25), 0.02, 0.3, 0.3, 1, 1, 1, (5,), 1, epochs=1, batches=2)


class Made(NamedTuple):
    """A change: its kind, when it was requested, when it was accepted, its record, until when it counts."""

    kind: str
    began: float
    accepted: float
    n: int
    until: float


class Done(NamedTuple):
    """A committed epoch: record, when it began and was committed, its events so far, bytes moved and written, on how
    many instances.
    """

    n: int
    began: float
    ended: float
    events: int
    moved: int
    written: int
    instances: int = CORES

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Seen(NamedTuple):
    """All that was measured of the pond, in seconds of its own; `quiet` are the times in which nothing was changed."""

    epochs: list[Done]
    arrived: list[Arrived]
    made: list[Made]
    quiet: list[tuple[float, float]]
    state_mb: float
    stolen: float = 0.0


def main(size: Size = LARGE, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{CORES}]", driver_memory="4g")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        seen = _Changing(spark, work, size).run()
        figures, broken = figures_of(seen)
        _draw(seen, results / "live_change.svg")
        shutil.rmtree(work / "pond")
        restarted, plain_mb = restarts(spark, work, size)
    figures |= {"state_mb": seen.state_mb, "plain_state_mb": plain_mb, "stolen": seen.stolen}
    figures |= {**restarted, **compared(broken, restarted)}
    keep("live_change", {name: round(value, 3) for name, value in figures.items()}, results)
    return figures


class _Changing:
    """The pond, its load, and the one who changes it."""

    def __init__(self, spark: SparkSession, work: Path, size: Size) -> None:
        self._size, self._epochs, self._failed = size, list[Done](), list[BaseException]()
        self._time = OwnTime()
        self._made, self._quiet = list[Made](), list[tuple[float, float]]()
        self._load = Arrivals(work / "source", size.load, self._time.now)
        self._second = f"lmdb:{work / 'second.lmdb'}"
        self._pond = Pond(spark, work / "pond", instances=CORES, on_epoch=self._committed)
        fields = tuple(Field(*part.split()) for part in SCHEMA.split(", "))
        self._pond.stream(Stream("buys", fields, Source("parquet", (("path", str(self._load.folder)),))))
        self._pond.param("least", 1.0)
        self._pond.add("hourly", _sql("customer", "1 hour", "max(amount) AS most", delay=PATIENCE), sink=Sink("noop"))
        self._pond.add("spend", _spend(), sink=Sink("noop"))
        for seconds in size.others:
            text, served = _sql("country", f"{seconds} seconds"), seconds == size.others[0]
            self._pond.add(f"country{seconds}", text, sink=Sink("noop"), serve=served)
        self._pond.open()
        self._driver: Any = self._pond._lifetime.opened.driver

    def run(self) -> Seen:
        """Fill the state, then change queries under load."""
        self._pond.run()
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        self._pond.run(once=False)
        thread.join()
        if self._failed:
            raise self._failed[0]
        state = self._state_mb()
        self._pond.close()
        self._time.end()
        of = self._time.of
        return Seen(
            [one._replace(began=of(one.began), ended=of(one.ended)) for one in self._epochs],
            [one._replace(at=of(one.at)) for one in self._load.arrived],
            [one._replace(began=of(one.began), accepted=of(one.accepted), until=of(one.until)) for one in self._made],
            [(of(a), of(b)) for a, b in self._quiet],
            state,
            self._time.stolen,
        )

    def _work(self) -> None:
        try:
            self._fill()
            self._load.begin()
            self._settle()
            freeze_loaded_objects()  # as a served pond has done long before
            self._step("warm", lambda: self._pond.param("least", 1.5))
            self._made.clear(), self._quiet.clear()
            for turn in range(self._size.times):
                self._every_kind(turn)
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._load.end()
            self._pond.stop()

    def _fill(self) -> None:
        while self._state_mb() < self._size.state_mb:
            wanted = self._load.hour()
            while not self._epochs or self._epochs[-1].events < wanted:
                sleep(0.02)
        print(f"state  {self._state_mb():,.1f} MB", flush=True)

    def _settle(self) -> float:
        """Wait until what a lot of state that came or moved has left to merge is merged; returns when it was."""
        patience, count = perf_counter() + 3 * PATIENCE_S, self._size.settled
        while perf_counter() < patience:
            if len(self._epochs) >= count and max(one.written for one in self._epochs[-count:]) < LITTLE:
                break
            sleep(0.1)
        return perf_counter()

    def _every_kind(self, turn: int) -> None:
        pond, noop = self._pond, Sink("noop")
        steps: list[tuple[str, Callable[[], object]]] = [
            ("add", lambda: pond.add("more", _sql("customer", "30 seconds", "min(amount) AS m"), sink=noop)),
            ("drop", lambda: pond.drop("more")),
            ("add, new column", lambda: pond.add("wide", _sql("country", "30 seconds", _spare(turn)), sink=noop)),
            ("param", lambda: pond.param("least", 2.0 + turn)),
            ("alter threshold", lambda: pond.alter("spend", _spend(least=f"{5 + turn}"))),
            ("alter window", lambda: pond.alter("spend", _spend("20 seconds" if turn % 2 else "15 seconds"))),
            ("shadow", lambda: pond.shadow("spend", _spend(least=f"{10 + turn}"))),
            ("promote", lambda: pond.promote("spend")),
            ("discard", lambda: pond.discard("spend")),
            ("pause", lambda: pond.pause("spend")),
            ("resume", lambda: pond.resume("spend")),
            *self._scaled(turn),
            ("move", lambda: pond.move(HALF, self._second)),
            ("move", lambda: pond.move(HALF, "own")),
        ]
        for kind, call in steps:
            self._step(kind, call)
        pond.drop("wide")

    def _scaled(self, turn: int) -> list[tuple[str, Callable[[], object]]]:
        if turn % SCALED:
            return []
        scale = self._pond.scale
        return [  # more instances than cores would take turns in any epoch
            ("scale", lambda: scale(CORES - 1)), ("scale", lambda: scale(CORES))
        ]  # fmt: skip

    def _step(self, kind: str, call: Callable[[], object]) -> None:
        fewer = self._epochs[-1].instances < CORES
        self._quiet.append((perf_counter(), self._rested((LONGER if fewer else 1) * self._size.before_s)))
        began, accepted = perf_counter(), list[float]()
        ask = self._driver.request

        def note(make: object) -> object:
            accepted.append(perf_counter())
            return ask(make)

        self._driver.request = note
        try:
            call()
        finally:
            self._driver.request = ask
        n = self._pond.history()[0].n
        until = self._rested(self._size.after_s)
        while self._moves():
            until = self._rested(self._size.after_s)
        if kind == "scale":
            until = self._settle()
        self._made.append(Made(kind, began, accepted[0], n, until))
        print(f"{kind}: record {n}, {len(self._epochs)} epochs", flush=True)

    def _rested(self, seconds: float) -> float:
        """Wait for a number of seconds, and for the least number of complete epochs."""
        began = perf_counter()
        sleep(seconds)
        least, patience = self._size.epochs, began + PATIENCE_S
        while sum(one.began >= began for one in self._epochs[-9:]) < least and perf_counter() < patience:
            sleep(0.02)
        return perf_counter()

    def _moves(self) -> bool:
        spec, manifest = self._pond._lifetime.opened.spec, self._pond.manifest()
        return spec is not None and buckets_moving(spec, manifest) > 0

    def _state_mb(self) -> float:
        return sum(one.size for one in self._pond.manifest().sections.values() if one.kind in STATE) / 1e6

    def _committed(self, epoch: Epoch) -> None:
        now, whole = perf_counter(), epoch.record.counts["*"]
        so_far = self._epochs[-1].events if self._epochs else 0
        written = sum(section.size for receipt in epoch.record.receipts for section in receipt.sections)
        moved, events = whole.get("bytes_moved", 0), so_far + whole.get("events", 0)
        instances = len({receipt.instance for receipt in epoch.record.receipts})
        self._epochs.append(Done(epoch.record.n, now - epoch.seconds, now, events, moved, written, instances))


def _sql(key: str, window: str, more: str = "count(*) AS n2", delay: str = "1 second", where: str = "") -> str:
    number, unit = delay.split()
    return f"""
        SELECT {key}, window(ts, '{window}') AS w, count(*) AS n, sum(amount) AS total, {more}
        FROM STREAM buys WATERMARK ts DELAY OF INTERVAL {number} {unit} {where} GROUP BY ALL
    """


def _spend(window: str = "10 seconds", least: str = ":least") -> str:
    return _sql("customer", window, where=f"WHERE amount > CAST({least} AS DOUBLE)")


def _spare(turn: int) -> str:
    return f"sum(spare{turn % SPARE}) AS s"


def figures_of(seen: Seen) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of the pond, printed as a table by kind, and by how many seconds each kind interrupts it."""
    quiet = _within(seen, seen.quiet)
    gaps = {one.n: one.ended - before.ended for before, one in zip(seen.epochs, seen.epochs[1:], strict=False)}
    usual_gap = median(gaps[one.n] for one in quiet if one.n in gaps)
    usual_moved, usual_written = median(one.moved for one in quiet), median(one.written for one in quiet)
    usual = {count: _usual(seen, count) for count in sorted({one.instances for one in quiet}, reverse=True)}
    usual_s = usual[max(usual)][0]
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    broken: dict[str, float] = {}
    every: tuple[list[float], list[float]] = [], []
    print(f"between commits {usual_gap:.3f} s\n{'kind':16} effective s  call s  epoch p99 s  ratio"
          "  others' ratio  interrupted s  moved kB  written kB")  # fmt: skip
    for kind in dict.fromkeys(one.kind for one in seen.made):
        mine = [one for one in seen.made if one.kind == kind]
        first = [next(epoch for epoch in seen.epochs if epoch.n > one.n) for one in mine]
        effective = median(max(epoch.began - one.accepted, 0.0) for epoch, one in zip(first, mine, strict=True))
        call = median(one.accepted - one.began for one in mine)
        spans = [(one.accepted, one.until) for one in mine]
        during = [one for one in seen.epochs if any(a <= one.ended <= b for a, b in spans)]
        like = _slowest(usual) if kind == "scale" else usual
        after = [one.seconds / like[one.instances][0] for one in during]
        files = _waits(seen, [(one.began, one.until) for one in mine])
        waits = [wait / like[epoch.instances][1] for wait, epoch in files]
        every[0].extend(after), every[1].extend(waits)
        broken[kind] = max(LEAST_S, median(gaps[epoch.n] for epoch in first) - usual_gap)
        ratios = _p99(after), _p99(waits)
        for values, value in zip(figures.values(), (effective, *ratios), strict=True):
            values.append(value)
        moved, written = (median(getattr(one, name) for one in first) for name in ("moved", "written"))
        print(f"{kind:16} {effective:11.3f} {call:7.3f} {ratios[0] * usual_s:12.3f} {ratios[0]:6.2f} "
              f"{ratios[1]:14.2f} {broken[kind]:14.3f} {max(0, moved - usual_moved) / 1e3:9,.1f} "
              f"{max(0, written - usual_written) / 1e3:11,.1f}")  # fmt: skip
    (even, others_even), (chance, others_chance) = _by_chance(seen, usual)
    return {
        "effective_s_max": max(figures["effective_s"]), "p99_ratio_max": max(figures["p99_ratio"]),
        "p99_ratio_all": _p99(every[0]), "p99_ratio_max_chance": chance,
        "others_p99_ratio_max": max(figures["others_p99_ratio"]), "others_p99_ratio_all": _p99(every[1]),
        "others_p99_ratio_max_chance": others_chance, "p99_ratio_max_even": even,
        "others_p99_ratio_max_even": others_even,
    }, broken  # fmt: skip


def _by_chance(seen: Seen, usual: dict[int, tuple[float, float]]) -> list[list[float]]:
    """The largest ratios of epochs and of waits, if after each change but `scale` there were quiet times as long: what
    half of the draws of these are below, and what 95 of 100 are.
    """
    times, seconds = list[tuple[list[float], list[float]]](), list[float]()
    for span in seen.quiet:
        epochs, waits = _within(seen, [span]), _waits(seen, [span])
        if waits and {one.instances for one in epochs} == {CORES}:
            seconds.append(span[1] - span[0])
            times.append(
                ([one.seconds / usual[CORES][0] for one in epochs], [wait / usual[CORES][1] for wait, _ in waits])
            )
    lasted = defaultdict[str, float](float)
    for one in seen.made:
        lasted[one.kind] += one.until - one.accepted
    counts = [max(1, round(whole / np.mean(seconds))) for kind, whole in lasted.items() if kind != "scale"]
    dice, largest = np.random.default_rng(1), list[list[float]]()
    for _ in range(DRAWS):
        kinds = [[times[i] for i in dice.integers(0, len(times), count)] for count in counts]
        largest.append([max(_p99(chain(*(one[which] for one in drawn))) for drawn in kinds) for which in (0, 1)])
    found: list[list[float]] = np.percentile(largest, (50, 95), axis=0).tolist()
    return found


def _slowest(usual: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """For each number of instances what takes longest with any."""
    return dict.fromkeys(usual, (max(s for s, _ in usual.values()), max(wait for _, wait in usual.values())))


def _usual(seen: Seen, instances: int) -> tuple[float, float]:
    """p99 of the seconds of quiet epochs with a number of instances, and of the waits of files for them."""
    seconds = [one.seconds for one in _within(seen, seen.quiet) if one.instances == instances]
    waits = [wait for wait, epoch in _waits(seen, seen.quiet) if epoch.instances == instances]
    print(f"quiet, instances {instances}: {len(seconds)} epochs, p50 {median(seconds):.3f} s, p99 "
          f"{_p99(seconds):.3f} s, a file waits {_p99(waits):.3f} s (p99)")  # fmt: skip
    return _p99(seconds), _p99(waits)


def _within(seen: Seen, spans: Sequence[tuple[float, float]]) -> list[Done]:
    """The epochs that lie in one of the spans."""
    return [one for one in seen.epochs if any(a <= one.began and one.ended <= b for a, b in spans)]


def _waits(seen: Seen, spans: Sequence[tuple[float, float]]) -> list[tuple[float, Done]]:
    """Seconds from a file's arrival in one of the spans until the commit of the epoch that read it, and that epoch."""
    events, waits = [one.events for one in seen.epochs], []
    for file in seen.arrived:
        if any(a <= file.at <= b for a, b in spans):
            place = int(np.searchsorted(events, file.events))
            if place < len(events):
                waits.append((seen.epochs[place].ended - file.at, seen.epochs[place]))
    return waits


def _p99(values: Iterable[float]) -> float:
    return float(np.percentile(list(values), 99))


def _draw(seen: Seen, path: Path) -> None:
    began = seen.quiet[0][0]
    points = [(one.ended - began, one.seconds) for one in seen.epochs if one.began >= began]
    marks = [(one.accepted - began, one.kind) for one in seen.made]
    timeline(path, "Seconds of each epoch while queries change", points, marks)


if __name__ == "__main__":
    if "--small" in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as nowhere:
            main(SMALL, Path(nowhere))
    else:
        main()
