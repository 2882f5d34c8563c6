"""Reads the windows of a query from its text before analysis, or recovers them from a plan after it.

Spark's analyser turns `window(ts, size, slide)` into size/slide projections; 7 days by 1 second exhausts a driver of
2 GB. So for a text, the literals are read from the parse tree, and the window is replaced by a tumbling one that keeps
all positions in the text; size, slide and offset are stored separately. In a text with several different windows, the
analyser plans short ones as they are. A DataFrame is analysed while it is built: `frontend.window_functions` hides the
window in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Cumulating, Session, Sliding, Written
from millpond.spark.analysis.grouping.row_patterns import PatternNote, is_pattern, pattern_note
from millpond.spark.catalyst.data_types import calendar_us, counts_months
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    items,
    kind_of,
    name_parts,
    nodes_of,
    span_of,
    text_of,
    type_of,
)
from millpond.spark.catalyst.text_span import TextSpan

_ARGUMENTS = ("timecolumn", "windowduration", "slideduration", "starttime")
MAX_DAYS = 36_525
"""The longest window in days: a hundred years."""
MAX_EVENTS = 1_000_000
"""The most events that a count window may hold."""
MAX_OVERLAP = 1_000_000
"""The most windows that one event may belong to; 7 days every second are 604,800."""

MAX_PLANNED = 200
"""The most windows that one event may belong to in a text with several different windows."""

_DAY_US = 86_400_000_000
_UNITS = (
    ("days", _DAY_US), ("hours", 3_600_000_000), ("minutes", 60_000_000), ("seconds", 1_000_000),
    ("milliseconds", 1_000), ("microseconds", 1),
)  # fmt: skip
_PROBE_US = 1_000_000_000_000_000
_COUNTED = re.compile(r"only a pond answers count_window\(size (\d+), every (\d+)\)")
_CUMULATED = re.compile(r"only a pond answers cumulate_window\(size (\d+), step (\d+)\) in microseconds")
_NOTE = re.compile(r"only a pond answers window\(size (\d+), slide (\d+), offset (\d+)\) in microseconds")


class Twin(NamedTuple):
    """A text in which hopping, growing and count windows are replaced by tumbling ones, and the original window, if
    there is one.

    A tumbling window is rewritten only if Spark would not accept the spelling of its duration. A replacement has the
    same length and line breaks, so positions are the same in both texts.
    """

    text: str
    window: Written | None


def tumbling_twin(catalyst: Catalyst, text: str, calls: Iterable[JavaObject]) -> Twin:
    """The twin of `text`; `calls` are all calls of window functions in its unresolved plan.

    Raises:
        QueryTypeError: a duration is not a literal, counts months, or makes no valid window.
        UnsupportedQuery: the text has two different windows.
    """
    windows: dict[Written, TextSpan | None] = {}
    # These are sets because the parser also lists a grouping key of `|> AGGREGATE` among the outputs.
    hopping: set[tuple[int, int, str]] = set()
    cuts: set[tuple[int, int, str]] = set()
    spans: set[TextSpan] = set()
    for call in calls:
        name, span = name_parts(call)[-1].lower(), span_of(call)
        if name == "window_time":
            continue  # for the row's own window it is a column; as the time of another window it is refused later
        if span is not None:
            spans.add(span)
        if name not in ("window", "count_window", "cumulate_window"):
            continue  # a session window can be read from the plan, and Spark accepts only one window
        window, twin = _with_twin(catalyst, name, call)
        windows[window] = span
        if span is not None and twin:
            hops = isinstance(window, Sliding) and not window.tumbling
            (hopping if hops else cuts).add((span.start, span.stop, _fitted(twin, span.piece)))
    if len(windows) > 1:
        _check_several(windows)
    else:
        cuts |= hopping
    edges = sorted((span.start, span.stop) for span in spans)
    for (_, stop), (start, _) in pairwise(edges):
        if start < stop:
            raise UnsupportedQuery("The query has a window inside a window.", "Window over a column.")
    for start, stop, replacement in sorted(cuts, reverse=True):
        text = text[:start] + replacement + text[stop:]
    return Twin(text, next(iter(windows), None) if len(windows) == 1 else None)


def _with_twin(catalyst: Catalyst, name: str, call: JavaObject) -> tuple[Written, str]:
    """The window of a call, and the call of the tumbling window that replaces it.

    The second is empty if none is needed, or if the time column is not in the text.

    Raises:
        QueryTypeError: see `tumbling_twin`.
    """
    if name != "window":
        window, column = _counted(call) if name == "count_window" else _cumulated(catalyst, call)
        return window, "" if column is None else f"window({column.piece}, '1 day')"
    arguments = _arguments(call)
    if not {"timecolumn", "windowduration"} <= arguments.keys():
        raise QueryTypeError(f"The window at {span_of(call)} lacks a time or a size.", "Write window(ts, '1 hour').")
    sliding, column = _sliding(catalyst, arguments, span_of(call)), span_of(arguments["timecolumn"])
    plain = len(arguments) == 2 and type_of(arguments["windowduration"]) == "string"
    return sliding, "" if plain or column is None else f"window({column.piece}, '{_duration(sliding.size_us)}')"


def _check_several(windows: Mapping[Written, TextSpan | None]) -> None:
    """Refuse windows of which Spark's analyser would plan too many rows per event; it plans them if there are several.

    Raises:
        UnsupportedQuery: one of the windows is a count window, grows by steps, or overlaps too many others.
    """
    for window, span in windows.items():
        what = None
        if isinstance(window, Counted):
            what = "is a count window"
        elif not isinstance(window, Sliding):
            what = "grows by steps"
        elif window.size_us > MAX_PLANNED * window.slide_us:
            what = f"overlaps more than {MAX_PLANNED} others"
        if what is not None:
            both = " and ".join(str(span) for span in windows.values())
            raise UnsupportedQuery(
                f"The query has two different windows, {both}, and the one at {span} {what}.", "Make them two queries."
            )


def _cumulated(catalyst: Catalyst, call: JavaObject) -> tuple[Cumulating, TextSpan | None]:
    """The window of `cumulate_window(time, size, step)` and the position of its time in the text."""
    given = items(call.arguments())
    if len(given) != 3:
        raise QueryTypeError(
            f"The window at {span_of(call)} is no time with two durations.",
            "Write cumulate_window(ts, '1 day', '1 hour').",
        )
    window = Cumulating(*(_microseconds(catalyst, duration) for duration in given[1:]))
    check_steps(window)
    return window, span_of(given[0])


def check_steps(window: Cumulating) -> None:
    """Refuse windows with unreasonable bounds.

    Raises:
        QueryTypeError: the size or the number of windows per event is too large.
    """
    check_overlap(Sliding(window.size_us, window.step_us))


def _counted(call: JavaObject) -> tuple[Counted, TextSpan | None]:
    """The window of `count_window(time, size[, every])` and the position of its time in the text."""
    given, span = items(call.arguments()), span_of(call)
    numbers = [one.value() if kind_of(one) == "Literal" and type_of(one) == "int" else None for one in given[1:]]
    if len(given) not in (2, 3) or not all(isinstance(one, int) for one in numbers):
        raise QueryTypeError(
            f"The window at {span} is no time with one or two numbers of events.", "Write count_window(ts, 10, 5)."
        )
    window = Counted(int(str(numbers[0])), int(str(numbers[-1])))
    check_counts(window)
    return window, span_of(given[0])


def check_counts(window: Counted) -> None:
    """Refuse a window of more than `MAX_EVENTS` events, all of which would be held in memory many times over.

    Raises:
        QueryTypeError: it has more events.
    """
    if window.size > MAX_EVENTS:
        raise QueryTypeError(
            f"A window of {window.size:,} events is too large; {MAX_EVENTS:,} are allowed.", "Use a smaller one."
        )


def is_noted(expression: JavaObject) -> bool:
    """Whether an expression contains the time of a window made by `frontend.window_functions`."""
    text = str(expression.toString())
    return _note(text) is not None or is_pattern(text)


def _note(text: str) -> Written | None:
    """The window hidden in the text of an expression."""
    found = _NOTE.search(text)
    if found:
        return Sliding(*map(int, found.groups()))
    if found := _CUMULATED.search(text):
        return Cumulating(*map(int, found.groups()))
    counted = _COUNTED.search(text)
    return Counted(int(counted[1]), int(counted[2])) if counted else None


def time_and_window(
    catalyst: Catalyst, column: JavaObject, structs: list[JavaObject]
) -> tuple[JavaObject, Written | PatternNote]:
    """The time attribute and the window of analysed window structs, found by evaluating the structs for one instant.

    Raises:
        UnsupportedQuery: the window's time is an expression, or is not a timestamp.
    """
    text = str(structs[0].toString())
    if is_pattern(text):
        pattern = pattern_note(structs[0], text)
        return pattern.time, pattern
    time = _time_of(column, structs[0])
    noted = _note(text)
    if noted is not None:
        return time, noted
    values = [struct.child() if kind_of(struct) == "Alias" else struct for struct in structs]
    edges = catalyst.probe([edge for value in values for edge in children(value)[1::2]], time, _PROBE_US)
    bounds = sorted(zip(edges[::2], edges[1::2], strict=True))
    size = bounds[0][1] - bounds[0][0]
    slide = bounds[1][0] - bounds[0][0] if len(bounds) > 1 else size
    return time, Sliding(size, slide, bounds[0][0] % slide)


def time_and_session(catalyst: Catalyst, column: JavaObject) -> tuple[JavaObject, Session | JavaObject]:
    """The time attribute of an analysed session window, and its gap.

    If the gap differs from event to event, also because it counts calendar days, the second value is instead the
    expression of the timestamp at which a window opened by an event would end.

    Raises:
        UnsupportedQuery: see `time_and_window`.
        QueryTypeError: the gap counts months, or is not positive.
    """
    struct = column.child()
    start, end = children(struct)[1::2]
    time = _time_of(column, start)
    gap = _interval_in(end)
    if gap is None or not gap.foldable():
        return time, _unwrapped(end)
    months, days, micros = catalyst.fixed_interval(gap)
    if days and not months and micros >= 0:
        check_length(days * _DAY_US + micros)
        return time, _unwrapped(end)
    session = Session(_without_months(months, micros, f"of {column.name()}"))
    check_length(session.gap_us)
    return time, session


def _unwrapped(end: JavaObject) -> JavaObject:
    """The timestamp inside the analyser's conversion to a number and back."""
    while kind_of(end) in ("KnownNullable", "PreciseTimestampConversion"):
        [end] = children(end)
    return end


