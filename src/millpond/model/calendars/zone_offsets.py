"""Converts between instants and local times of a time zone, as arrays.

Times are cut into blocks. The changes of a zone's offset within a block are found with `zoneinfo`, once per process.
The rules of a zone repeat after 400 years, which are a whole number of blocks, so few blocks are ever computed.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from millpond.arrays import Ints, distinct_of
from millpond.errors import QueryTypeError

_SECOND_US = 1_000_000
DAY_US = 86_400 * _SECOND_US
_BLOCK_DAYS = 773
_BLOCK_US = _BLOCK_DAYS * DAY_US
_CYCLE = 189
"""Blocks in 400 years of the Gregorian calendar."""
_FIRST, _LAST = -84, 222
"""Before the first block (1792) no zone changes its offset; from 400 years before the last one (2440) rules repeat."""
_CHANGING_DAYS = 80 * 366
"""The days after 1970 in which a zone may change its offset otherwise than in each later year."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIXED = re.compile(r"([+-])(\d\d):(\d\d)(?::(\d\d))?")


class _Segments(NamedTuple):
    """Intervals [start, end) of instants with one offset, ascending; between two blocks there may be gaps."""

    starts_us: Ints
    ends_us: Ints
    offsets_us: Ints


def check_zone(zone: str) -> None:
    """Refuse a zone that this host does not know.

    Raises:
        QueryTypeError: it is neither a name of the time zone database nor an offset such as `+02:00`.
    """
    try:
        _rules(zone)
    except (KeyError, ValueError, OSError) as error:
        raise QueryTypeError(
            f"The time zone {zone!r} is not in the time zone database.", "Use a name such as Europe/Berlin, or +02:00."
        ) from error


