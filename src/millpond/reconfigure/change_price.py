"""Computes the price of a change before it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millpond.model.change_json import Scale
from millpond.model.selection import AnyQuery
from millpond.model.stream import Relation, Stream
from millpond.plan.explain.plan_text import readable
from millpond.plan.explain.price import QueryPrice, price_of_query
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.plan.options.first_complete_window import FirstWindow, first_window
from millpond.plan.upstream.steps import inputs_of, with_inner
from millpond.reconfigure.apply import arranged, is_read, orphaned
from millpond.reconfigure.budgets import with_versions
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.changes import Add, Alter, Change, Drop, Shadow
from millpond.reconfigure.hand_over import hand_over_text
from millpond.reconfigure.inner_reports import labels, relabelled
from millpond.reconfigure.lifecycle import current, query_of
from millpond.reconfigure.placement_changes import Moved, moved_by
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import Setting, closed_until, watermarks
from millpond.runtime.inputs.replay import recalled_bytes
from millpond.runtime.inspect.costs import Cost, costs
from millpond.runtime.task.task_values import Watermark

AT_ONCE = "at once"
"""Nothing is recomputed: the next epoch has complete results."""

COMPLETE_AT_ONCE = "complete at once"
"""The data it needs was kept: a window that is open now is emitted with complete results."""

COMPLETE_LATER = "complete later"
"""Its first complete window begins after the events that were already read."""


STATE_MOVES = "state moves"
"""The next epoch has complete results, and migrates state to other instances before it continues."""


ROWS_MOVE = "rows are copied"
"""Epochs do not change; served rows are copied to another store in the meantime."""


class Reread(NamedTuple):
    """The amount that a backfill reads of a source: bytes of files, or records."""

    bytes: int = 0
    records: int = 0


class Price(NamedTuple):
    """The price of a change.

    `cost`: one of the classes above. `complete_from_us`: the earliest start of a complete window that is emitted;
    None: all open windows. `rereads`: the read is restarted on its checkpoint, between two epochs. `freed`: bytes of
    state that are freed. `moved`: state that migrates to other instances. `effective_n`: the first epoch with the
    change, if no other record comes before the record of the change. `recalled`: bytes of retained events that its
    first epoch reads again. `source`: what a backfill reads again from the source, before the change is recorded.
    `first`: the first complete window, if windows have a fixed size and their rows are emitted when they close.
    `shards`: the shards that keep rows afterwards, if the change names them; `slots`: what moves between them.
    `adds`: what an added query shares with the others and adds to them, in lines, step by step; what stays of a
    dropped query, and who else reads its streams. `hand_over`: see `hand_over_text`.
    """

    cost: str
    complete_from_us: int | None = None
    rereads: bool = False
    freed: int = 0
    moved: Moved = Moved()
    effective_n: int = 0
    recalled: int = 0
    source: Reread = Reread()
    first: FirstWindow | None = None
    shards: tuple[str, ...] = ()
    slots: Moved = Moved()
    adds: str = ""
    hand_over: str = ""


def price_of(pond: KnownPond, change: Change, setting: Setting) -> Price:
    """The price of a change if it were made now; `setting` contains the layout of the read."""
    found = _price_of(pond, change, setting)
    if isinstance(change, Drop):
        cost = with_versions(pond.spec, costs(setting.plan, pond.manifest, {})).get(change.name, Cost())
        return found._replace(freed=cost.own_bytes, adds=_drop_text(pond, change.name, cost))
    if not isinstance(change, Add):
        return found
    streams, relations = (*pond.spec.streams, *change.streams), (*pond.spec.relations, *change.named)
    return found._replace(adds=price_by_step(setting.plan, change.stored.query, streams, relations))


def _drop_text(pond: KnownPond, name: str, cost: Cost) -> str:
    """What stays if a query with a cost is dropped, and which queries still read its streams."""
    query, by_name = query_of(pond.spec, name), {stream.name: stream for stream in pond.spec.streams}

    def read(query: AnyQuery) -> dict[str, None]:
        return dict.fromkeys(name for one in inputs_of(query, by_name) for name in by_name[one].declared_names)

    lines = []
    if cost.shared_bytes:
        lines.append(f"  shared    {cost.shared_bytes:,} bytes, its share of state that other queries need, stay")
    for stream in read(query):
        others = sorted(one.name for one in current(pond.spec) if one.name != name and stream in read(one))
        who = f"is also read by {', '.join(others)}" if others else "no other query reads"
        lines.append(f"  reads     {stream}, which {who}")
    if query.serve:
        lines.append("  served    its rows are no longer served")
    sink = query.sink
    if sink.format == "memory":
        lines.append("  rows      those in memory are freed")
    elif where := sink.path or next((text for key, text in sink.options if key in ("topic", "table")), None):
        lines.append(f"  rows      those in {sink.format} {where} stay")
    return "".join(f"{line}\n" for line in lines)


def price_by_step(
    plan: Plan, added: AnyQuery, streams: Sequence[Stream], relations: Sequence[Relation],
    state: Callable[[QueryPrice], Sequence[str]] = lambda _: (),
) -> str:  # fmt: skip
    """What a query adds to a plan, step by step; a step of other queries is only named; `state`: see `price_text`."""
    names = labels([added], streams, relations) | labels(plan.all_queries, streams, relations)
    known, found = {query.name for query in plan.all_queries}, []
    for query in with_inner([added], {stream.name: stream for stream in streams}):
        if query.name in known:
            found.append(f"shared: {names[query.name]}\n")
        else:
            found.append(price_of_query(plan, query, state))
            plan = build_plan([*plan.all_queries, query])
    return relabelled(readable("".join(found), plan), names)


def _price_of(pond: KnownPond, change: Change, setting: Setting) -> Price:
    effective_n = pond.manifest.n + 2
    if isinstance(change, Scale):
        return Price(STATE_MOVES, moved=moved_by(pond, change), effective_n=effective_n)
    after = arranged(setting, applied(pond.spec, pond.manifest.n + 1, change))
    gone = (pond.manifest.sections[place] for place in orphaned(after.plan, pond.manifest))
    freed = sum(section.size for section in gone)
    rereads = setting.layout is not None and not is_read(after)
    since = change.whole_us if isinstance(change, Add) else None
    since = change.since_us if isinstance(change, Alter | Shadow) else since
    if not isinstance(since, int):
        backfilled = isinstance(change, Add) and isinstance(change.backfill_us, int)
        return Price(COMPLETE_AT_ONCE if backfilled else AT_ONCE, None, rereads, freed, effective_n=effective_n)
    assert isinstance(change, Add | Alter | Shadow)
    marks = watermarks(pond.manifest)
    query, again = change.stored.query, isinstance(change, Add) and isinstance(change.backfill_us, int)
    seen = [marks.get(stream, Watermark()).max_time_us for stream in query.streams]
    newest = max((time for time in seen if time is not None), default=None)
    first = first_window(query, since, None if again else closed_until(query, pond.manifest), after.streams)
    covered = newest is not None and (since if first is None else first.start_us) <= newest
    cost = COMPLETE_AT_ONCE if covered else COMPLETE_LATER
    recalled = 0 if again else recalled_bytes(after.plan, after.recalled, pond.manifest)
    return Price(
        cost, since, rereads, freed, effective_n=effective_n, recalled=recalled, first=first,
        hand_over=hand_over_text(change),
    )  # fmt: skip
