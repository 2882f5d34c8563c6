"""Chooses the folders of sinks that name none: `OUT/NAME` for the rows of a query, `OUT/NAME.late` for late rows."""

from __future__ import annotations

from functools import cached_property

import msgspec

from millpond.control.wiring.pond_reader import read_truth
from millpond.errors import ForeignPondError, QueryTypeError
from millpond.followers.sinks.kinds import sink_kind
from millpond.log.locations.address import Address
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.reconfigure.lifecycle import current


def default_output(pond: Address) -> Address:
    """The folder of the folders for rows, if none is named."""
    return pond / "out"


class OutputFolders:
    """The folders below `out` (default: see `default_output`). A registered query keeps the folder it has."""

    def __init__(self, pond: Address, out: Address | None) -> None:
        self._pond, self._out = pond, default_output(pond) if out is None else out

    def with_folders(self, query: AnyQuery) -> AnyQuery:
        """The query with a folder for each sink that needs one and has none.

        Raises:
            UnsupportedQuery, SetupError: as `sink_kind`.
            QueryTypeError: the query's name cannot be the name of a folder.
        """
        if _lacks_path(query.sink):
            query = msgspec.structs.replace(query, sink=self._with_path(query.sink, query.name))
        if isinstance(query, Query) and query.late_sink is not None and _lacks_path(query.late_sink):
            query = msgspec.structs.replace(query, late=self._with_path(query.late_sink, query.name, late=True))
        return query

    def _with_path(self, sink: Sink, name: str, *, late: bool = False) -> Sink:
        before = self._registered.get(name)
        known = None if before is None else before.late_sink if late else before.sink
        kept = known.path if known is not None and known.format == sink.format else None
        if not kept and ("/" in name or name in (".", "..") or name.endswith(".late")):
            raise QueryTypeError(
                f"The name of the query {name} cannot be the name of a folder.",
                "Name a folder: TBLPROPERTIES ('path' = '…'), or path=….",
            )
        return msgspec.structs.replace(sink, path=kept or str(self._out / (f"{name}.late" if late else name)))

    def forget(self, name: str) -> None:
        """Forget a dropped query; a later query of this name gets a new folder."""
        self._registered.pop(name, None)

    @cached_property
    def _registered(self) -> dict[str, AnyQuery]:
        """The queries of the pond when this is first needed: their folders stay if the pond's folder is moved."""
        try:
            return {query.name: query for query in current(read_truth(self._pond)[1])}
        except ForeignPondError:
            return {}


def _lacks_path(sink: Sink) -> bool:
    return sink.path is None and sink_kind(sink.format).path is not None
