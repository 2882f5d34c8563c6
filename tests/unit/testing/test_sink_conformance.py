"""The conformance suite of sinks finds sinks that lose, repeat or skip rows, or whose cursor is elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millpond.followers.sinks import kinds
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import FileDelivery
from millpond.followers.sinks.kinds import SinkKind
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.plugins import Registry
from millpond.testing import Target, check_sink


class Lines(FileDelivery):
    """Appends the numbers of rows to a file."""

    def __init__(self, context: SinkContext) -> None:
        super().__init__(context.query.name, context.rows, "The file", context.cursor_file, context.since)
        self._out = context.path

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        with self._out.open("a") as file:
            file.write("".join(f"{n}\n" for n in table["n"].to_pylist()))


class Losing(Lines):
    """Leaves out the first row of a record."""

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        super()._hand_over(record, table.slice(1))


class Unguarded(Lines):
    """Writes rows whatever its cursor is."""

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        with self._delivering(record, self._rows.table(record, self._query)):
            pass


class Standing(Lines):
    """Never moves its cursor, so that rows come again in a new process."""

    @contextmanager
    def _delivering(self, record: Entry, table: pa.Table | None) -> Iterator[None]:
        if table is not None:
            self._hand_over(record, table)
        yield


FAULTY: list[tuple[Any, dict[str, Any], str]] = [
    (Losing, {}, r"text, every_record: 6 rows are lost, such as n = 0"),
    (Unguarded, {}, r"text, the_same_record_again: "),
    (Standing, {}, r"after record 0 the cursor is"),
    (Lines, {"cursor_suffix": "other"}, r"after record 0 the cursor outside the pond is -1"),
]


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[Path], Target]]:
    """Registers a sink `text` in this process, and makes targets of it."""

    def registered(opens: Any, **facts: Any) -> Callable[[Path], Target]:
        kind = SinkKind(name="text", opens="lines_of_a_test:opens", path="file", **({"repeats": True} | facts))
        monkeypatch.setitem(sys.modules, "lines_of_a_test", SimpleNamespace(opens=opens))
        monkeypatch.setattr(kinds, "SINKS", Registry("millpond.sinks", "sink", SinkKind, {"text": kind}))
        return lambda folder: Target(
            Sink("text", str(folder / "out")), lambda: [int(line) for line in (folder / "out").read_text().split()]
        )

    return registered


@pytest.mark.parametrize(("opens", "facts", "words"), FAULTY, ids=lambda one: getattr(one, "__name__", ""))
def test_a_sink_that_breaks_a_promise_is_found(
    opens: Any, facts: dict[str, Any], words: str, text: Any, tmp_path: Path
) -> None:
    if "cursor_suffix" in facts:  # the table says another file than the sink writes
        made = text(lambda context: Lines(context._replace(kind=SinkKind(name="text", opens="x:y"))), **facts)
    else:
        made = text(opens, **facts)
    with pytest.raises(AssertionError, match=words):
        check_sink(made, tmp_path / "check")
