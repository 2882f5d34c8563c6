"""The kinds of state, by the kind of a group's windows: to add one, write a `State` and list it here."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupKind, GroupPlan
from millpond.runtime.fold.count_state import CountState
from millpond.runtime.fold.distinct_state import DistinctState
from millpond.runtime.fold.pattern_state import PatternState
from millpond.runtime.fold.processed_state import ProcessedState
from millpond.runtime.fold.session_state import SessionState
from millpond.runtime.fold.state import State
from millpond.runtime.fold.time_state import TimeState
from millpond.runtime.fold.top_state import TopState

STATES: Mapping[GroupKind, type[State]] = {
    "time": TimeState, "session": SessionState, "count": CountState, "distinct": DistinctState,
    "top": TopState, "pattern": PatternState, "processed": ProcessedState,
}  # fmt: skip


def state_kind(group: GroupPlan) -> type[State]:
    """The state of a group's kind."""
    return STATES[group.kind]


def migrates_by_key(owner: GroupPlan | SideLog) -> bool:
    """Whether a group's state of keys that do not move stays as it is; the sides of joins are rebuilt."""
    return isinstance(owner, GroupPlan) and state_kind(owner).migrates_by_key(owner)
