"""Linear Road's toll operator over arrays: position reports, statistics of segments, accidents, tolls, accounts.

Semantics of the Linear Road specification (Arasu et al., VLDB 2004); minute m has the seconds 60 (m - 1) … 60 m - 1:
  * a vehicle reports every 30 s; it is *stopped* after 4 reports of one place (expressway, lane, direction, position);
  * two vehicles stopped at one place are an *accident* until one of them reports another place;
  * the speed of a segment in a minute is the mean over its vehicles of the mean of their reports; LAV of minute m is
    the mean of that over the minutes m - 5 … m - 1 that have any;
  * a vehicle that enters a segment in minute m, not by the exit lane, gets the toll 2 (cars - 50)², `cars` being the
    vehicles of minute m - 1, if LAV < 40 and cars > 50 and there was no accident at the end of minute m - 1 in the
    segment or the next four downstream; else the toll is 0;
  * it is charged when it goes on to another segment, not when it leaves by the exit lane.

Four operators follow one another; none feeds an earlier one. Each has one table in a store, its rows of fixed size.
Messages are columns of equal length; a batch has the reports of 30 s, so each vehicle at most once, all of one minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
Rows: TypeAlias = npt.NDArray[np.void]
Ints: TypeAlias = npt.NDArray[np.int64]

INTERVAL = 30
SEGMENTS, FEET = 100, 5280
LANES, EXIT = 5, 4
STOPPED = 4
AHEAD = 5
MINUTES = 6
"""Kept of a segment: the present one and the five before it."""

VEHICLE = np.dtype([("place", "<i8"), ("road", "<i4"), ("minute", "<i4"), ("speeds", "<i4"), ("reports", "<i2"),
                    ("same", "<i2")])  # fmt: skip
PLACE = np.dtype([("stopped", "<i4")])
SEGMENT = np.dtype([("minutes", "<i4", MINUTES), ("speeds", "<f8", MINUTES), ("cars", "<i4", MINUTES),
                    ("accidents_minute", "<i4"), ("accidents_before", "<i4"), ("accidents", "<i4")])  # fmt: skip
ACCOUNT = np.dtype([("balance", "<i8"), ("pending", "<i8")])


class Size(NamedTuple):
    """Expressways, vehicles on each at any time, batches of 30 seconds."""

    xways: int
    vehicles: int
    batches: int


class Operator(NamedTuple):
    """A table of `row`s by the column `key` of the messages.

    `step(rows, at, messages)` changes `rows` in place, message i being of `rows[at[i]]`, and returns messages by the
    name of the operator that takes them.
    """

    name: str
    key: str
    row: np.dtype[Any]
    step: Callable[[Rows, Ints, Columns], dict[str, Columns]]


def road_of(xway: Ints, direction: Ints, segment: Ints) -> Ints:
    """The number of a segment of one direction of an expressway."""
    return (xway * 2 + direction) * SEGMENTS + segment


def toll(cars: Ints, lav: npt.NDArray[np.float64], accident: npt.NDArray[np.bool_]) -> Ints:
    """The toll of segments.

    >>> toll(np.array([50, 51, 60, 60, 60]), np.array([9, 9, 39.9, 40, 9]), np.array([0, 0, 0, 0, 1], bool)).tolist()
    [0, 2, 200, 0, 0]
    """
    return np.where((lav < 40) & (cars > 50) & ~accident, 2 * (cars - 50) ** 2, 0)


def vehicles(rows: Rows, at: Ints, reports: Columns) -> dict[str, Columns]:
    """Position reports, each vehicle once: who stops and moves on, what a segment's statistics change by."""
    old, road, speed = rows[at], reports["road"], reports["speed"]
    place = (road * LANES + reports["lane"]) * (SEGMENTS * FEET) + reports["position"]
    known = old["reports"] > 0
    moved = ~known | (old["place"] != place)
    same = np.where(moved, 1, np.minimum(old["same"], STOPPED) + 1)
    began = same == STOPPED
    ended = known & moved & (old["same"] >= STOPPED)
    entered = ~known | (old["road"] != road)
    again = ~entered & (old["minute"] == reports["minute"])
    count = np.where(again, old["reports"], 0) + 1
    speeds = np.where(again, old["speeds"], 0) + speed
    before = np.where(again, old["speeds"] / np.maximum(old["reports"], 1), 0.0)
    rows["place"][at], rows["road"][at], rows["minute"][at] = place, road, reports["minute"]
    rows["speeds"][at], rows["reports"][at], rows["same"][at] = speeds, count, same
    stops = np.concatenate([place[began], old["place"][ended]])
    changes = np.concatenate([np.ones(began.sum(), np.int64), -np.ones(ended.sum(), np.int64)])
    leaves = reports["lane"] == EXIT
    segment = {
        "road": road, "minute": reports["minute"], "speeds": speeds / count - before, "cars": (~again).astype(np.int64),
        "accidents": np.zeros(len(at), np.int64), "vid": reports["vid"], "asks": entered & ~leaves,
        "tells": entered | leaves, "charges": entered,
    }  # fmt: skip
    return {
        "places": {"place": stops, "change": changes, "minute": np.full(len(stops), _minute(reports))},
        "segments": segment,
    }