def _interval_in(expression: JavaObject) -> JavaObject | None:
    """The topmost interval of an expression."""
    if type_of(expression) == "interval":
        return expression
    return next((found for child in children(expression) if (found := _interval_in(child)) is not None), None)


def _time_of(column: JavaObject, expression: JavaObject) -> JavaObject:
    """The attribute that is a window's time.

    Raises:
        UnsupportedQuery: the time is an expression, or no timestamp.
    """
    references = items(expression.references().toSeq())
    if len(references) != 1 or type_of(references[0]) != "timestamp":
        over = ", ".join(f"{attribute.name()} ({type_of(attribute)})" for attribute in references)
        cure = "Window over one column of type timestamp."
        if over.endswith(f"({WINDOW})"):
            cure = f"Window over {references[-1].name()} itself: window({references[-1].name()}, …)."
        raise UnsupportedQuery(f"The window {column.name()} is over {over or 'no column'}.", cure)
    # the analyser converts the time to microseconds before it computes with it
    times = [_without_note(_unwrapped(node)) for node in nodes_of(expression) if _is_time(node)]
    computed = next((time for time in times if kind_of(time) != "AttributeReference"), None)
    if computed is not None:
        raise UnsupportedQuery(
            f"The window {column.name()} is over the expression `{text_of(computed)}`.",
            "Make it a column with a watermark, and window over that: FROM (SELECT *, … AS time FROM …) WATERMARK time "
            "DELAY OF INTERVAL 10 SECONDS, or .withColumn('time', …).withWatermark('time', '10 seconds').",
        )
    return references[0]


