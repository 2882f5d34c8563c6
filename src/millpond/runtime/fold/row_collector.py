"""Collects the result rows of an epoch by query, and drops the rows of a query that fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import OverflowedError, UserFunctionError
from millpond.model.query import Query
from millpond.plan.chains.parameter_feeds import Fed, merged
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.gather.shadow_diff import Differing
from millpond.runtime.inputs.parameter_feeds import share_of
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.rows.query_families import Family, Made
from millpond.runtime.task.task_values import FoldTask
from millpond.state.layout.delta import DeltaWriter


class Collected:
    """The rows that the queries of one group emit in an epoch; `counts` and `reasons` are those of the receipt."""

    def __init__(
        self, task: FoldTask, group: GroupPlan, delta: DeltaWriter, counts: dict[str, int], reasons: dict[str, str],
        differing: Differing,
    ) -> None:  # fmt: skip
        self._task, self._delta, self._counts, self._reasons = task, delta, counts, reasons
        self._group, self._differing = group, differing
        self._rows: dict[str, list[pa.RecordBatch]] = {}
        self._unread: dict[str, int] = {}
        self._counted: dict[Family, Ints] = {}
        self._read: dict[Family, Mask] = {}

    def is_going(self, plan: QueryPlan) -> bool:
        """Whether a query has not failed, neither in this epoch nor in an earlier one."""
        name = plan.query.name
        return name not in self._task.quarantined and f"raised:{name}" not in self._counts

    def read(self, family: Family) -> Mask:
        """For each query of a family, whether its rows are read, set a parameter, or are compared with a shadow."""
        if family not in self._read:
            replaced, feeding = self._task.replaced, {fed.query for fed in self._task.fed}
            self._read[family] = np.array([
                self._leaves(query) or query.name in self._differing.names
                or replaced.get(query.name, query.name) in feeding
                for query in (plan.query for plan in family.plans)
            ])  # fmt: skip
        return self._read[family]

    def _leaves(self, query: Query) -> bool:
        """Whether the rows of a query are read after they are written: by the view, a sink or another query."""
        return query.serve or query.sink.format != "noop" or query.name in self._task.feeds

    def take(self, family: Family, make: Callable[[], Made]) -> bool:
        """Add the rows of a family that `make` returns; False if one of its queries raised an error.

        If the family has only one query, that query has failed: its rows are dropped.
        """
        try:
            made = make()
        except (OverflowedError, UserFunctionError) as error:
            if len(family.plans) == 1:
                self._give_up(family.first.query.name, error)
            return False
        for name, rows in made.withheld.items():
            self._counts[f"withheld:{name}"] = self._counts.get(f"withheld:{name}", 0) + rows
        if made.unread is not None:  # these rows are computed and counted, but nobody reads them
            self._counted[family] = self._counted.get(family, 0) + made.unread
        for name, batch in made.rows.items():
            if len(family.plans) > 1 or self.read(family)[0]:
                self._rows.setdefault(name, []).append(batch)
            else:
                self._unread[name] = self._unread.get(name, 0) + batch.num_rows
        return True

    def _fed_by(self, query: str) -> list[Fed]:
        """The parameters that the rows of a query, or of a version of it, set."""
        name = self._task.replaced.get(query, query)
        return [fed for fed in self._task.fed if fed.query == name]

    def _give_up(self, name: str, error: OverflowedError | UserFunctionError) -> None:
        self._counts[f"raised:{name}"] = 1
        if isinstance(error, UserFunctionError):
            self._reasons[name] = str(error)
        self._rows.pop(name, None)
        self._unread.pop(name, None)

    def write(self) -> None:
        """Add all rows that are read to the delta, one section per query, and count all rows."""
        queries = {plan.query.name: plan.query for plan in self._group.queries} if self._rows else {}
        for query, found in self._rows.items():
            rows = sum(batch.num_rows for batch in found)
            self._counts[f"rows:{query}"] = rows
            of = self._task.replaced.get(query)
            for fed in self._fed_by(query):
                share = share_of(fed, found)
                if share is not None:
                    self._delta.fed[fed.name] = merged(self._delta.fed.get(fed.name), share)
            self._differing.add(query, found)
            if self._leaves(queries[query]):
                self._delta.add("rows", of or query, rows_stream(found), rows, {"version": query} if of else {})
        for family, counted in self._counted.items():
            for at in np.flatnonzero(counted).tolist():
                name = family.plans[at].query.name
                if f"raised:{name}" not in self._counts:
                    self._unread[name] = self._unread.get(name, 0) + int(counted[at])
        for query, rows in self._unread.items():
            self._counts[f"rows:{query}"] = rows
