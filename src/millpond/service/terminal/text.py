"""Formats responses of the service as text for the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal

import msgspec

from millpond.clock import utc
from millpond.formats.escapes import printable
from millpond.plan.explain.amounts import count_of, duration, remaining_text
from millpond.runtime.inspect.timeline import Trace, pieces
from millpond.service.api.messages import (
    Changed,
    Differs,
    Event,
    FunctionShown,
    Parameter,
    Priced,
    QueryShown,
    Status,
    StreamShown,
)

_PROBLEMS = 4
_DIGEST = 12
"""The number of digits of a digest that are shown to distinguish two versions."""


def terminal_width() -> int | None:
    """The columns of the terminal; None in a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def columns() -> int:
    """The width of reports: that of the terminal, or 80 columns in a pipe or a file."""
    return terminal_width() or 80


def instances_text(status: Status) -> str:
    """The number of instances, and how much state still migrates between them, for how long.

    >>> instances_text(Status("leader", "p", 7, 5, 2, instances=3, buckets_moving=12, moved_in_s=8))
    '3, 12 buckets migrate, about 8 seconds left'
    """
    moving = f", {status.buckets_moving:,} buckets migrate" if status.buckets_moving else ""
    return f"{status.instances:,}{moving}{remaining_text(status.moved_in_s)}"


def listed_problems(status: Status) -> list[str]:
    """The first problem of each error code, then others up to a limit, and how many more there are.

    Many problems of one kind must not hide those of other kinds.

    >>> listed_problems(Status("leader", "p", 7, 5, 2, problems=("[A] 1", "[A] 2", "[A] 3", "[A] 4", "[A] 5", "[B] 1")))
    ['[A] 1', '[B] 1', '[A] 2', '[A] 3', 'and 2 more: `millpond status --json` lists all']
    """
    by_code: dict[str, list[str]] = {}
    for problem in status.problems:
        by_code.setdefault(problem.partition("]")[0], []).append(problem)
    first = [problems[0] for problems in by_code.values()]
    others = [problem for problems in by_code.values() for problem in problems[1:]]
    shown = first + others[: max(0, _PROBLEMS - len(first))]
    more = len(status.problems) - len(shown)
    return [*shown, f"and {more:,} more: `millpond status --json` lists all"] if more > 0 else shown