def _without_note(time: JavaObject) -> JavaObject:
    """The time of a window without the note of `frontend.window_functions`: `CASE WHEN note IS NULL THEN time END`."""
    return children(time)[1] if kind_of(time) == "CaseWhen" and is_noted(time) else time


def _is_time(node: JavaObject) -> bool:
    """Whether a node converts the time of a window to a number."""
    return kind_of(node) == "PreciseTimestampConversion" and type_of(node) == "bigint"


def _arguments(call: JavaObject) -> dict[str, JavaObject]:
    found: dict[str, JavaObject] = {}
    for name, argument in zip(_ARGUMENTS, items(call.arguments()), strict=False):
        if kind_of(argument) == "NamedArgumentExpression":
            found[str(argument.key()).lower()] = argument.value()
        else:
            found[name] = argument
    return found


def _duration(us: int) -> str:
    """A duration in the longest unit that divides it, so that it fits into the space of the original text."""
    name, unit = next((name, unit) for name, unit in _UNITS if us % unit == 0)
    return f"{us // unit} {name}"


def _fitted(twin: str, piece: str) -> str:
    """The replacement, padded to the length and line breaks of the piece that it replaces."""
    breaks = piece.count("\n") - twin.count("\n")
    room = len(piece) - len(twin) - breaks
    last = len(piece) - piece.rfind("\n") - 1 if breaks > 0 else 0
    return twin + " " * max(0, room - last) + "\n" * max(0, breaks) + " " * min(max(0, room), last)


