"""The writer of rows: which section, count and reason each kind of row becomes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from millpond.errors import MillpondError, OverflowedError, UserFunctionError
from millpond.log.records import Section
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import ChangeEffects
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.rows.row_writer import RowWriter
from millpond.runtime.rows.shadow_diff import NET
from millpond.runtime.task.counters import Counters
from millpond.runtime.task.task_values import FoldTask
from millpond.state.layout.delta import DeltaWriter
from millpond.state.ports.files import Files

NOWHERE, SOMEWHERE = Sink("noop"), Sink("memory")


def query(name: str, sink: Sink = SOMEWHERE) -> Query:
    count = Aggregate("count", None, None, "bigint")
    output = (Named("n", Column("agg:0", "bigint")),)
    return Query(name, "s", "ts", 0, Sliding(10, 10), (Column("c", "string"),), (count,), output, sink=sink)


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int64())})


class Fold:
    """A writer over some queries, and what it has written."""

    def __init__(self, *registered: Query | Selection, effects: ChangeEffects | None = None, **task: object) -> None:
        plan = build_plan(list(registered), changes=effects or ChangeEffects())
        base = FoldTask("p", "", 1, plan, {}, {}, {}, (0,), "w")
        self.delta, self._counters = DeltaWriter(), Counters()
        self.writer = RowWriter(replace(base, **task), self.delta, self._counters)

    @property
    def counts(self) -> dict[str, int]:
        return self._counters.to_receipt({})

    def sections(self, folder: Path) -> list[Section]:
        return list(self.delta.finish(Files(folder), 1, 0, "a", {})[0].sections)

    def take(self, name: str, *batches: pa.RecordBatch) -> bool:
        return self.writer.collect((name,), lambda: QueryRows([RowBatch(name, batch) for batch in batches]))


def test_rows_of_a_query_are_one_section_once_they_are_complete(tmp_path: Path) -> None:
    fold = Fold(query("q"))
    assert fold.take("q", rows(1, 2)) and fold.take("q", rows(3))
    assert not fold.delta.sections
    fold.writer.flush()
    (section,) = fold.sections(tmp_path)
    assert (section.kind, section.group, section.rows, fold.counts) == ("rows", "q", 3, {"rows:q": 3})


def test_rows_without_readers_are_only_counted(tmp_path: Path) -> None:
    fold = Fold(query("q", NOWHERE))
    assert not fold.writer.is_read("q")
    fold.take("q", rows(1, 2))
    fold.writer.flush()
    assert (fold.sections(tmp_path), fold.counts) == ([], {"rows:q": 2})


def test_rows_that_a_query_reads_are_written_though_they_have_no_sink(tmp_path: Path) -> None:
    fold = Fold(query("q", NOWHERE), upstream_queries=frozenset({"q"}))
    fold.take("q", rows(1))
    fold.writer.flush()
    assert [section.group for section in fold.sections(tmp_path)] == ["q"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OverflowedError("too large", "widen it"), {}),
        (UserFunctionError("it failed", "mend it"), {"q": "[MP-FUNCTION] it failed mend it"}),
    ],
)
def test_a_query_that_fails_emits_nothing(tmp_path: Path, error: MillpondError, reason: dict[str, str]) -> None:
    def fail() -> QueryRows:
        raise error

    fold = Fold(query("q"), query("other"))
    fold.take("q", rows(1))
    fold.take("other", rows(2))
    assert not fold.writer.collect(("q",), fail)
    assert (fold.writer.is_active("q"), fold.writer.is_active("other")) == (False, True)
    fold.writer.flush()
    assert [section.group for section in fold.sections(tmp_path)] == ["other"]
    assert (fold.counts, fold.writer.reasons) == ({"raised:q": 1, "rows:other": 1}, reason)


def test_of_several_queries_that_fail_together_none_is_blamed() -> None:
    def fail() -> QueryRows:
        raise OverflowedError("too large", "widen it")

    fold = Fold(query("q"), query("other"))
    assert not fold.writer.collect(("q", "other"), fail)
    assert fold.writer.is_active("q") and fold.writer.is_active("other") and not fold.counts


def test_rows_of_a_replaced_version_belong_to_its_query(tmp_path: Path) -> None:
    fold = Fold(query("q"), query("q@2"), replaced={"q@2": "q"})
    fold.take("q@2", rows(1))
    fold.writer.flush()
    (section,) = fold.sections(tmp_path)
    assert (section.group, section.info, fold.counts) == ("q", {"version": "q@2"}, {"rows:q@2": 1})


def test_late_rows_and_dead_letters_have_sections_and_counts_of_their_own(tmp_path: Path) -> None:
    fold = Fold(query("q"))
    fold.writer.write(
        [RowBatch("q", rows(1), "late"), RowBatch("q", rows(2, 3), "late"), RowBatch("s", rows(4), "dead")]
    )
    found = [(section.kind, section.group, section.rows) for section in fold.sections(tmp_path)]
    assert found == [("late", "q", 3), ("dead", "dead letters of s", 1)]
    assert fold.counts == {"late_rows:q": 3, "dead_letters:stream s": 1}


def test_rows_of_stateless_queries_were_counted_in_the_gather(tmp_path: Path) -> None:
    fold = Fold(Selection("q", "s", (Named("n", Column("n", "bigint")),), sink=SOMEWHERE))
    fold.writer.write([RowBatch("q", rows(1, 2))])
    assert [(one.group, one.rows) for one in fold.sections(tmp_path)] == [("q", 2)]
    assert not fold.counts


def test_differences_to_a_shadow_are_written_at_the_end(tmp_path: Path) -> None:
    fold = Fold(query("q"), query("q@shadow", NOWHERE), effects=ChangeEffects(shadows={"q": "q@shadow"}))
    fold.take("q", rows(1, 2))
    fold.take("q@shadow", rows(1, 3))
    fold.writer.flush()
    fold.writer.finish()
    found = [(section.kind, section.group, section.rows) for section in fold.sections(tmp_path)]
    assert found == [("rows", "q", 2), ("differing", "q", 2)]
    body = fold.delta.finish(Files(tmp_path), 1, 0, "a", {})
    last = body[0].sections[-1]
    written = pa.ipc.open_stream(body[1][last.offset : last.offset + last.size]).read_all()
    assert sorted(map(tuple, (row.values() for row in written.to_pylist()))) == [(2, 1), (3, -1)]
    assert written.schema.names == ["n", NET]
