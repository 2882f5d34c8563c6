"""Numbers of things, and durations, as text; needs no other module, so that commands of the terminal start fast."""

from __future__ import annotations

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


def duration(us: int) -> str:
    """A duration as text, in the largest unit of which it is a whole number.

    >>> duration(90_000_000), duration(0)
    ('90 seconds', '0 seconds')
    """
    if not us:
        return "0 seconds"
    name, unit = next((name, unit) for name, unit in _UNITS if us % unit == 0)
    return count_of(us // unit, name)
