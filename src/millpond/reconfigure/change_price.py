"""The price of a change, computed before it is made."""

from __future__ import annotations

from typing import NamedTuple

from millpond.model.change_json import Scale
from millpond.plan.options.first_complete_window import FirstWindow, first_window
from millpond.reconfigure.apply import arranged, is_read, orphaned
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.changes import Add, Alter, Change, Shadow
from millpond.reconfigure.placement_changes import Moved, moved_by
from millpond.reconfigure.validate import Pond
from millpond.runtime.epoch import Setting, watermarks
from millpond.runtime.inputs.replay import recalled_bytes
from millpond.runtime.task.task_values import Watermark

AT_ONCE = "at once"
"""Nothing is computed anew: the next epoch is whole."""

COMPLETE_AT_ONCE = "complete at once"
"""What it needs was kept: a window that is open now is answered completely."""

COMPLETE_LATER = "complete later"
"""Its first complete window begins after what was seen."""


STATE_MOVES = "state moves"
"""The next epoch is whole, and moves state to other instances before it goes on."""


ROWS_MOVE = "rows are copied"
"""Epochs do not change; served rows are copied to another store meanwhile."""


class Reread(NamedTuple):
    """What a backfill reads of a source: bytes of files, or records."""

    bytes: int = 0
    records: int = 0


class Price(NamedTuple):
    """What a change costs.

    `cost`: one of the classes above. `complete_from_us`: the earliest start of a window that is answered, and whole;
    None: whatever is open. `rereads`: the read is restarted on its checkpoint, between two epochs. `freed`: bytes of
    state that go with it. `moved`: what other instances get. `effective_n`: the first epoch that is answered so, if no
    record comes before the change's. `recalled`: bytes of retained events that its first epoch reads again. `source`:
    what a backfill reads again of the source, before the change is recorded. `first`: the first complete window, where
    windows have a fixed size and their rows are emitted when they close.
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


def price_of(pond: Pond, change: Change, setting: Setting) -> Price:
    """The price of a change made now; `setting` has the layout of what is read."""
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
    seen = [marks.get(stream, Watermark()).max_time_us for stream in change.asked.query.streams]
    newest = max((time for time in seen if time is not None), default=None)
    first = first_window(change.asked.query, since)
    covered = newest is not None and (since if first is None else first.start_us) <= newest
    cost = COMPLETE_AT_ONCE if covered else COMPLETE_LATER
    again = isinstance(change, Add) and isinstance(change.backfill_us, int)
    recalled = 0 if again else recalled_bytes(after.plan, after.recalled, pond.manifest)
    return Price(cost, since, rereads, freed, effective_n=effective_n, recalled=recalled, first=first)
