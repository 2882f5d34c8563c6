"""Numbers of things, durations and estimates; needs no other module, so that commands of the terminal start fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

PROGRESS_EVERY_US = 5_000_000
"""How often the progress of a long task is reported."""

_HOUR_US = 3_600_000_000
_UNITS = (
    ("day", 24 * _HOUR_US), ("hour", _HOUR_US), ("minute", 60_000_000), ("second", 1_000_000),
    ("millisecond", 1_000), ("microsecond", 1),
)  # fmt: skip


def count_of(number: int, word: str) -> str:
    """A number with its word, in the singular or plural.

    >>> count_of(1, "query"), count_of(2, "query"), count_of(2, "day")
    ('1 query', '2 queries', '2 days')
    """
    if number == 1:
        return f"1 {word}"
    return f"{number} {word[:-1] + 'ies' if word.endswith('y') and word != 'day' else word + 's'}"


def backlog(waiting: int | None, unit: str) -> str:
    """The backlog of a source as text; `unit` is a plural, None a number that is not known.

    >>> backlog(1, "files"), backlog(99_998, "records"), backlog(None, "records")
    ('1 file', '99,998 records', 'not known yet')
    """
    return "not known yet" if waiting is None else f"{waiting:,} {unit.removesuffix('s') if waiting == 1 else unit}"


def duration(us: int) -> str:
    """A duration as text, in the largest unit of which it is a whole number.

    >>> duration(90_000_000), duration(0)
    ('90 seconds', '0 seconds')
    """
    if not us:
        return "0 seconds"
    name, unit = next((name, unit) for name, unit in _UNITS if us % unit == 0)
    return count_of(us // unit, name)


def time_left(done: float, total: float, took_us: int) -> str:
    """The time that the rest of a work will take, given the time of a part, as the end of a sentence; empty if unknown.

    >>> time_left(16, 48, 10_000_000), time_left(1, 1_000, 500_000), time_left(0, 48, 7)
    (', about 20 seconds left', ', about 8 minutes left', '')
    """
    return remaining_text(took_us * (total - done) / done / 1e6 if 0 < done < total else None)


def remaining_text(seconds: float | None) -> str:
    """The time that a work will still take, as the end of a sentence; empty if it is not known.

    >>> remaining_text(3.2), remaining_text(None)
    (', about 3 seconds left', '')
    """
    return "" if seconds is None else f", {about(1e6 * seconds)} left"


def with_progress(items: Sequence[T], done: str, say: Callable[[str], object], clock: Callable[[], int]) -> Iterator[T]:
    """Yields the items of a long task and reports its progress every few seconds: how many are `done`, and the rest.

    `clock`: the time in µs.

    >>> times = iter(range(0, 99_000_000, 3_000_000))
    >>> [*with_progress("abcd", "queries are analysed", print, lambda: next(times))]
    1 of 4 queries are analysed, about 18 seconds left.
    3 of 4 queries are analysed, about 4 seconds left.
    ['a', 'b', 'c', 'd']
    """
    began = said = clock()
    for number, item in enumerate(items):
        now = clock()
        if number and now - said >= PROGRESS_EVERY_US:
            said = now
            say(f"{number:,} of {len(items):,} {done}{time_left(number, len(items), now - began)}.")
        yield item


class RemainingTime:
    """Estimates when an amount of work will be done, at the rate since it began to shrink. Not thread-safe.

    `clock`: the time in µs.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since = self._of = self._last = 0

    def update(self, amount: int) -> float | None:
        """Set the current amount, and return in how many seconds nothing of it will be left.

        None: nothing is left, or nothing was done since the first call, or since the amount last grew.
        """
        now = self._clock()
        if not amount or amount > self._last:
            self._since, self._of = now, amount
        self._last = amount
        return (now - self._since) / 1e6 * amount / (self._of - amount) if self._of > amount > 0 else None


def about(us: float) -> str:
    """An estimated duration in seconds, minutes or hours.

    >>> about(400_000), about(89e6), about(5e9), about(1e10)
    ('about 1 second', 'about 89 seconds', 'about 83 minutes', 'about 3 hours')
    """
    seconds = max(1, round(us / 1e6))
    number, word = next(
        (number, word) for number, word in (
            (seconds, "second"), (round(seconds / 60), "minute"), (round(seconds / 3600), "hour"),
        ) if number < 100 or word == "hour"
    )  # fmt: skip
    return f"about {count_of(number, word)}"
