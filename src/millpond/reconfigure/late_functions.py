"""Quarantines queries whose Python functions do not return: Spark's workers end such calls, and count them.

Each late call takes its time limit, and its event is dead. The other queries would wait for it in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from millpond.errors import UserFunctionError
from millpond.model.selection import AnyQuery, foreign_below
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.groups.columns_read import columns_read
from millpond.plan.upstream.steps import inner_of
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.probation import quarantine_changes
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch

LateCalls = Mapping[tuple[str, str], int]
"""Numbers of late calls since the process began.

They are counted by what calls the function, and by a text that names the function and its time limit. The former is the
key of a `Foreign`, the name of a derived stream, or one of its columns (`owner_in`).
"""

MOST = 3
"""A query is quarantined after this number of late calls without an epoch between them that had none."""


def owner_in(stream: str, column: str) -> str:
    """The name for `LateCalls` of a column of a derived stream."""
    return f"{stream}\n{column}"


class LateFunctions:
    """Watches the late calls of one pond; each driver creates its own. `calls` returns the current numbers."""

    def __init__(self, calls: Callable[[], LateCalls]) -> None:
        self._calls = calls
        self._before = dict(calls())
        self._late: dict[tuple[str, str], int] = {}
        self._makes: list[Make] = []
        self._has_ended = False

    def committed(self, epoch: CommittedEpoch) -> None:
        """Count the late calls of an epoch, for the queries whose expressions made them."""
        now, before = dict(self._calls()), self._before
        self._before = now
        new = {of: count - before.get(of, 0) for of, count in now.items() if count > before.get(of, 0)}
        self._late = {of: self._late.get(of, 0) + count for of, count in new.items()}
        if epoch.spec is not None:
            for (key, what), count in self._late.items():
                if count >= MOST:
                    self._makes += _ended(epoch.spec, key, f"{what}, {count} times")

    def changes(self) -> list[Make]:
        """The changes that quarantine queries now; each is returned once."""
        makes, self._makes = self._makes, []
        self._has_ended = self._has_ended or bool(makes)
        return makes

    def ended(self) -> bool:
        """Whether queries were quarantined, so that the streams must be read anew, without their functions; once."""
        ended, self._has_ended = self._has_ended, False
        return ended


def _ended(spec: PondSpec, key: str, what: str) -> Iterator[Make]:
    """The changes that end every query, shadow or replaced version that uses an expression or a derived stream."""
    why = str(UserFunctionError(f"{what}.", "Mend it, drop the query, and add it again."))
    by_name = {stream.name: stream for stream in spec.streams}
    calling = [
        query.name for query in spec.all_queries
        if any(_calls(step, key, spec.streams) for step in (*inner_of(query, by_name), query))
    ]  # fmt: skip
    return quarantine_changes(spec, calling, why)


def _calls(query: AnyQuery, key: str, streams: Iterable[Stream]) -> bool:
    name, _, column = key.partition("\n")
    foreign = foreign_below(query)
    if not column:
        return name in query.streams or any(node.key == key for node in foreign)
    if name not in query.streams:
        return False
    return any(column in node.columns for node in foreign) or any(
        column in columns_read(query, stream) for stream in streams if stream.name == name
    )