def folded(text: str, width: int | None) -> str:
    """A report whose lines are wrapped at `width` columns, with the indentation of each line and four columns more.

    A long row of a comparison stays in the line of its sign.
    None: the lines are not wrapped, for a program that reads them.

    >>> print(folded('+ {"shop":"shop04","orders":881}', 24))
    + {"shop":"shop04","orders":881}
    >>> print(folded("plan\\n  orders is read once: amount, card", 24))
    plan
      orders is read once:
          amount, card
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        parts = textwrap.wrap(
            line, width, subsequent_indent=f"{indent}    ", break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
        lines += [line] if parts[:1] in (["+"], ["-"]) else parts or [""]
    return "\n".join(lines)


def change_text(done: Changed | Priced) -> str:
    """The effect of a change, or its price, as text.

    >>> print(change_text(Priced("state moves", shards=("h:1", "h:2"), slots_buckets=512, slots_bytes=1000)))
    state moves; rows on 2 shards (h:1, h:2): 512 buckets with about 1,000 bytes move between them in the background

    >>> change_text(Priced("at once", freed_bytes=4096))
    'at once, 4,096 bytes of state are freed'
    >>> change_text(Changed("scale", "instances", 63, None, "4")), change_text(Changed("pause", "spend", 7))
    ('scale instances to 4 at record 63', 'pause spend at record 7')
    >>> from millpond.service.api.messages import First
    >>> first = First(3_600_000_000, 7_200_000_000, 7_210_000_000)
    >>> print(change_text(Changed("add", "hourly", 7, 3_300_000_000, None, first)).replace("; ", ";\\n"))
    add hourly at record 7, complete from 1970-01-01 00:55:00Z;
    first window 1970-01-01 01:00:00Z to 1970-01-01 02:00:00Z, its rows are emitted at event time 1970-01-01 02:00:10Z
    >>> change_text(Changed("add", "top", 7, 4_000_000_000, None, first)).partition(";")[0]
    'add top at record 7'
    >>> change_text(Changed("alter", "hourly", 8, 60_000_000, hand_over="windows that start before …"))
    'alter hourly at record 8; windows that start before …'
    >>> change_text(Changed("add", "all", 7, what="/ponds/a/out/all"))
    'add all at record 7; rows go to /ponds/a/out/all'
    """
    # If a text has several steps, `complete_from_us` is that of the last step and can be later than the first window's
    # start. Then only the first window is stated.
    within = done.first is not None and done.first.start_us < (done.complete_from_us or done.first.start_us)
    complete = "" if done.complete_from_us is None or within else f", complete from {utc(done.complete_from_us)}"
    if done.hand_over:
        complete = f"; {done.hand_over}"
    if done.first is not None:
        complete += (
            f"; first window {utc(done.first.start_us)} to {utc(done.first.end_us)}, its rows are emitted at event "
            f"time {utc(done.first.due_us)}"
        )
    if isinstance(done, Changed):
        where = "" if done.record is None else f" at record {done.record}"
        if done.kind == "add":
            rows = "" if done.what is None else f"; rows go to {done.what}"
            return f"add {done.name}{where}{complete}{rows}"
        what = "" if done.what is None else f" to {done.what}" if done.kind == "scale" else f": {done.what}"
        return f"{done.kind} {done.name}{what}{where}{complete}"
    again = ", the read is restarted" if done.rereads else ""
    freed = f", {done.freed_bytes:,} bytes of state are freed" if done.freed_bytes else ""
    moved = f", {done.moved_buckets:,} buckets with about {done.moved_bytes:,} bytes" if done.moved_buckets else ""
    since = f", in force from record {done.effective} on" if done.moved_buckets else ""
    read = f", {done.recalled_bytes:,} bytes of retained events are read again" if done.recalled_bytes else ""
    read += f", {done.reread_bytes:,} bytes of the source are read again" if done.reread_bytes else ""
    read += f", {done.reread_records:,} records of the source are read again" if done.reread_records else ""
    if done.shards:
        shards = f"{count_of(len(done.shards), 'shard')} ({', '.join(done.shards)})"
        read += (
            f"; rows on {shards}: {done.slots_buckets:,} buckets "
            f"with about {done.slots_bytes:,} bytes move between them in the background"
        )
    return f"{done.cost}{complete}{again}{freed}{moved}{since}{read}"


def change_lines(done: Changed | Priced) -> list[str]:
    """The effect of a change, or its price with what an added query shares and adds."""
    adds = done.adds.splitlines() if isinstance(done, Priced) else []
    return [change_text(done), *adds]


def query_line(one: QueryShown) -> str:
    """One line on a query, without its text."""
    whole = "" if one.complete_from_us is None else f"  complete from {utc(one.complete_from_us)}"
    streams = ", ".join(one.streams)
    whole += "" if one.time_zone is None else f"  time zone {one.time_zone}"
    if one.earlier_until_us is not None:
        whole += f"  an earlier version still emits windows that start before {utc(one.earlier_until_us)}"
    return f"{one.name}  {one.kind}  {one.state}  version {one.version}  of {streams}  to {one.sink}{whole}"


def query_lines(one: QueryShown) -> Iterator[str]:
    """Lines on a query: its columns, its text, and the text of its shadow."""
    yield query_line(one)
    yield from (f"  {column.name} {column.type}" for column in one.columns)
    if one.reason is not None:
        yield f"quarantined: {one.reason}"
    yield one.text.strip()
    if one.shadow is not None:
        yield f"its shadow, whose rows are only compared:\n{one.shadow.strip()}"


def stream_line(stream: StreamShown) -> str:
    """One line on a stream, and on what it retains for queries that are added later.

    >>> from millpond.service.api.messages import Retained
    >>> stream_line(StreamShown("tx", "kafka", (), None, Retained(7 * 86_400_000_000, 3_600_000_000, 0, ("ms",))))
    'stream tx  kafka  retains slices for 7 days, events for 1 hour (ms and what queries read)'
    >>> stream_line(StreamShown("tx", "kafka", ()))
    'stream tx  kafka  retains what its queries need'
    """
    kept, parts = stream.retain, []
    if kept is not None and kept.slices_us:
        parts.append(f"slices for {duration(kept.slices_us)}")
    if kept is not None and kept.grain_us:
        parts.append(f"slices cut at multiples of {duration(kept.grain_us)}")
    if kept is not None and kept.events_us:
        more = f" ({', '.join(kept.columns)} and what queries read)" if kept.columns else ""
        parts.append(f"events for {duration(kept.events_us)}{more}")
    return f"stream {stream.name}  {stream.source}  retains {', '.join(parts) or 'what its queries need'}"


def parameter_line(one: Parameter) -> str:
    """One line on a live parameter, and on the source of its value.

    >>> parameter_line(Parameter("top", ["/home"], "string", "busiest.page", 57))
    'top = ["/home"]  string  fed by busiest.page, its value by record 57'
    >>> parameter_line(Parameter("limit", 700.0, "double", None, 3))
    'limit = 700.0  double  set by record 3'
    """
    if one.source is None:
        source = "" if one.record is None else f"  set by record {one.record}"
    else:
        source = f"  fed by {one.source}{'' if one.record is None else f', its value by record {one.record}'}"
    return f"{one.name} = {_json(one.value)}  {one.type}{source}"


def function_line(one: FunctionShown) -> str:
    """One line on a version of a function, its digest, and the queries that call it."""
    called = f"{one.name}@{one.version}({', '.join(one.takes)}) {one.returns}"
    old = "" if one.newest else ", which is no longer its newest version"
    digest = f"sha256 {one.digest[:_DIGEST]}"
    return f"{called}  {one.module}  {digest}  called by {', '.join(one.queries) or 'no query'}{old}"


def event_line(event: Event) -> str:
    """One line on a change in the history, with the query's text and the functions that it calls.

    >>> event_line(Event(4, 1_100_000, "add", "a", "ann", "SELECT\\n  1", None, 0, {"f@2": "a" * 64}))
    '4  1970-01-01 00:00:01.100Z  add a  by ann, complete from 1970-01-01 00:00:00Z: SELECT 1  f@2 sha256 aaaaaaaaaaaa'
    >>> event_line(Event(5, 1_048_340, "pause", "spend", ""))
    '5  1970-01-01 00:00:01.048Z  pause spend  by the pond itself'
    """
    value = "" if event.value is None else f" = {_json(event.value)}"
    whole = "" if event.complete_from_us is None else f", complete from {utc(event.complete_from_us)}"
    whole = f"; {event.hand_over}" if event.hand_over else whole
    text = "" if event.text is None else f": {' '.join(event.text.split())}"
    called = "".join(f"  {name} sha256 {digest[:_DIGEST]}" for name, digest in event.functions.items())
    who = event.who or "the pond itself"
    return f"{event.record}  {utc(event.at_us, 3)}  {event.kind} {event.name}{value}  by {who}{whole}{text}{called}"


def diff_lines(found: Differs) -> Iterator[str]:
    """Lines on the difference between a query and its shadow: the windows, the columns, and the rows of the response.

    >>> from millpond.service.api.messages import First
    >>> first = First(3_600_000_000, 7_200_000_000, 7_210_000_000)
    >>> print(*diff_lines(Differs(57, 0, 0, 0, since=32, first=first, closed_us=3_600_000_000)), sep="\\n")
    as of record 57: no window is compared yet
    the first one, from 1970-01-01 01:00:00Z to 1970-01-01 02:00:00Z, is due at event time 1970-01-01 02:00:10Z
    """
    if (
        (first := found.first) is not None
        and (found.closed_us is None or found.closed_us < first.end_us)
        and not (found.only_query or found.only_shadow)
    ):
        yield f"as of record {found.as_of}: no window is compared yet"
        span = f"from {utc(first.start_us)} to {utc(first.end_us)}"
        yield f"the first one, {span}, is due at event time {utc(first.due_us)}"
        return
    yield (
        f"as of record {found.as_of}: {found.same:,} rows are the same, {found.only_query:,} are only the query's (-), "
        f"{found.only_shadow:,} only its shadow's (+)"
    )
    if first is not None and found.closed_us is not None:
        yield (
            f"compared windows: the first from {utc(first.start_us)} to {utc(first.end_us)}, the last ends by "
            f"{utc(found.closed_us)}"
        )
    elif found.since is not None:
        yield f"compared rows: those emitted after record {found.since}"
    if found.pairs:
        have = "has" if found.pairs == 1 else "have"
        yield f"{count_of(found.pairs, 'pair')} of these rows {have} the same window and key; columns that differ:"
        yield from _columns_that_differ(found)
    pairs = [*zip(found.examples_of_query, found.examples_of_shadow, strict=False)][: found.pairs]
    yield from (line for query, shadow in pairs for line in (f"- {query}", f"+ {shadow}"))
    sides = (("-", found.only_query, found.examples_of_query), ("+", found.only_shadow, found.examples_of_shadow))
    for sign, many, examples in sides:
        yield from (f"{sign} {row}" for row in examples[len(pairs) :])
        if many > len(examples):
            yield f"{sign} … and {count_of(many - len(examples), 'row')} more, of which none is shown"


def _columns_that_differ(found: Differs) -> Iterator[str]:
    for one in found.columns:
        largest = "" if one.largest is None else f", by at most {one.largest:,.6g}"
        sides = (f"{side} in {many:,}" for side, many in (("greater", one.greater), ("less", one.less)) if many)
        which = " and ".join(sides)
        yield f"  {one.column}  in {count_of(one.rows, 'pair')}{largest}{which and f'; the shadow has it {which}'}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def trace_lines(trace: Trace) -> Iterator[str]:
    """A table of the steps of epochs: who does it, the step, the median of its own time, and how many epochs have it.

    >>> from millpond.runtime.inspect.timeline import EpochTimeline, trace_of
    >>> from millpond.spans import Span
    >>> spans = Span("driver", "job", 0, 75_000), Span("fold 1", "fold", 5, 8_005)
    >>> epoch = EpochTimeline(7, 3, 100, 0, 90_000, spans)
    >>> print("\\n".join(trace_lines(trace_of([epoch]))))
    who            step                  own time
    driver         epoch                    15.0 ms  1 epoch
    driver         job                      75.0 ms  1 epoch
    fold           fold                      8.0 ms  1 epoch
    Own time: the median, without the steps within. The times of the driver add up
    to the time between two commits. Of parallel tasks, the slowest counts.
    """
    yield f"{'who':<14} {'step':<20} {'own time':>9}"
    for piece in pieces(trace):
        epochs = count_of(piece.epochs, "epoch")
        yield f"{piece.track:<14} {piece.name:<20} {piece.median_us / 1000:>8.1f} ms  {epochs}"
    yield "Own time: the median, without the steps within. The times of the driver add up"
    yield "to the time between two commits. Of parallel tasks, the slowest counts."


def table_lines(names: Sequence[str], rows: Sequence[Sequence[object]], width: int | None) -> Iterator[str]:
    """Rows as a table; if it is wider than `width`, as one line per value. None: there is no limit.

    >>> print("\\n".join(table_lines(["page", "n"], [("/home", 12), ("/", None)], 80)))
    page    n
    -----  --
    /home  12
    /
    >>> print("\\n".join(table_lines(["page", "n"], [("/home", 12)], 8)))
    page  /home
    n     12
    """
    if not names:
        return
    names = [printable(name) for name in names]
    shown = [["" if one is None else printable(str(one)) for one in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    if width is None or sum(widths) + 2 * len(widths) - 2 <= width:
        right = [any(isinstance(row[at], int | float | Decimal) for row in rows) for at in range(len(names))]
        for line in (names, ["-" * one for one in widths], *shown):
            cells = zip(line, widths, right, strict=True)
            yield "  ".join(text.rjust(size) if end else text.ljust(size) for text, size, end in cells).rstrip()
        return
    label = min(max(map(len, names)), width // 2)
    room = max(width - label - 2, 5)
    for number, row in enumerate(shown):
        if number:
            yield ""
        for name, text in zip(names, row, strict=True):
            for at in range(0, max(len(text), 1), room):
                yield f"{'' if at else name[:label]:<{label}}  {text[at : at + room]}".rstrip()
