"""Explains why a query emits no row: one paragraph per cause, most important first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from millpond.clock import utc
from millpond.control.checks.brokers import unreachable_brokers
from millpond.control.diagnose.facts import Facts, OwnersChanged, Reasons, source_folder
from millpond.control.diagnose.why_message import Cause, QueryFates
from millpond.control.diagnose.why_report import Why
from millpond.errors import OverBudgetError, SetupError, TooManyPairsError
from millpond.followers.sinks.kinds import sink_kind
from millpond.model.expressions import Expression, render
from millpond.model.join import Join, Side
from millpond.model.query import Query
from millpond.model.selection import Selection
from millpond.model.stream import Stream
from millpond.model.windows import Framed, Processed, Session
from millpond.plan.explain.amounts import count_of, duration
from millpond.plan.explain.join_text import near_text
from millpond.plan.options.output_modes import BY_JOIN
from millpond.reconfigure.inner_reports import plain_names, relabelled

_SHOWN = 3


def explain_why(facts: Facts) -> Why:
    """The causes that the facts show; there is always one."""
    names = dict(facts.labels)
    found = ((cause, plain_names(relabelled(cause.text, names), "its inner query")) for cause in _causes(facts))
    return Why(facts, tuple(msgspec.structs.replace(cause, text=text) for cause, text in found))


def _causes(facts: Facts) -> Iterator[Cause]:
    counts, since = facts.recent.counts, facts.recent.counts_since_applied
    if facts.quarantined:
        yield _quarantined(facts)
        return
    if facts.failure:
        yield Cause("failing", f"The pond commits no epoch, and tries again: {facts.failure}")
    moved = facts.recent.owners_changed
    if moved is not None and moved.commit_delay_us is None:
        yield Cause("state-moves", f"{_changed(moved)} The next epoch moves their state first, so it takes longer.")
    if halted := next((query for query in facts.upstream if query[1]), None):
        yield Cause(
            "upstream-quarantined",
            f"It reads rows of {halted[0]}, which is quarantined: {halted[1]} "
            "Windows that need its missing rows stay open.",
        )
    if not counts.read and not counts.rows:
        yield _nothing_read(facts)
    elif since.read:
        yield _none_applied(facts)
    if not counts.rows and counts.withheld:
        yield _withheld(facts)
    yield from _sinks(facts)
    if facts.due is not None:
        yield _waiting(facts)
    elif isinstance(facts.query, Join):
        yield _both_awaited(facts, facts.query)
    elif facts.first is not None:
        yield _not_complete_yet(facts)
    elif counts.applied and not counts.rows and not counts.withheld:
        yield _no_open_window(facts)
    if facts.running is False:
        yield Cause(
            "not-running",
            f"No driver runs: the last one, process {facts.recent.pid} on {facts.recent.host}, has ended. "
            "`millpond run` on the same folder continues where it stopped.",
        )
    if moved is not None and moved.commit_delay_us is not None:
        took = f"So the newest epoch migrated their state, and was committed {moved.commit_delay_us / 1e6:.1f} s later."
        yield Cause("state-moves", f"{_changed(moved)} {took}")
    if counts.late + counts.dead > since.late + since.dead:
        yield _some_lost(facts)
    if counts.rows:
        out = "row was emitted" if counts.rows == 1 else "rows were emitted"
        yield Cause(
            "rows-are-out", f"{counts.rows:,} {out}{_span(facts)}, the last by record {facts.recent.last_rows_n}."
        )
    if facts.upstream:
        # a stream of rows has the name of its query
        nearest = [name for name, _ in facts.upstream if name in facts.query.streams]
        others = [name for name, _ in facts.upstream if name not in nearest]
        it, which = ("it", nearest[0]) if len(nearest) == 1 else ("them", "either")
        through = f", and through {it} those of {', '.join(others)}" if others else ""
        yield Cause(
            "reads-rows",
            f"It reads the rows of {' and '.join(nearest)}{through}, one epoch after they are committed: "
            f"run `millpond why` for {which}, too.",
        )


def _changed(moved: OwnersChanged) -> str:
    return f"The owners of buckets changed by record {moved.n} ({moved.why})."


def _quarantined(facts: Facts) -> Cause:
    name = facts.query.name
    cure = (
        f"Widen the type (cast to double) or guard the expression in a new version, `millpond alter {name}`: it begins "
        "with the windows that start after the change. For all windows, use a new pond."
    )
    if isinstance(facts.query, Join) or facts.quarantined.startswith(f"[{TooManyPairsError.code}]"):
        cure = "Use the corrected query in a new pond."
    text = f"It is quarantined and emits no more rows: {facts.quarantined} The other queries continue."
    has_own_cure = facts.quarantined.startswith(f"[{OverBudgetError.code}]")
    return Cause("quarantined", text if has_own_cure else f"{text} {cure}")


def _nothing_read(facts: Facts) -> Cause:
    stream = facts.stream.name
    if facts.complete_us is not None:
        text = f"No event of the stream {stream} was read since {facts.query.name} was added."
    elif facts.recent.epochs:
        text = f"{_epochs(facts)}, but not one event of the stream {stream} was read{_span(facts)}."
    else:
        text = f"No event of the stream {stream} was read: no epoch has been committed."
    if facts.stream.upstreams:
        return Cause("nothing-read", text)
    place = source_folder(facts.stream)
    if place is None:
        with suppress(SetupError):
            for note in unreachable_brokers((facts.stream,)):
                return Cause("nothing-read", f"{text} {note.what} {note.cure}")
        cure = "Check that its source has new events." if facts.recent.epochs or facts.complete_us is not None else (
            "The first one may still run: `millpond status` shows how many records wait."
        )  # fmt: skip
        return Cause("nothing-read", f"{text} {cure}")
    folder, some = place
    if not folder.exists():
        return Cause("nothing-read", f"{text} Its folder {folder} does not exist: check the path.")
    if not some:
        return Cause("nothing-read", f"{text} Its folder {folder} holds no file that Spark would read.")
    return Cause("nothing-read", f"{text} Its folder {folder} holds files: run the pond to read them.")


def _none_applied(facts: Facts) -> Cause:
    since = facts.recent.counts_since_applied
    reasons = _reasons(facts, since)
    after = "" if facts.recent.last_applied_n is None else f" since record {facts.recent.last_applied_n}"
    events = f"{since.read:,} event{'' if since.read == 1 else 's'} read{after or _span(facts)}"
    for code, (count, reason, advice) in reasons.items():
        if count == since.read:
            return Cause(code, f"All of the {events} are {reason}.{advice}")
    return Cause("none-applied", f"None of the {events} was applied: {_listed(reasons)}")


def _some_lost(facts: Facts) -> Cause:
    counts = facts.recent.counts
    reasons = _reasons(facts, counts)
    del reasons["all-filtered"]
    return Cause(
        "some-lost",
        f"It did not count {counts.late + counts.dead:,} of the {counts.read:,} events read{_span(facts)}: "
        f"{_listed(reasons)}",
    )


_Fates = dict[str, tuple[int, str, str]]


def _listed(reasons: _Fates) -> str:
    found = [reason for reason in reasons.values() if reason[0]]
    parts = "; ".join(f"{count:,} {reason}" for count, reason, _ in found)
    return f"{parts}.{''.join(advice for _, _, advice in found)}"


def _reasons(facts: Facts, counts: QueryFates) -> _Fates:
    """By the code for all events: how many events were not applied, why, and sentences of advice, if any."""
    query = facts.query
    where = "" if isinstance(query, Join) or query.where is None else f" {render(query.where)}"
    raises = (
        "an expression of the query fails for them (a cast, an overflow, a division by zero), or the record does not "
        "parse into the columns of its stream"
    )
    letters = ", ".join(f"`millpond dlq list {folder}`" for _, folder in facts.dead_letters)
    others = " and ".join(stream for stream, _ in facts.dead_letters)
    recent, known = facts.recent, facts.dead_reasons
    written = recent.letters
    if counts is recent.counts_since_applied:
        written, known = recent.letters_since_applied, facts.dead_reasons_since_applied
    exact = see = ""
    if known and written >= counts.dead:  # otherwise others have no dead letter
        exact = f"{known[0][0]} ({letters})" if len(known) == 1 else "of several reasons"
        see = _by_reason(others, written == counts.dead, known, letters) if len(known) > 1 else ""
    elif letters:
        see = f" The dead letters of {others} have the reasons for its records: {letters}."
    reasons = {"all-filtered": (counts.filtered, f"filtered by WHERE{where}, which is not true for any of them", "")}
    if isinstance(query, Selection):
        return reasons | {"all-dead": (counts.dead, f"dead: {exact or raises}", see)}
    sides = [*query.sides.values()] if isinstance(query, Join) else [query]
    delays, times = (" or ".join(dict.fromkeys(made)) for made in zip(
        *((duration(_late_after_us(side)), side.event_time) for side in sides), strict=True
    ))  # fmt: skip
    corrected = isinstance(query, Query) and query.corrected_for_us
    of = "the delay plus the time in which rows are corrected" if corrected else "the delay"
    reasons["all-late"] = (
        counts.late,
        f"late: {delays} ({of}) or more behind {_BY_PARTITION if _has_order(facts.stream) else _BY_EPOCH}",
        f"{_IN_ORDER_OF_TIME if _is_of_files(facts.stream) else ''} A longer DELAY "
        f"{_OR_BY_JOIN if isinstance(query, Join) and query.late_by != BY_JOIN else ''}waits for more.",
    )
    computed = "" if facts.stream.derived is None else f", cannot be computed ({facts.stream.derived.text})"
    missing = f"{times} is missing{computed} or {_ahead(facts)}"
    reasons["all-dead"] = counts.dead, f"dead: {exact or f'{missing}, or {raises}'}", see
    return reasons


def _by_reason(streams: str, all_its_own: bool, reasons: Reasons, letters: str) -> str:
    """Lines on the number of dead letters by reason; some may be those of other queries."""
    whose = "" if all_its_own else f", also those of other queries over {streams}"
    lines = [f"  {number:,}  {reason}" for reason, number in reasons[:_MOST_REASONS]]
    more = [f"  and {count_of(left, 'more reason')}"] if (left := len(reasons) - _MOST_REASONS) > 0 else []
    return "\n".join([f" The newest dead letters by reason{whose} ({letters}):", *lines, *more])


_MOST_REASONS = 10
"""The most reasons of dead letters that are listed: with a schema registry, a producer can cause any number."""


_BY_EPOCH = "the newest event of earlier epochs, or in a window that was closed at the end of all input (`--drain`)"
_BY_PARTITION = (
    "an earlier record of their partition, or in a window that was closed while their partition was idle or at the end "
    "of all input (`--drain`)"
)
_IN_ORDER_OF_TIME = " Files are read in the order of their modification times."
_OR_BY_JOIN = "or 'late.by' = 'join' "


def _has_order(stream: Stream) -> bool:
    """Whether events are judged by the earlier ones of their partition, and not by those of earlier epochs."""
    return stream.order is not None and stream.order.offset is not None


def _is_of_files(stream: Stream) -> bool:
    return stream.order is None and (stream.source is None or stream.source.option("path") is not None)


def _ahead(facts: Facts) -> str:
    ahead = facts.stream.max_ahead_us
    return "out of range" if ahead is None else f"more than {duration(ahead)} ahead of the driver's clock"


def _withheld(facts: Facts) -> Cause:
    query = facts.query
    having = f" {_named(query, query.having)}" if isinstance(query, Query) and query.having is not None else ""
    count = facts.recent.counts.withheld
    what = "The one row" if count == 1 else f"All {count:,} rows"
    of = "changed" if isinstance(query, Query) and query.updating else "closed"
    return Cause("having", f"{what} of {of} windows{_span(facts)} did not meet HAVING{having}.")


def _late_after_us(reader: Query | Side) -> int:
    return reader.late_after_us if isinstance(reader, Query) else reader.delay_us


def _named(query: Query, having: Expression) -> str:
    """HAVING with the aggregates inserted for their positions."""
    text = render(having)
    for i, aggregate in reversed(list(enumerate(query.aggregates))):
        argument = ", ".join(map(render, aggregate.arguments)) or "*"
        text = text.replace(f"agg:{i}", f"{aggregate.function}({argument})")
    for i, key in reversed(list(enumerate(query.keys))):
        text = text.replace(f"key:{i}", render(key))
    return text


def _sinks(facts: Facts) -> Iterator[Cause]:
    sink, rows_n = facts.query.sink, facts.recent.last_rows_n
    for error in facts.errors:
        yield Cause("sink-behind", f"Rows are committed, but the sink does not accept them. {error} It is retried.")
    if facts.errors or rows_n is None:
        return
    place = f"{sink.format} {sink.path}" if sink.path else sink.format
    if facts.sink_n is not None and facts.sink_n < rows_n and not sink.goes_nowhere:
        hint = "The driver publishes them. If it has an error, its own output shows it." if facts.running else (
            "The next `millpond run` on this folder publishes them, without reading events again."
        )  # fmt: skip
        yield Cause(
            "sink-behind",
            f"Rows are committed up to record {rows_n}, but the sink ({place}) "
            f"{'has none yet' if facts.sink_n < 0 else f'has reached record {facts.sink_n}'}. {hint}",
        )
    if sink.goes_nowhere and not facts.query.serve:
        yield Cause(
            "no-sink", "It has no sink: rows are computed and counted, but not written. Give it USING parquet and a "
            "'path', or 'serve' = 'true'.",
        )  # fmt: skip
    if sink_kind(sink.format).cursor == "process":
        yield Cause("in-memory", f"Its rows are kept in its driver's memory: pond.table({facts.query.name!r}) there.")


def _waiting(facts: Facts) -> Cause:
    due, query = facts.due, facts.query
    assert due is not None
    assert isinstance(query, Query)
    slowest = facts.slowest
    window_kind, unless = "window", ""
    if isinstance(query.window, Session):
        window_kind, unless = "session", ", if no event prolongs it"
    where, idle = facts.stream.name, [part.idle for part in facts.partitions]
    if not all(idle):
        where = f"every source partition of {where}{' that is not idle' if any(idle) else ''}"
    needs = f"an event of {utc(due.needs_us)} or later in {where}"
    newest = f"the newest is {utc(facts.newest_us)}"
    if facts.upstream:
        needs = f"{facts.upstream[0][0]} to have emitted all rows before {utc(due.needs_us)}"
        newest = f"it has emitted all rows up to {utc(facts.newest_us)}"
    row = f"The next row is due when the {window_kind} {utc(due.start_us)} to {utc(due.end_us)} closes{unless}. "
    end = "end"
    if isinstance(query.window, Framed):
        time, end = utc(due.needs_us - query.delay_us), "time"
        row = f"The next row is due for the event of {time}. "
        if isinstance(query.window, Processed):
            row = f"The next event or timer of a key is processed at {time}. "
    text = f"{row}That needs {needs} (its {end} plus the delay of {duration(query.delay_us)}); {newest}."
    if slowest:
        names = [
            f"{part.name} ({'no event yet' if part.newest_us is None else utc(part.newest_us)})" for part in slowest
        ]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        order = facts.stream.order
        rest = "" if order is None else f", or to be idle for {duration(order.idle_after_us)} while a driver runs"
        which = "partition" if len(names) == 1 else "partitions"
        text += f" It waits for {which} {', '.join(names[:_SHOWN])}{more} to reach that time{rest}."
    if facts.running is False:
        text += " At the end of all input, `millpond run --once --drain` closes the open windows."
    return Cause("window-open", text)


def _not_complete_yet(facts: Facts) -> Cause:
    """The query was added later, and its first complete window has no event yet."""
    first, query = facts.first, facts.query
    assert first is not None and isinstance(query, Query)
    applied = facts.recent.counts.applied
    earlier = (
        f" The {applied:,} event{'' if applied == 1 else 's'} applied until now belong{'s' if applied == 1 else ''} to "
        "windows that start before that, which are not emitted (`millpond add --incomplete` emits them)."
    ) if applied else ""  # fmt: skip
    return Cause(
        "not-complete-yet",
        f"{query.name} was added while the pond ran, and is complete from {utc(facts.complete_us)} on. Its first "
        f"window is {utc(first.start_us)} to {utc(first.end_us)}: the first row can be emitted when an event of "
        f"{utc(first.needs_us)} or later was read from {facts.stream.name} (its end plus the delay of "
        f"{duration(query.delay_us)}); the newest is {utc(facts.newest_us)}.{earlier}",
    )


def _no_open_window(facts: Facts) -> Cause:
    applied = facts.recent.counts.applied
    events = f"The {applied:,} event{' that was' if applied == 1 else 's that were'} applied"
    text = f"{events} {'is' if applied == 1 else 'are'} in no window that is still open"
    if facts.complete_us is not None:
        text += f", or only in windows that start before {utc(facts.complete_us)}, from when it is complete"
    return Cause("no-open-window", f"{text}: the next row needs new events.")


def _both_awaited(facts: Facts, query: Join) -> Cause:
    """The cause that a join waits for both watermarks; which pairs it will emit is not known."""
    if len(query.streams) > 1:
        both = " and ".join(query.streams)
        what = f"the watermarks of {both} have both passed it; that of {facts.stream.name} is behind"
    else:
        what = f"the watermark of {facts.stream.name} has passed it; it is"
    of_rows = bool(facts.stream.upstreams)
    if facts.newest_us is None:
        what = "row" if of_rows else "event"
        return Cause("join-open", f"No {what} of {facts.stream.name} was seen, so no row of the join can be final.")
    newest = "it has all rows up to" if of_rows else "its newest event at"
    text = (
        f"A row of the join is emitted when {what} at {utc(facts.watermark_us)}, {newest} "
        f"{utc(facts.newest_us)}. A pair is {near_text(query)}."
    )
    if facts.running is False:
        text += " At the end of all input, `millpond run --once --drain` emits the rest."
    return Cause("join-open", text)


def _epochs(facts: Facts) -> str:
    return f"{facts.recent.epochs:,} epoch{'' if facts.recent.epochs == 1 else 's'} committed"


def _span(facts: Facts) -> str:
    return "" if facts.recent.reaches_start else f" in the last {facts.recent.epochs:,} epochs"
