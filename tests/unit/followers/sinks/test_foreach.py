"""Functions that receive the rows of each epoch: in order, at least once, and never past a failed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.inputs.log_examples import numbered
from millpond.errors import CorruptError, QueryTypeError, TruthError, UserFunctionError
from millpond.followers.sinks.make_sink import sink_cursor, sink_follower
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding

QUERY = Query("q", "s", "ts", 0, Sliding(60_000_000, 60_000_000), (), (), (), sink=Sink("foreach"))


class Recorder:
    """Takes rows, and fails in these epochs, once each."""

    def __init__(self, *fails: int) -> None:
        self.calls: list[tuple[int, list[Any]]] = []
        self._fails = set(fails)

    def __call__(self, rows: pa.RecordBatch, epoch: int) -> None:
        assert isinstance(rows, pa.RecordBatch) and rows.schema.names == ["customer", "w", "total"]
        self.calls.append((epoch, rows["customer"].to_pylist()))
        if epoch in self._fails:
            self._fails.remove(epoch)
            raise ValueError("not\ntoday")


@pytest.fixture
def filled(pond: Any, make_row: Any) -> Any:
    pond.claim()
    pond.epoch({"q": [make_row(c, 1.0) for c in "abc"]}, instances=2)
    pond.epoch()
    pond.epoch({"q": [make_row("d", 1.0)], "other": [make_row("x", 1.0)]})
    return pond


def follower(pond: Any, recorder: Recorder, since: int = -1) -> Any:
    return sink_follower(QUERY, "p", pond.rows, pond.path / "cursors", since=since, functions={"q": recorder})


def test_an_epoch_is_one_call_and_one_without_rows_is_none(filled: Any) -> None:
    recorder = Recorder()
    sink = follower(filled, recorder)
    filled.feed(sink)
    filled.feed(sink, 0)
    assert recorder.calls == [(1, ["a", "b", "c"]), (3, ["d"])]
    assert sink.cursor().n == follower(filled, recorder).cursor().n == sink_cursor(QUERY, filled.path / "cursors") == 3
    with pytest.raises(TruthError, match="is at record 3 and was given 9"):
        sink.apply(9, numbered(9), filled.at[3])


def test_an_epoch_that_failed_comes_again_before_any_later_one(filled: Any) -> None:
    recorder = Recorder(1)
    sink = follower(filled, recorder)
    with pytest.raises(UserFunctionError, match=r"takes the rows of q raised ValueError in epoch 1: not today\."):
        filled.feed(sink)
    filled.feed(sink)
    assert [epoch for epoch, _ in recorder.calls] == [1, 1, 3]
    assert recorder.calls[0] == recorder.calls[1]


def test_a_cursor_that_was_lost_repeats_and_one_that_was_added_later_begins_there(filled: Any) -> None:
    recorder = Recorder()
    filled.feed(follower(filled, recorder))
    for file in (filled.path / "cursors").iterdir():
        file.unlink()
    filled.feed(follower(filled, recorder))
    filled.feed(follower(filled, recorder, since=1))
    assert [epoch for epoch, _ in recorder.calls] == [1, 3, 1, 3]


def test_an_older_number_of_one_that_was_overtaken_takes_nothing_back(filled: Any) -> None:
    recorder = Recorder()
    sink = follower(filled, recorder)
    filled.feed(sink)
    file = filled.path / "cursors" / "q.foreach"
    file.write_text('{"n": 1}')
    assert sink.cursor().n == 3
    filled.epoch()
    filled.feed(sink)
    newest = file.read_text()
    assert newest.startswith('{"n":4,') and [epoch for epoch, _ in recorder.calls] == [1, 3]
    late = follower(filled, Recorder(), since=2)  # wakes in the middle of record 3
    with late._delivering(filled.entries[3], None):
        pass
    assert file.read_text() == newest


def test_lost_rows_are_reported_with_the_file_that_skips_them(filled: Any) -> None:
    for file in filled.path.glob("delta/*/*.arrow"):
        file.unlink()
    recorder = Recorder()
    sink = follower(filled, recorder)
    with pytest.raises(CorruptError, match=r"The function of q does not have them\..*q\.foreach"):
        filled.feed(sink)
    (filled.path / "cursors" / "q.foreach").write_text('{"n": 3}')
    assert sink.cursor().n == 3


def test_a_query_without_its_function_is_refused(pond: Any, tmp_path: Path) -> None:
    with pytest.raises(QueryTypeError, match=r"pond\.foreach\('q', function\)"):
        sink_follower(QUERY, "p", pond.rows, tmp_path)