def places(rows: Rows, at: Ints, messages: Columns) -> dict[str, Columns]:
    """Stopped vehicles by position: where an accident begins or ends, reported to the segments before it."""
    before = rows["stopped"] >= 2
    np.add.at(rows["stopped"], at, messages["change"])
    change = (rows["stopped"] >= 2).astype(np.int64) - before
    place = np.zeros(len(rows), np.int64)
    place[at] = messages["place"]
    place, change = place[change != 0], change[change != 0]
    direction, segment = np.divmod(place // (SEGMENTS * FEET * LANES), SEGMENTS)
    behind = segment[:, None] + np.where(direction % 2 == 0, -1, 1)[:, None] * np.arange(AHEAD)
    inside = (behind >= 0) & (behind < SEGMENTS)
    road = (direction[:, None] * SEGMENTS + behind)[inside]
    none = np.zeros(len(road), np.int64)
    return {
        "segments": {
            "road": road, "minute": none + _minute(messages), "speeds": none.astype(float), "cars": none,
            "accidents": np.broadcast_to(change[:, None], inside.shape)[inside], "vid": none,
            "asks": none > 0, "tells": none > 0, "charges": none > 0,
        }
    }  # fmt: skip


def segments(rows: Rows, at: Ints, messages: Columns) -> dict[str, Columns]:
    """Statistics and accidents of segments, and the toll of each vehicle that enters one."""
    minute = _minute(messages)
    slot = minute % MINUTES
    fresh = rows["minutes"][:, slot] != minute
    for name in ("speeds", "cars"):
        rows[name][fresh, slot] = 0
        np.add.at(rows[name][:, slot], at, messages[name])
    rows["minutes"][:, slot] = minute
    rolled = rows["accidents_minute"] != minute
    rows["accidents_before"][rolled] = rows["accidents"][rolled]
    rows["accidents_minute"] = minute
    np.add.at(rows["accidents"], at, messages["accidents"])
    recent = (rows["minutes"] >= minute - 5) & (rows["minutes"] < minute) & (rows["cars"] > 0)
    means = np.where(recent, rows["speeds"] / np.maximum(rows["cars"], 1), 0.0)
    lav = means.sum(axis=1) / np.maximum(recent.sum(axis=1), 1)
    last = (minute - 1) % MINUTES
    cars = np.where(rows["minutes"][:, last] == minute - 1, rows["cars"][:, last], 0).astype(np.int64)
    tolls = toll(cars, lav, rows["accidents_before"] > 0)
    tells = messages["tells"]
    count = int(tells.sum())
    return {
        "accounts": {
            "vid": messages["vid"][tells], "charges": messages["charges"][tells],
            "toll": np.where(messages["asks"], tolls[at], 0)[tells], "request": np.zeros(count, bool),
        }
    }  # fmt: skip


def accounts(rows: Rows, at: Ints, messages: Columns) -> dict[str, Columns]:
    """Charges, each vehicle at most once, then requests, answered with balances after the batch's charges."""
    requested = messages["request"]
    to = at[~requested]
    rows["balance"][to] += np.where(messages["charges"][~requested], rows["pending"][to], 0)
    rows["pending"][to] = messages["toll"][~requested]
    return {
        "tolls": {"vid": messages["vid"][~requested], "toll": messages["toll"][~requested]},
        "balances": {"vid": messages["vid"][requested], "balance": rows["balance"][at[requested]].copy()},
    }


OPERATORS = (
    Operator("vehicles", "vid", VEHICLE, vehicles),
    Operator("places", "place", PLACE, places),
    Operator("segments", "road", SEGMENT, segments),
    Operator("accounts", "vid", ACCOUNT, accounts),
)


def together(parts: Sequence[Columns]) -> Columns:
    """Messages one after the other."""
    full = [part for part in parts if part and len(next(iter(part.values())))] or list(parts[:1])
    return {name: np.concatenate([part[name] for part in full]) for name in full[0]} if full else {}


def _minute(messages: Columns) -> int:
    return int(messages["minute"][0]) if len(messages["minute"]) else 0


class Traffic:
    """Vehicles that drive: six in ten are in a jam of each direction, slow enough and dense enough for tolls."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self._dice, self._size = np.random.default_rng(seed), size
        count = size.xways * size.vehicles
        self._vid = np.arange(count)
        self._direction = np.arange(count) % 2
        self._xway = np.arange(count) // size.vehicles
        jammed = self._dice.random(count) < 0.6
        first = np.where(jammed, 40 + self._dice.integers(0, 4, count), self._dice.integers(0, SEGMENTS, count))
        self._position = first * FEET + self._dice.integers(0, FEET, count)
        self._lane = self._dice.integers(1, 4, count)
        self._still = np.zeros(count, np.int64)

    def batches(self) -> Iterator[tuple[Columns, Columns]]:
        """Reports of each 30 seconds, and requests for balances, one for a hundred reports."""
        for number in range(self._size.batches):
            yield self._reports(number), self._requests()

    def _requests(self) -> Columns:
        vid = self._dice.choice(self._vid, max(1, len(self._vid) // 100), replace=False)
        nothing = np.zeros(len(vid), np.int64)
        return {"vid": vid, "charges": nothing > 0, "toll": nothing, "request": nothing == 0}

    def _reports(self, number: int) -> Columns:
        dice, count = self._dice, len(self._vid)
        segment = self._position // FEET
        jam = (segment >= 38) & (segment < 46)
        speed = np.where(jam, dice.integers(10, 36, count), dice.integers(45, 90, count))
        if number % 4 == 1:
            self._crash()
        speed = np.where(self._still > 0, 0, speed)
        self._still = np.maximum(self._still - 1, 0)
        forward = np.where(self._direction == 0, 1, -1)
        ahead = self._position + (forward * speed * FEET * INTERVAL // 3600 if number else 0)
        out = (ahead < 0) | (ahead >= SEGMENTS * FEET)
        self._position = np.clip(ahead, 0, SEGMENTS * FEET - 1)
        leaves = (out | (dice.random(count) < 0.005)) & (self._still == 0)
        made = {
            "vid": self._vid.copy(), "minute": np.full(count, number * INTERVAL // 60 + 1), "speed": speed,
            "lane": np.where(leaves, EXIT, self._lane), "position": self._position.copy(),
            "road": road_of(self._xway, self._direction, self._position // FEET),
        }  # fmt: skip
        # who left is followed by a new vehicle somewhere else
        self._vid = np.where(leaves, self._vid + count, self._vid)
        self._position = np.where(leaves, dice.integers(0, SEGMENTS * FEET, count), self._position)
        return made

    def _crash(self) -> None:
        """In each expressway two vehicles of one direction come to stand at one place for five reports."""
        starts = np.arange(self._size.xways) * self._size.vehicles
        one = starts + 2 * self._dice.integers(0, self._size.vehicles // 4, self._size.xways)
        two = one + 2 * (self._size.vehicles // 4)
        self._position[two], self._lane[two] = self._position[one], self._lane[one]
        self._still[one] = self._still[two] = 5