def _sliding(catalyst: Catalyst, arguments: dict[str, JavaObject], span: TextSpan | None) -> Sliding:
    size = _microseconds(catalyst, arguments["windowduration"])
    slide = _microseconds(catalyst, arguments["slideduration"]) if "slideduration" in arguments else size
    offset = _microseconds(catalyst, arguments["starttime"]) if "starttime" in arguments else 0
    if not 0 < slide <= size:
        raise QueryTypeError(
            f"The window at {span} is empty, or leaves gaps between two.",
            "Use a size above zero, and a slide above zero that is no longer than the size.",
        )
    if abs(offset) >= slide:
        shift = span_of(arguments["starttime"])
        raise QueryTypeError(f"The window offset at {shift} is not within one slide.", "Use offset modulo slide.")
    window = Sliding(size, slide, offset % slide)
    check_overlap(window)
    return window


def check_overlap(window: Sliding) -> None:
    """Refuse a window with unreasonable bounds before an event is read.

    Raises:
        QueryTypeError: it is too long, or each event would be in too many windows.
    """
    check_length(window.size_us)
    if window.size_us > MAX_OVERLAP * window.slide_us:
        raise QueryTypeError(
            f"Each event would be in {window.size_us // window.slide_us:,} windows of {_duration(window.size_us)} "
            f"every {_duration(window.slide_us)}; {MAX_OVERLAP:,} are allowed.",
            "Use a longer slide or a shorter size.",
        )


def check_length(us: int) -> None:
    """Refuse an unreasonably long time.

    Raises:
        QueryTypeError: it is longer than `MAX_DAYS`.
    """
    if us > MAX_DAYS * _DAY_US:
        raise QueryTypeError(
            f"A window of {us // _DAY_US:,} days would never end; {MAX_DAYS:,} days are allowed.",
            "Use a shorter one.",
        )


def _microseconds(catalyst: Catalyst, argument: JavaObject) -> int:
    span = span_of(argument)
    if kind_of(argument) == "Literal" and type_of(argument) == "string":
        return duration_us(catalyst, str(argument.value().toString()), f"at {span}")
    if kind_of(argument) != "Literal":
        raise QueryTypeError(
            f"The duration at {span} is no literal.", "Write it as '10 minutes' or INTERVAL 10 MINUTES."
        )
    value, kind = argument.value(), type_of(argument)
    try:
        if kind == "interval":
            months, micros = calendar_us(value)
        else:
            months, micros = (1, 0) if counts_months(kind) else (0, int(value))
    except (Py4JJavaError, PySparkException, ValueError, TypeError) as error:
        raise QueryTypeError(f"The duration at {span} is no interval.", "Write it as '10 minutes'.") from error
    return _without_months(months, micros, f"at {span}")


def duration_us(catalyst: Catalyst, text: str, what: str) -> int:
    """The microseconds of an interval in Spark's syntax; `what` names the interval in errors.

    Raises:
        QueryTypeError: the text is no interval, or it counts months.
    """
    try:
        months, micros = catalyst.interval_us(text)
    except (Py4JJavaError, PySparkException) as error:
        raise QueryTypeError(f"The duration {what} is no interval.", "Write it as '10 minutes'.") from error
    return _without_months(months, micros, what)


def _without_months(months: int, micros: int, what: str) -> int:
    if months:
        raise QueryTypeError(f"The duration {what} counts months, which differ in length.", "Use days.")
    return micros