def remainders(zone: str, step_us: int) -> list[int]:
    """The offsets that a zone has had since 1970, modulo `step_us`, without repetitions.

    >>> remainders("Europe/Berlin", 3_600_000_000), remainders("Australia/Lord_Howe", 3_600_000_000)
    ([0], [0, 1800000000])
    """
    blocks = np.arange(-(-_CHANGING_DAYS // _BLOCK_DAYS)) * _BLOCK_US
    segments = _segments(zone, blocks)
    later = segments.ends_us > 0
    return list(map(int, distinct_of(segments.offsets_us[later] % step_us)))


def local_times(zone: str, times_us: Ints) -> Ints:
    """The local times of instants, as microseconds since 1970-01-01 00:00 of the local clock.

    >>> local_times("Europe/Berlin", np.array([0])).tolist()
    [3600000000]
    """
    segments = _segments(zone, times_us)
    local: Ints = times_us + segments.offsets_us[np.searchsorted(segments.starts_us, times_us, "right") - 1]
    return local


def first_instants(zone: str, local_us: Ints) -> Ints:
    """For each local time, the first instant at which the clock shows it, or a later time if it skips it."""
    starts, ends, offsets = _segments(zone, local_us)
    shown_until = np.maximum.accumulate(ends + offsets)
    at = np.searchsorted(shown_until, local_us, "right")
    first: Ints = np.maximum(starts[at], local_us - offsets[at])
    return first


def last_instants(zone: str, local_us: Ints) -> Ints:
    """For each local time, the last instant at which the clock shows it, or the end of the skipped time it is in.

    >>> hour = 3_600_000_000
    >>> havana = np.array([20 * 365 * 24 * hour])  # 1989-12-27
    >>> bool(first_instants("America/Havana", havana) == last_instants("America/Havana", havana))
    True
    """
    starts, ends, offsets = _segments(zone, local_us)
    shown_from = np.minimum.accumulate((starts + offsets)[::-1])[::-1]
    at = np.searchsorted(shown_from, local_us, "right") - 1
    last: Ints = np.minimum(ends[at], local_us - offsets[at])
    return last


def instants_of(zone: str, local_us: Ints, offsets_us: Ints) -> Ints:
    """For each local time an instant, as `java.time` chooses it.

    A time that the clock skips is moved by what it skips. Of a repeated time, the instant with the offset `offsets_us`
    is taken, or else the first one.
    """
    starts, ends, offsets = _segments(zone, local_us)
    shown_until = np.maximum.accumulate(ends + offsets)
    shown_from = np.minimum.accumulate((starts + offsets)[::-1])[::-1]
    first = np.searchsorted(shown_until, local_us, "right")
    last = np.searchsorted(shown_from, local_us, "right") - 1
    repeated = (last > first) & (offsets[last] == offsets_us)
    offset = np.where(last < first, offsets[last], np.where(repeated, offsets[last], offsets[first]))
    instants: Ints = local_us - offset
    return instants


def local_day(zone: str, time_us: int) -> int:
    """The day of the local clock at an instant, as days since 1970-01-01.

    >>> local_day("Europe/Berlin", 23 * 3_600_000_000)
    1
    """
    return int(local_times(zone, np.array([time_us]))[0]) // DAY_US


def plus_days(zone: str, time_us: int, days: int) -> int:
    """The instant some days after another one on the local clock, as `java.time` adds days.

    A time that the clock skips is moved by what it skips; of a repeated time, the one with the same offset is taken.

    >>> plus_days("Europe/Berlin", 0, 1), plus_days("Europe/Berlin", 1_711_762_200_000_000, 1)  # 2024-03-30 02:30
    (86400000000, 1711848600000000)
    """
    local = (_EPOCH + timedelta(microseconds=time_us)).astimezone(_rules(zone))
    found = local + timedelta(days=days)
    later = found.replace(fold=1)
    if later.utcoffset() == local.utcoffset() and later.astimezone(timezone.utc).astimezone(found.tzinfo) == found:
        found = later
    return (found.astimezone(timezone.utc) - _EPOCH) // timedelta(microseconds=1)


def _segments(zone: str, times_us: Ints) -> _Segments:
    """The segments that contain all instants within two days of the given times."""
    times_us = times_us if len(times_us) else np.zeros(1, np.int64)
    near = (times_us[None] + np.array([[-2 * DAY_US], [0], [2 * DAY_US]])) // _BLOCK_US
    return _segments_of(zone, tuple(distinct_of(near.ravel()).tolist()))


@lru_cache(1 << 10)
def _segments_of(zone: str, blocks: tuple[int, ...]) -> _Segments:
    """The segments in these blocks; epochs near each other read the same ones, and nobody writes to them."""
    starts, ends, offsets = [], [], []
    for block in blocks:
        changes, of_block = _block(zone, _canonical(block))
        starts.append(block * _BLOCK_US + changes)
        ends.append(np.append(starts[-1][1:], (block + 1) * _BLOCK_US))
        offsets.append(of_block)
    return _Segments(np.concatenate(starts), np.concatenate(ends), np.concatenate(offsets))


def _canonical(block: int) -> int:
    """The block that is computed for a block: it has the same offsets at the same times after its begin."""
    return max(block, _FIRST) if block <= _LAST else _LAST - (_LAST - block) % _CYCLE


@lru_cache(1 << 12)
def _block(zone: str, block: int) -> tuple[Ints, Ints]:
    """The changes of a zone's offset in a block, in µs after its begin (the first is 0), and the offsets from then."""
    rules, begin = _rules(zone), _EPOCH + timedelta(days=block * _BLOCK_DAYS)

    def offset(seconds: int) -> int:
        found = (begin + timedelta(seconds=seconds)).astimezone(rules).utcoffset()
        return 0 if found is None else round(found.total_seconds())

    daily = [offset(86_400 * day) for day in range(_BLOCK_DAYS + 1)]
    changes, offsets = [0], daily[:1]
    for day, (old, new) in enumerate(pairwise(daily)):
        low, high = 86_400 * day, 86_400 * (day + 1)
        while old != new and high - low > 1:  # the offset at `low` is the old one, at `high` the new one
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == old else (low, middle)
        if old != new and high < 86_400 * _BLOCK_DAYS:
            changes.append(high)
            offsets.append(new)
    return np.array(changes) * _SECOND_US, np.array(offsets) * _SECOND_US


@lru_cache(1 << 10)
def _rules(zone: str) -> tzinfo:
    found = _FIXED.fullmatch(zone)
    if found is None:
        return ZoneInfo(zone)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if found[1] == "-" else offset)
