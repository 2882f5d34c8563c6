"""Linear Road's operators over arrays and stores emit what a naive reader of the specification computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

import numpy as np
import pytest
from alignment import flow, in_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import BUCKETS, Cell, Instance
from linear_road import EXIT, FEET, SEGMENTS, Columns, Size, Traffic, road_of, toll

from millpond.state.backends.memory import MemoryStore

Report = dict[str, int]


class Naive:
    """Remembers every report, by minute and road and by vehicle, and looks through them."""

    def __init__(self) -> None:
        self._in: dict[tuple[int, int], list[Report]] = defaultdict(list)
        self._of: dict[int, list[Report]] = defaultdict(list)
        self._pending: dict[int, int] = {}
        self.balances: dict[int, int] = defaultdict(int)
        self.tolls: list[tuple[int, int]] = []

    def take(self, reports: Iterable[Report]) -> None:
        batch = list(reports)
        for report in batch:
            self._in[report["minute"], report["road"]].append(report)
        for report in batch:
            vid, before = report["vid"], self._of[report["vid"]][-1:]
            self._of[vid].append(report)
            entered = not before or before[0]["road"] != report["road"]
            if entered:
                self.balances[vid] += self._pending.get(vid, 0)
            if entered or report["lane"] == EXIT:
                self._pending[vid] = 0 if report["lane"] == EXIT else self._toll(report["road"], report["minute"])
                self.tolls.append((vid, self._pending[vid]))

    def _toll(self, road: int, minute: int) -> int:
        speeds = [self._speed(road, m) for m in range(minute - 5, minute)]
        known = [speed for speed in speeds if speed is not None]
        cars = len({report["vid"] for report in self._in[minute - 1, road]})
        if cars <= 50 or fmean(known) >= 40 or self._accident_ahead(road, minute):
            return 0
        return 2 * (cars - 50) ** 2

    def _speed(self, road: int, minute: int) -> float | None:
        of: dict[int, list[int]] = defaultdict(list)
        for report in self._in[minute, road]:
            of[report["vid"]].append(report["speed"])
        return fmean(map(fmean, of.values())) if of else None

    def _accident_ahead(self, road: int, minute: int) -> bool:
        """Two vehicles whose last four reports before the minute are of one place, in five segments from here on."""
        stopped: dict[tuple[int, ...], int] = defaultdict(int)
        for reports in self._of.values():
            last = [report for report in reports if report["minute"] < minute][-4:]
            places = {(report["road"], report["lane"], report["position"]) for report in last}
            if len(last) == 4 and len(places) == 1:
                stopped[places.pop()] += 1
        step = 1 if road // SEGMENTS % 2 == 0 else -1
        ahead = [road + step * i for i in range(5) if (road + step * i) // SEGMENTS == road // SEGMENTS]
        return any(count >= 2 and place[0] in ahead for place, count in stopped.items())


def rows(batch: Columns) -> list[Report]:
    return [dict(zip(batch, map(int, row), strict=True)) for row in zip(*batch.values(), strict=True)]


def compare(reports: list[Columns], at_once: int | None = None) -> list[int]:
    """The tolls above zero; they, and all balances, are those of the twin."""
    naive = Naive()
    for batch in reports:
        naive.take(rows(batch))
    vids = np.unique(np.concatenate([batch["vid"] for batch in reports]))
    none = np.zeros(len(vids), np.int64)
    requests = {"vid": vids, "charges": none > 0, "toll": none, "request": none == 0}
    nobody = {name: column[:0] for name, column in requests.items()}
    inputs = [(batch, requests if batch is reports[-1] else nobody) for batch in reports]
    seen: dict[str, list[Columns]] = defaultdict(list)
    instance = Instance(MemoryStore(), 0, Cell((0,) * BUCKETS, at_once, 0.0))

    def perform(operator, batches):
        results = [instance.run(operator, batch) if batch else {} for batch in batches]
        for one in results:
            for name in one:
                seen[name].append(one[name])
        return results

    flow(inputs, perform)
    results = [(int(v), int(t)) for part in seen["tolls"] for v, t in zip(part["vid"], part["toll"], strict=True)]
    assert sorted(results) == sorted(naive.tolls)
    balances = {int(v): int(b) for part in seen["balances"] for v, b in zip(part["vid"], part["balance"], strict=True)}
    assert balances == {int(vid): naive.balances[int(vid)] for vid in vids}
    return [amount for _, amount in results if amount]


def report(vid: int, minute: int, segment: int, speed: int = 20, lane: int = 1, feet: int | None = None) -> Report:
    position = segment * FEET + vid if feet is None else segment * FEET + feet
    road = int(road_of(np.int64(0), np.int64(0), np.int64(segment)))
    return {"vid": vid, "minute": minute, "speed": speed, "lane": lane, "position": position, "road": road}


def columns(reports: list[Report]) -> Columns:
    return {name: np.array([one[name] for one in reports], np.int64) for name in reports[0]}


def test_a_toll_is_due_in_a_dense_and_slow_segment_only() -> None:
    cars, lav, accident = np.array([50, 51, 60, 60, 60]), np.array([9, 9, 39.9, 40, 9]), np.array([0, 0, 0, 0, 1], bool)
    assert toll(cars, lav, accident).tolist() == [0, 2, 200, 0, 0]


@pytest.mark.parametrize(("vehicles", "speed", "due"), [(50, 20, 0), (51, 20, 2), (60, 39, 200), (60, 40, 0)])
def test_a_vehicle_that_enters_gets_the_toll_of_the_previous_minute(vehicles: int, speed: int, due: int) -> None:
    first = [report(vid, 1, 7, speed) for vid in range(vehicles)]
    second = [report(1000, 2, 7, speed)]
    assert compare([columns(first), columns(second)]) == [due] * (due > 0)


@pytest.mark.parametrize(("segment", "stopped", "repeats", "spared"), [
    (7, 2, 4, True), (11, 2, 4, True), (12, 2, 4, False), (6, 2, 4, False), (11, 1, 4, False), (11, 2, 3, False),
])  # fmt: skip
def test_an_accident_in_the_five_segments_ahead_spares_the_toll(
    segment: int, stopped: int, repeats: int, spared: bool
) -> None:
    batches = []
    for number in range(6):
        minute = number // 2 + 1
        still = [report(500 + i, minute, segment, 0, 2, 99) for i in range(stopped)] if number < repeats else []
        slow = [report(vid, minute, 7) for vid in range(60)] if number in (2, 3) else []
        entering = [report(1000, 3, 7)] if number == 4 else []
        batches.append(columns([*still, *slow, *entering, report(2000 + number, minute, 90)]))
    assert bool(compare(batches)) != spared


def test_a_vehicle_that_exits_is_charged_no_toll() -> None:
    dense = [report(vid, 1, 7) for vid in range(60)]
    enter = [report(1000, 2, 7), report(1001, 2, 7)]
    onward = [report(1000, 2, 8), report(1001, 2, 7, lane=EXIT)]
    gone = [report(1001, 3, 9)]
    assert len(compare([columns(part) for part in (dense, enter, onward, gone)])) == 2


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([None, 1, 7]))
def test_traffic_gives_the_twin_s_tolls_and_balances(seed: int, at_once: int | None) -> None:
    traffic = Traffic(Size(1, 40 if at_once else 900, 10), seed)
    tolls = compare([reports for reports, _ in traffic.batches()], at_once)
    assert at_once or tolls


def test_the_traffic_of_the_benchmark_has_tolls_accidents_and_exits() -> None:
    inputs = list(Traffic(Size(1, 1000, 12)).batches())
    assert compare([reports for reports, _ in inputs])
    assert any((reports["lane"] == EXIT).any() for reports, _ in inputs)
    assert any((reports["speed"] == 0).any() for reports, _ in inputs)
    assert in_memory(inputs).toll_sum > 0
