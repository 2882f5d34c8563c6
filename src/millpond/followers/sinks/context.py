"""The parameters with which a sink is opened: its query, the reader of the rows, and where its cursor may be kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.followers.cursors import CursorPath, cursor_path
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import Foreach, MemoryTables
from millpond.followers.sinks.kinds import SinkKind
from millpond.followers.upserts import Instances
from millpond.local_path import local_path
from millpond.log.locations.address import Address, address_of
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.runtime.joins.lookup_rows import OpenRows


class SinkContext(NamedTuple):
    """The parameters of `SinkKind.opens`: the query, the pond, and the reader of the rows.

    `cursors`: the folder for cursors of sinks that have no folder of their own. `since`: a sink without a cursor starts
    after this record. `late`: the sink takes the late rows. `memory`, `functions` and `lookups` belong to the process:
    the tables of memory sinks, the functions of `foreach` sinks by query, and what opens rows of other programs.
    `instances`: how instances write into the pond's own store.
    """

    query: AnyQuery
    sink: Sink
    kind: SinkKind
    pond: str
    rows: RowsReader
    cursors: CursorPath
    since: int
    late: bool
    memory: MemoryTables | None
    functions: Mapping[str, Foreach]
    lookups: Callable[[str | None], OpenRows] | None
    instances: Instances | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options of the sink."""
        return dict(self.sink.options)

    @property
    def cursor_file(self) -> CursorPath:
        """The file for the cursor, if it is kept in the pond (`SinkKind.cursor` is `file`)."""
        return cursor_path(self.cursors, self.query.name, self.kind.suffix)

    @property
    def path(self) -> Path:
        """The absolute path of the sink, on this machine.

        Raises:
            UnsupportedQuery: the sink has no path.
            PlaceError: the path is not local.
        """
        return local_path(self._written_path(), "The sink's path")

    @property
    def address(self) -> Address:
        """The absolute path of the sink, or its address in an object store or in HDFS.

        Raises:
            UnsupportedQuery: the sink has no path.
            PlaceError: the scheme of the address is not supported.
        """
        return address_of(self._written_path(), "The sink's path")

    def _written_path(self) -> str:
        if not self.sink.path:
            what = f"The {self.kind.name} sink of {self.query.name} has no path."
            raise UnsupportedQuery(what, f"Give it a {self.kind.path or 'path'}.")
        return self.sink.path
