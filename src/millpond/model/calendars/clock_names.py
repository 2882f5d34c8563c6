"""Names of parameters that are values of the clock, and how users write them; see `plan.options.clock_parameters`."""

from __future__ import annotations

import re

CLOCK_NAME = re.compile(r"now\(\)(?: ([+-]\d+) us)?(?: in (\S+))?(?: as (date|\d+ us)(?: ([+-]\d+) days)?)?")
"""A shift, a time zone, a date or the unit of a number, and the days that are added to a date."""

_UNITS = (
    (86_400_000_000, "DAY"), (3_600_000_000, "HOUR"), (60_000_000, "MINUTE"), (1_000_000, "SECOND"),
    (1_000, "MILLISECOND"), (1, "MICROSECOND"),
)  # fmt: skip
_NUMBERS = {"1000000 us": "unix_seconds", "1000 us": "unix_millis", "1 us": "unix_micros"}


def parameter_text(name: str) -> str:
    """A parameter as text for people: `:name`, or the value of the clock that it is.

    >>> parameter_text("least"), parameter_text("now() -3600000000 us")
    (':least', "current_timestamp() - INTERVAL '1' HOUR")
    >>> parameter_text("now() in Europe/Berlin as date -3 days"), parameter_text("now() as 1000000 us")
    ('current_date() - 3', 'unix_seconds(current_timestamp())')
    """
    found = CLOCK_NAME.fullmatch(name)
    if found is None:
        return f":{name}"
    shift, _, form, days = found.groups()
    text = "current_timestamp()"
    if shift:
        size_us = abs(int(shift))
        unit_us, unit = next((unit_us, unit) for unit_us, unit in _UNITS if size_us % unit_us == 0)
        text += f" {shift[0]} INTERVAL '{size_us // unit_us}' {unit}"
    if form == "date":
        text = f"to_date({text})" if shift else "current_date()"
        return f"{text} {days[0]} {days[1:]}" if days else text
    return f"{_NUMBERS[form]}({text})" if form else text
