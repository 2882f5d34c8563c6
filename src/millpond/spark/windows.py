"""Windows of a query: read from its text before analysis, or recovered from a plan after it.

Spark's analyser turns `window(ts, size, slide)` into size/slide projections: 7 days by 1 second exhausts a
driver of 2 GB. So from text the literals are read off the parse tree, the window is replaced by its tumbling
twin at the parser's own positions, and the size, slide and offset are kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.windows import Sliding
from millpond.spark.catalyst import (
    Catalyst,
    JavaObject,
    Place,
    calendar_us,
    children,
    items,
    kind_of,
    place_of,
    type_of,
)

_ARGUMENTS = ("timecolumn", "windowduration", "slideduration", "starttime")
MAX_DAYS = 36_525
"""Longest window: a hundred years."""
MAX_OVERLAP = 1_000_000
"""Most windows that one event may be in; 7 days every second are 604,800."""

_DAY_US = 86_400_000_000
_UNITS = (
    ("days", _DAY_US), ("hours", 3_600_000_000), ("minutes", 60_000_000), ("seconds", 1_000_000),
    ("milliseconds", 1_000), ("microseconds", 1),
)  # fmt: skip
_PROBE_US = 1_000_000_000_000_000


class Twin(NamedTuple):
    """The text with every hopping window made tumbling, and the window it stood for, if the text has one.

    Of tumbling windows only those are rewritten whose duration Spark would not take in that spelling. What is
    rewritten keeps its length and its lines, so a position in one text is one in the other."""

    text: str
    window: Sliding | None


def tumbling_twin(catalyst: Catalyst, text: str, calls: Iterable[JavaObject]) -> Twin:
    """The twin of `text`, in whose unresolved plan `calls` are all calls of window functions.

    Raises:
        QueryTypeError: a duration is no literal, counts months, or makes no window.
        UnsupportedQuery: two different windows, or a session window.
    """
    found: dict[Sliding, Place | None] = {}
    cuts: list[tuple[int, int, str]] = []
    places: list[Place] = []
    for call in calls:
        name = str(items(call.nameParts())[-1]).lower()
        place = place_of(call)
        if name != "window":
            kind = "A session window" if name == "session_window" else "window_time (a chain of windows)"
            raise UnsupportedQuery(f"{kind} at {place} is planned, not answered yet.", "Use window(time, size, slide).")
        arguments = _arguments(call)
        if not {"timecolumn", "windowduration"} <= arguments.keys():
            raise QueryTypeError(f"The window at {place} lacks a time or a size.", "Write window(ts, '1 hour').")
        window = _sliding(catalyst, arguments)
        found[window] = place
        places += [] if place is None else [place]
        column = place_of(arguments["timecolumn"])
        plain = len(arguments) == 2 and type_of(arguments["windowduration"]) == "string"
        if place is not None and column is not None and not plain:
            twin = f"window({column.piece}, '{_duration(window.size_us)}')"
            cuts.append((place.start, place.stop, _fitted(twin, place.piece)))
    if len(found) > 1:
        both = " and ".join(str(place) for place in found.values())
        raise UnsupportedQuery(f"The query has two different windows, {both}.", "Make them two queries.")
    spans = sorted((place.start, place.stop) for place in places)
    for (_, stop), (start, _) in pairwise(spans):
        if start < stop:
            raise UnsupportedQuery("The query has a window inside a window.", "Window over a column.")
    for start, stop, replacement in sorted(cuts, reverse=True):
        text = text[:start] + replacement + text[stop:]
    return Twin(text, next(iter(found), None))


def recovered(catalyst: Catalyst, column: JavaObject, panes: list[JavaObject]) -> tuple[JavaObject, Sliding]:
    """The time attribute and the window of analysed window structs: all panes of one, probed at one instant.

    Raises:
        UnsupportedQuery: the window is over an expression, or over no timestamp.
    """
    references = items(panes[0].references().toSeq())
    if len(references) != 1 or type_of(references[0]) != "timestamp":
        over = ", ".join(f"{attribute.name()} ({type_of(attribute)})" for attribute in references)
        raise UnsupportedQuery(
            f"The window {column.name()} is over {over or 'no column'}.",
            "Window over one column of type timestamp.",
        )
    bounds = []
    for pane in panes:
        struct = pane.child() if kind_of(pane) == "Alias" else pane
        start, end = children(struct)[1::2]
        bounds.append(tuple(catalyst.probe(edge, references[0], _PROBE_US) for edge in (start, end)))
    bounds.sort()
    size = bounds[0][1] - bounds[0][0]
    slide = bounds[1][0] - bounds[0][0] if len(bounds) > 1 else size
    return references[0], Sliding(size, slide, bounds[0][0] % slide)


def _arguments(call: JavaObject) -> dict[str, JavaObject]:
    found: dict[str, JavaObject] = {}
    for name, argument in zip(_ARGUMENTS, items(call.arguments()), strict=False):
        if kind_of(argument) == "NamedArgumentExpression":
            found[str(argument.key()).lower()] = argument.value()
        else:
            found[name] = argument
    return found


def _duration(us: int) -> str:
    """A duration in the longest unit that it is a multiple of, for it must fit where another one stood."""
    name, unit = next((name, unit) for name, unit in _UNITS if us % unit == 0)
    return f"{us // unit} {name}"


def _fitted(twin: str, piece: str) -> str:
    """The twin padded to the length and the line breaks of the piece it replaces."""
    breaks = piece.count("\n") - twin.count("\n")
    room = len(piece) - len(twin) - breaks
    last = len(piece) - piece.rfind("\n") - 1 if breaks > 0 else 0
    return twin + " " * max(0, room - last) + "\n" * max(0, breaks) + " " * min(max(0, room), last)


def _sliding(catalyst: Catalyst, arguments: dict[str, JavaObject]) -> Sliding:
    size = _microseconds(catalyst, arguments["windowduration"])
    slide = _microseconds(catalyst, arguments["slideduration"]) if "slideduration" in arguments else size
    offset = _microseconds(catalyst, arguments["starttime"]) if "starttime" in arguments else 0
    if slide > 0 and abs(offset) >= slide:
        place = place_of(arguments["starttime"])
        raise QueryTypeError(f"The window offset at {place} is not within one slide.", "Use offset modulo slide.")
    window = Sliding(size, slide, offset % slide if slide > 0 else 0)
    _check_sane(window)
    return window


def _check_sane(window: Sliding) -> None:
    """Refuse a window that nobody means, before an event is read."""
    if window.size_us > MAX_DAYS * _DAY_US:
        raise QueryTypeError(
            f"A window of {window.size_us // _DAY_US:,} days would never end; {MAX_DAYS:,} days are allowed.",
            "Use a shorter size.",
        )
    if window.size_us > MAX_OVERLAP * window.slide_us:
        raise QueryTypeError(
            f"Each event would be in {window.size_us // window.slide_us:,} windows of {_duration(window.size_us)} "
            f"every {_duration(window.slide_us)}; {MAX_OVERLAP:,} are allowed.",
            "Use a longer slide or a shorter size.",
        )


def _microseconds(catalyst: Catalyst, argument: JavaObject) -> int:
    place = place_of(argument)
    if kind_of(argument) != "Literal":
        raise QueryTypeError(
            f"The duration at {place} is no literal.", "Write it as '10 minutes' or INTERVAL 10 MINUTES."
        )
    value, kind = argument.value(), type_of(argument)
    try:
        if kind == "string":
            months, micros = catalyst.interval_us(str(value.toString()))
        elif kind == "interval":
            months, micros = calendar_us(value)
        else:
            months, micros = (1, 0) if kind.startswith("interval year") or kind == "interval month" else (0, int(value))
    except (Py4JJavaError, PySparkException, ValueError, TypeError) as error:
        raise QueryTypeError(f"The duration at {place} is no interval.", "Write it as '10 minutes'.") from error
    if months:
        raise QueryTypeError(f"The duration at {place} counts months, which differ in length.", "Use days.")
    return micros
