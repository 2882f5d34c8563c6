"""Windows over event time: half-open intervals `[start, end)` in microseconds."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from millpond.arrays import Ints
from millpond.errors import QueryTypeError
from millpond.model.calendars.grids import LONGEST_DAYS, Dates, EdgeGrid, Regular, Unit
from millpond.model.calendars.zone_offsets import DAY_US, check_zone
from millpond.model.expressions import Expression
from millpond.model.patterns.grammar import parse, variables_of
from millpond.model.patterns.variables import Variable, leaves_of, reads_others


class Interval(NamedTuple):
    """A half-open interval of event time, in microseconds since 1970 UTC."""

    start_us: int
    end_us: int


class Sliding(msgspec.Struct, frozen=True, tag_field="window", tag="sliding"):
    """Windows of `size_us`; one starts every `slide_us`, at `offset_us` modulo `slide_us`.

    A window is tumbling if its slide equals its size, as in Spark.

    >>> Sliding(size_us=10, slide_us=5).assign(12)
    [Interval(start_us=5, end_us=15), Interval(start_us=10, end_us=20)]

    Raises:
        QueryTypeError: size or slide is not positive, or the slide is longer than the size.
    """

    size_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.size_us <= 0 or not 0 < self.slide_us <= self.size_us:
            raise QueryTypeError(
                f"A window of {self.size_us} µs every {self.slide_us} µs leaves gaps or is empty.",
                "Use a positive size and a slide between 1 µs and the size.",
            )
        if not 0 <= self.offset_us < self.slide_us:
            raise QueryTypeError(
                f"The window offset {self.offset_us} µs is not within one slide.", "Use offset modulo slide."
            )

    @property
    def tumbling(self) -> bool:
        """Whether windows do not overlap."""
        return self.size_us == self.slide_us

    @property
    def longest_us(self) -> int:
        """A length that no window exceeds."""
        return self.size_us

    @property
    def ends(self) -> EdgeGrid:
        """The times at which windows end."""
        return Regular((self.offset_us + self.size_us) % self.slide_us, self.slide_us)

    @property
    def edges(self) -> tuple[EdgeGrid, ...]:
        """The times at which windows begin or end."""
        return Regular(self.offset_us, self.slide_us), self.ends

    def next_start(self, time_us: int) -> int:
        """The first start of a window at or after a time.

        >>> Sliding(size_us=10, slide_us=5).next_start(11)
        15
        """
        return time_us + (self.offset_us - time_us) % self.slide_us

    def first_open(self, mark_us: int) -> int:
        """The start of the first window that ends after a watermark.

        >>> Sliding(size_us=10, slide_us=5).first_open(14), Sliding(size_us=10, slide_us=5).first_open(15)
        (5, 10)
        """
        return self.next_start(mark_us + 1 - self.size_us)

    def next_end(self, mark_us: int) -> int:
        """The first end of a window after a watermark."""
        return self.first_open(mark_us) + self.size_us

    def start_of(self, end_us: int) -> int:
        """The start of the window with this end."""
        return end_us - self.size_us

    def first_end(self, start_us: int) -> int:
        """The first end of a window with this start."""
        return start_us + self.size_us

    def last_ends(self, times_us: Ints) -> Ints:
        """For each time, the last end of a window that contains it, or a later time before the next end."""
        return times_us + self.size_us

    def assign(self, time_us: int) -> list[Interval]:
        """The windows that contain an event of `time_us`, earliest first."""
        last = time_us - (time_us - self.offset_us) % self.slide_us
        first = last - (self.size_us - 1 - (time_us - last)) // self.slide_us * self.slide_us
        return [Interval(start, start + self.size_us) for start in range(first, last + 1, self.slide_us)]


RUNNING = Sliding(1 << 62, 1 << 62, 1 << 61)
"""The window over all event time, for queries without a window; it never closes, so its rows must be updates."""

NEVER_LATE_US = 1 << 61
"""The delay of queries with the window `RUNNING`: no event is late for them."""


class Calendar(msgspec.Struct, frozen=True, tag_field="window", tag="calendar"):
    """Tumbling windows of a unit of the calendar in a time zone: a day of Berlin has 23, 24 or 25 hours.

    >>> hour = 3_600_000_000
    >>> days = Calendar("date", "Europe/Berlin")
    >>> [us // hour for us in days.assign(0)[0]]
    [-1, 23]

    Raises:
        QueryTypeError: the zone is unknown.
    """

    unit: Unit
    zone: str

    def __post_init__(self) -> None:
        check_zone(self.zone)

    @property
    def tumbling(self) -> bool:
        """TRUE: windows do not overlap."""
        return True

    @property
    def longest_us(self) -> int:
        """A length that no window exceeds."""
        return LONGEST_DAYS[self.unit] * DAY_US

    @property
    def ends(self) -> EdgeGrid:
        """The times at which windows begin and end."""
        return Dates(self.unit, self.zone)

    @property
    def edges(self) -> tuple[EdgeGrid, ...]:
        """The times at which windows begin and end."""
        return (self.ends,)

    def next_start(self, time_us: int) -> int:
        """The first start of a window at or after a time."""
        return self.next_end(time_us - 1)

    def first_open(self, mark_us: int) -> int:
        """The start of the first window that ends after a watermark."""
        return int(self.ends.floor(np.array([mark_us]))[0])

    def next_end(self, mark_us: int) -> int:
        """The first end of a window after a watermark."""
        return int(self.ends.after(np.array([mark_us]))[0])

    def start_of(self, end_us: int) -> int:
        """The start of the window with this end."""
        return self.first_open(end_us - 1)

    def first_end(self, start_us: int) -> int:
        """The end of the window with this start."""
        return self.next_end(start_us)

    def last_ends(self, times_us: Ints) -> Ints:
        """For each time, the end of the window that contains it."""
        return self.ends.after(times_us)

    def assign(self, time_us: int) -> list[Interval]:
        """The window that contains an event of `time_us`."""
        return [Interval(self.first_open(time_us), self.next_end(time_us))]


class Cumulating(msgspec.Struct, frozen=True, tag_field="window", tag="cumulating"):
    """Windows that grow by `step_us` up to `size_us` and then start again, as Flink's CUMULATE.

    Windows start at `offset_us` modulo `size_us`. Those with one start are all in the longest of them.

    >>> Cumulating(size_us=30, step_us=10).assign(45)
    [Interval(start_us=30, end_us=50), Interval(start_us=30, end_us=60)]

    Raises:
        QueryTypeError: the step is not positive, or the size is no multiple of it.
    """

    size_us: int
    step_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.step_us <= 0 or self.size_us < self.step_us or self.size_us % self.step_us:
            raise QueryTypeError(
                f"Windows that grow by {self.step_us} µs do not become {self.size_us} µs long.",
                "Use a positive step, and a size that is a multiple of it.",
            )
        if not 0 <= self.offset_us < self.size_us:
            raise QueryTypeError(
                f"The window offset {self.offset_us} µs is not within the size.", "Use offset modulo size."
            )

    @property
    def tumbling(self) -> bool:
        """Whether windows do not overlap."""
        return self.size_us == self.step_us

    @property
    def longest_us(self) -> int:
        """The length of the longest window."""
        return self.size_us

    @property
    def ends(self) -> EdgeGrid:
        """The times at which windows end."""
        return Regular(self.offset_us % self.step_us, self.step_us)

    @property
    def edges(self) -> tuple[EdgeGrid, ...]:
        """The times at which windows begin or end."""
        return (self.ends,)

    def next_start(self, time_us: int) -> int:
        """The first start of a window at or after a time."""
        return time_us + (self.offset_us - time_us) % self.size_us

    def first_open(self, mark_us: int) -> int:
        """The start of the first window that ends after a watermark."""
        return mark_us - (mark_us - self.offset_us) % self.size_us

    def next_end(self, mark_us: int) -> int:
        """The first end of a window after a watermark."""
        return mark_us - (mark_us - self.offset_us) % self.step_us + self.step_us

    def start_of(self, end_us: int) -> int:
        """The start of the window with this end."""
        return self.first_open(end_us - 1)

    def first_end(self, start_us: int) -> int:
        """The first end of a window with this start."""
        return start_us + self.step_us

    def last_ends(self, times_us: Ints) -> Ints:
        """For each time, the end of the longest window that contains it."""
        return Regular(self.offset_us, self.size_us).after(times_us)

    def assign(self, time_us: int) -> list[Interval]:
        """The windows that contain an event of `time_us`, shortest first."""
        start = self.first_open(time_us)
        ends = range(self.next_end(time_us), start + self.size_us + 1, self.step_us)
        return [Interval(start, end) for end in ends]


Sliced: TypeAlias = Sliding | Calendar | Cumulating
"""Windows over event time that are runs of slices; the end of a window determines its start."""


class Session(msgspec.Struct, frozen=True, tag_field="window", tag="session"):
    """Session windows: one per run of a key's events without a gap of `gap_us`; it ends `gap_us` after the last event.

    An event at t opens [t, t + gap); windows of a key that overlap or touch are merged, as in Spark. `end` is set if
    events bring their own gaps: it is the timestamp at which the window of an event ends. Then `gap_us` is 0, and the
    query's `where` requires that an event's time is before `end`. The JSON of a window with a fixed gap has no `end`.

    >>> Session(gap_us=10).assign(12)
    [Interval(start_us=12, end_us=22)]

    Raises:
        QueryTypeError: the gap is not positive.
    """

    gap_us: int
    end: Expression | msgspec.UnsetType = msgspec.UNSET

    @property
    def own_end(self) -> Expression | None:
        """The end of the window of an event, if events bring their own gaps; else None."""
        return None if isinstance(self.end, msgspec.UnsetType) else self.end

    def __post_init__(self) -> None:
        if self.own_end is not None:
            return
        if self.gap_us <= 0:
            raise QueryTypeError(f"A session window with a gap of {self.gap_us} µs is empty.", "Use a positive gap.")

    def assign(self, time_us: int) -> list[Interval]:
        """The window that an event of `time_us` opens, before it is merged with others."""
        return [Interval(time_us, time_us + self.gap_us)]


class Range(msgspec.Struct, frozen=True, tag_field="window", tag="range"):
    """A window per event: the events of its key from `preceding_us` before it up to its own time, inclusive.

    In SQL this is a RANGE frame up to the current row; events of equal time are peers and belong to it. The row of an
    event is emitted when the watermark reaches its time. As an interval, the window ends a microsecond after the event.
    Aggregates may have shorter frames of their own.

    With `unit_us`, frames count whole units, as in ORDER BY unix_timestamp(ts): the frames of aggregates begin their
    `preceding_us` before the unit of the event, and end with it. So events of one unit are peers.

    >>> Range(10).assign(12), Range(9, 10).assign(12)
    ([Interval(start_us=2, end_us=13)], [Interval(start_us=3, end_us=20)])

    Raises:
        QueryTypeError: `preceding_us` is negative.
    """

    preceding_us: int
    unit_us: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.preceding_us < 0:
            raise QueryTypeError(
                f"A frame that begins {-self.preceding_us} µs after its event is empty.", "Let it begin before."
            )

    def assign(self, time_us: int) -> list[Interval]:
        """The window of an event of `time_us`."""
        return [Interval(time_us - self.preceding_us, self.begin_of_unit(time_us) + self.unit)]

    @property
    def unit(self) -> int:
        """The unit in microseconds."""
        return self.unit_us if isinstance(self.unit_us, int) else 1

    def begin_of_unit(self, time_us: int) -> int:
        """The first time of the unit that a time belongs to."""
        return time_us - time_us % self.unit


class Counted(msgspec.Struct, frozen=True, tag_field="window", tag="counted"):
    """Windows of the last `size` events of a key, or of all its events until it has `size`.

    Every `every`-th event of the key ends a window. Events are ordered by time, then by source partition and offset. A
    window begins at the time of its first event and ends at the time of its last event. Its row is emitted when the
    watermark reaches its end. With `once`, only the first window of each key is emitted. With `following`, the row is
    that of the event `following` events before the last one; a drain also emits the rows of the last events.

    Raises:
        QueryTypeError: size or step is not positive.
    """

    size: int
    every: int
    once: bool | msgspec.UnsetType = msgspec.UNSET
    following: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.size <= 0 or self.every <= 0:
            raise QueryTypeError(f"A window of {self.size} events every {self.every} is none.", "Use positive numbers.")

    def assign(self, time_us: int) -> list[Interval]:
        """The window of a single event of `time_us`."""
        return [Interval(time_us, time_us + 1)]


Keeps = Literal["earliest", "latest", "ranked"]
"""Which events of a key give its rows: one in event time, or the first ones by a rank of the query."""


class Distinct(msgspec.Struct, frozen=True, tag_field="window", tag="distinct"):
    """One row for each distinct key: that of its first event, emitted in the epoch that reads the event.

    With `keeps`, the row is that of the `earliest` or `latest` event in event time, and changes when there is another
    one; the query emits updates, and `kept_us` is unset. With `keeps` = `ranked`, a key has a row for each event whose
    rank is at most `rows`; the aggregates of the query are ranks, and HAVING has the same condition on one of them.
    With `rows` alone, a key has rows of its first `rows` events.

    The key is remembered until the watermark reaches the time of this event plus `kept_us`, or indefinitely if that is
    unset. A later event of the key is then a first one again.

    Raises:
        QueryTypeError: `kept_us` is negative.
    """

    kept_us: int | msgspec.UnsetType = msgspec.UNSET
    keeps: Keeps | msgspec.UnsetType = msgspec.UNSET
    rows: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.lasts_us is not None and self.lasts_us < 0:
            raise QueryTypeError(f"Keys that are remembered for {self.lasts_us} µs are none.", "Use a positive time.")

    @property
    def lasts_us(self) -> int | None:
        """How long a key is remembered, in event time; None: indefinitely."""
        return None if isinstance(self.kept_us, msgspec.UnsetType) else self.kept_us

    @property
    def ranked(self) -> int | None:
        """Up to which rank events of a key have rows; None: rows are not ranked."""
        return None if isinstance(self.rows, msgspec.UnsetType) or not self.keeps else self.rows

    def assign(self, time_us: int) -> list[Interval]:
        """The window of the row of an event."""
        return [Interval(time_us, time_us + 1)]


class Pattern(msgspec.Struct, frozen=True, tag_field="window", tag="pattern"):
    """Runs of consecutive events of a key that match a pattern; each match is a window.

    Events are ordered by time, then by source partition and offset. All events of a match lie within `within_us`. Of
    several matches that begin at one event, the one that the pattern prefers is taken: greedy quantifiers prefer more
    events, and `|` prefers its left side. A variable without a condition matches every event. After a match, the next
    one may begin with the next event (`overlapping`), or else only after the last event of the match.

    A window begins at the time of the first event and ends at that of the last one. Its row is emitted when the
    watermark has passed the events that decide that no preferred match exists. `previous`: the expressions that
    conditions read of the previous event of the key; they are NULL if that event is more than `within_us` earlier.
    `first`: the expressions that conditions read of the first event of the match.

    Raises:
        QueryTypeError: the pattern does not parse, can match no event at all, or is too large; a condition belongs to
            no variable of the pattern.
    """

    text: str
    within_us: int
    variables: tuple[Variable, ...]
    overlapping: bool = False
    previous: tuple[Expression, ...] = ()
    first: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        named = variables_of(parse(self.text))
        for variable in self.variables:
            if variable.name not in named:
                raise QueryTypeError(
                    f"DEFINE has a condition for {variable.name}, which is no variable of the pattern {self.text}.",
                    f"Define {' or '.join(named)}, or leave the condition out.",
                )
        if self.within_us <= 0:
            raise QueryTypeError(
                f"The pattern {self.text} has no time within which its events lie.", "Give it a time above zero."
            )

    def assign(self, time_us: int) -> list[Interval]:
        """The longest window of a match that begins with an event of `time_us`."""
        return [Interval(time_us, time_us + self.within_us + 1)]

    @property
    def reaches_us(self) -> int:
        """How long events are needed: the condition of the first event of a match may read the event before it."""
        return self.within_us * (2 if self.previous else 1)

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """The conditions that are about one event only; the gather evaluates them."""
        return tuple(one.condition for one in self.variables if not reads_others(one.condition))

    @property
    def values(self) -> tuple[Expression, ...]:
        """The expressions whose values are stored, for conditions that read other events."""
        leaves = (leaf for one in self.variables if reads_others(one.condition) for leaf in leaves_of(one.condition))
        return tuple(dict.fromkeys((*self.previous, *self.first, *leaves)))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions over columns of the stream that the gather evaluates."""
        return (*self.conditions, *self.values)


class Processed(msgspec.Struct, frozen=True, tag_field="window", tag="processed"):
    """The rows of a processor of the user's, which keeps state of each key.

    An event is processed when the watermark reaches its time, because then all earlier events have arrived. `kept_us`:
    the state of a key is forgotten this long after its last event; unset: never.
    """

    kept_us: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def lasts_us(self) -> int | None:
        """How long the state of a key is kept without an event; None: indefinitely."""
        return None if isinstance(self.kept_us, msgspec.UnsetType) else self.kept_us

    def assign(self, time_us: int) -> list[Interval]:
        """The window of a row."""
        return [Interval(time_us, time_us + 1)]


Written: TypeAlias = Sliding | Cumulating | Counted
"""Windows of a text that Spark's analyser does not plan, or not as they are."""

Framed: TypeAlias = Range | Counted | Distinct | Pattern | Processed
"""Windows that are runs of a key's events; they are answered from events and have no cells."""

Window: TypeAlias = Sliced | Session | Range | Counted | Distinct | Pattern | Processed
"""Any window of a query."""
