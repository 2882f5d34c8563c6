"""Redis sink: writes each row under its own key, next to the data that other programs keep there.

A row of the query becomes fields of the hash under its key, or a string with a JSON object. Each row contains a stamp,
`_epoch`, with the number of its record and the pond's name, and replaces only an older row of this pond. So a record
that is applied twice, or by a driver that was overtaken, changes nothing newer. The cursor is a file in the pond's
folder.

With executors on several hosts the instances write the rows, each those whose keys are in its hash slots. Each instance
runs on the host of the primary that stores its keys. All rows of a key are written by one instance, in the order of the
record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import StoreError, UnsupportedQuery
from millpond.followers.cursors import CursorFile, CursorPath, follower_name, is_next, make_folder
from millpond.followers.record_rows import RowsGone, RowsReader, section_reader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import deliver
from millpond.followers.sinks.kinds import KINDS
from millpond.followers.sinks.rows_table import last_of_groups
from millpond.followers.sinks.text import json_objects, plain_text
from millpond.followers.upserts import Instances, Target, Upsert, Upserted
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at
from millpond.log.locations.address import address_of
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import Entry, decode
from millpond.model.endpoints import REDIS, Sink
from millpond.model.keyed_table import FORMS, KeyedTable, check_key
from millpond.model.selection import AnyQuery
from millpond.model.stream import Field
from millpond.model.types import WINDOW, is_known
from millpond.placement.slots import buckets_of
from millpond.plan.options.output_modes import OP, REVISION
from millpond.runtime.joins.lookup_rows import OpenRows, key_texts, slots_of_keys
from millpond.state.ports.keyed_rows import Merge, Merged, Stamp
from millpond.state.ports.object_files import files_of
from millpond.state.ports.requests import Requests, counted

STAMP = "_epoch"
_WRONG_TYPE = ("fail", "skip")


def target_of(query: AnyQuery, sink: Sink) -> Target:
    """The target in the options of a sink, for the rows of a query.

    Raises:
        UnsupportedQuery: an option or a column is not supported.
        QueryTypeError: the key is not a pattern of the query's columns.
    """
    kind = KINDS[REDIS]
    name, options = query.name, {key.lower(): value for key, value in sink.options}
    unknown = sorted(options.keys() - set(kind.options))
    if unknown or not options.get("key"):
        what = f"does not know the option {', '.join(unknown)}" if unknown else "has no key"
        raise UnsupportedQuery(f"The redis sink of {name} {what}.", f"It takes {', '.join(kind.options)}.")
    kind.check_env(name, options)
    types = {item.name: item.expression.type for item in query.output}
    fields = tuple(Field(column, kind) for column, kind in types.items())
    table = KeyedTable(name, options["key"], fields, options.get("type", "hash").lower())
    check_key(table)
    wrong = options.get("wrong.type", "fail").lower()
    for what, given, known in (("type", table.form, FORMS), ("wrong.type", wrong, _WRONG_TYPE)):
        if given not in known:
            raise UnsupportedQuery(f"`{what}` of the redis sink of {name} is {given!r}.", f"Use {' or '.join(known)}.")
    listed = [column.strip() for column in options.get("columns", "").split(",") if column.strip()]
    hidden = (*table.keys, OP, REVISION)
    columns = listed or [column for column, kind in types.items() if column not in hidden and kind != WINDOW]
    for column in columns:
        if not is_known(types.get(column, "")) or column == STAMP:
            raise UnsupportedQuery(
                f"The redis sink of {name} cannot write {column}, a {types.get(column, 'column that is not there')}.",
                "Name columns of plain types in 'columns'; of a window select its start or its end.",
            )
    window = next((column for column, kind in types.items() if kind == WINDOW), None)
    return Target(table, tuple(columns), window, wrong == "skip")


class KeyedSink:
    """Writes rows into rows of other programs, which `opens` opens. `note` reports the rows that were not written.

    `instances`: how instances write the rows (None: only the driver does). `requests`: those of the instances for the
    newest record with rows.
    """

    def __init__(
        self, query: str, pond_id: str, target: Target, rows: RowsReader, cursor: CursorPath, opens: OpenRows,
        since: int = NOTHING_APPLIED, instances: Instances | None = None,
    ) -> None:  # fmt: skip
        self.name = follower_name(query, False)
        self.note: str | None = None
        self.requests = Requests()
        self._query, self._pond = query, pond_id
        self._target, self._rows, self._opens, self._since = target, rows, opens, since
        self._instances = instances
        self._skipped = {"NULL keys": 0, "other types": 0}
        make_folder(cursor.parent)
        self._cursor_file = CursorFile(cursor)

    @classmethod
    def open(cls, context: SinkContext) -> KeyedSink:
        """Open the sink of a query.

        Raises:
            UnsupportedQuery, QueryTypeError: see `target_of`.
            StoreError: the address is not that of a Redis.
        """
        target = target_of(context.query, context.sink)
        if context.lookups is None:
            raise ValueError("A redis sink needs a function that opens rows of other programs.")
        address = context.options.get("address")
        query, rows, opens = context.query.name, context.rows, context.lookups(address)
        instances = context.instances if address is None else None
        return cls(query, context.pond, target, rows, context.cursor_file, opens, context.since, instances)

    def cursor(self) -> Cursor:
        return max(Cursor(self._since), self._cursor_file.read())

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: rows carry the numbers of their records, and only newer ones replace them."""
        raise ahead(
            self.name, self.cursor(), to.n,
            f"Rows in Redis after record {to.n} cannot be taken back. Restore the folder `log` from a newer "
            f"copy; or delete the keys, write {{\"n\": {to.n}}} into {self._cursor_file.path}, and repair again: "
            "keys then have the rows that are emitted from now on.",
        )  # fmt: skip

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`.

        Raises:
            StoreError: the server is unavailable; or a key holds another type, and the sink is configured to fail.
        """
        if not is_next(self.name, self.cursor(), record):
            return
        deliver(self._delivering(record))

    @contextmanager
    def _delivering(self, record: Entry) -> Iterator[None]:
        written = self._by_instances(record)
        self._check([self._by_driver(record)] if written is None else written)
        yield
        self._cursor_file.write(cursor_at(record))

    def _by_instances(self, record: Entry) -> Sequence[Upserted] | None:
        """The results of the instances; None: the driver has to write.

        Rows that an instance does not find may have been pruned, or its host may not see them yet: the driver knows.
        """
        owners = None if self._instances is None else self._instances.owners()
        if self._instances is None or owners is None:
            return None
        if self._query not in self._rows.queries(record):
            return []
        upsert = Upsert(record.n, record.digest, self._query, self._pond, self._target, owners)
        written = self._instances.write(upsert, self._opens)
        self.requests = sum((Requests(*one.requests) for one in written or ()), Requests())
        return None if written is None or any(one.gone for one in written) else written

    def _by_driver(self, record: Entry) -> Upserted:
        try:
            table = self._rows.table(record, self._query)
        except RowsGone:
            return Upserted()  # written before the cursor was lost, as pruning waits for it
        if table is None:
            return Upserted()
        stamp = _stamp(record.n, self._pond, self._query)
        return _write(self._target, stamp, table, _keys_of(self._target, table), self._opens)

    def _check(self, written: Sequence[Upserted]) -> None:
        failed = next((result.error for result in written if result.error), None)
        if failed is not None:
            raise StoreError(*failed)
        wrong = [key for result in written for key in result.wrong]
        if wrong and not self._target.skips:
            kind = "string" if self._target.table.form == "json" else "hash"
            raise StoreError(
                f"{len(wrong)} keys of {self._query}, such as {wrong[0].decode()!r}, hold what is no {kind}.",
                "Delete these keys, or say 'wrong.type' = 'skip'; the sink goes on by itself.",
            )
        self._skipped["NULL keys"] += sum(result.nulls for result in written)
        self._skipped["other types"] += len(wrong)
        if any(self._skipped.values()):
            parts = (f"{count} for {why}" for why, count in self._skipped.items() if count)
            self.note = f"rows not written since the start: {', '.join(parts)}"


def upsert_own(upsert: Upsert, instance: int, opens: OpenRows) -> Upserted:
    """Write those rows whose keys are in the hash slots of one instance, whichever instances computed them.

    Raises:
        CorruptError: the log, or rows in it, are damaged.
    """
    before = counted()
    try:
        written = _own_written(upsert, instance, opens)
    except StoreError as error:
        written = Upserted(error=(error.what, error.cure))
    return msgspec.structs.replace(written, requests=(*counted().since(before),))


def _own_written(upsert: Upsert, instance: int, opens: OpenRows) -> Upserted:
    owners = upsert.owners
    address = address_of(owners.address)
    log = Log(address.folder("log"))
    data = log.read(upsert.n)
    entry = None if data is None else decode(data, log.describe(upsert.n))
    if entry is None or entry.digest != upsert.digest:
        raise StoreError(f"Record {upsert.n} cannot be read by instance {instance} yet.", "It is tried again.")
    rows = RowsReader(section_reader(files_of(address, Path(owners.copies), "sink")()))
    try:
        table = rows.table(entry, upsert.query)
    except RowsGone:
        return Upserted(gone=True)
    if table is None:
        return Upserted()
    keys = _keys_of(upsert.target, table)
    buckets = buckets_of(slots_of_keys(pc.fill_null(keys, "")), len(owners.buckets))
    own = pa.array(np.array(owners.buckets)[buckets] == instance)
    stamp = _stamp(upsert.n, upsert.pond, upsert.query)
    return _write(upsert.target, stamp, table.filter(own), keys.filter(own), opens)


def _stamp(n: int, pond: str, query: str) -> Stamp:
    return Stamp(pond.encode(), n, f"{STAMP}:{query}".encode())


def _keys_of(target: Target, table: pa.Table) -> pa.Array:
    return key_texts(target.table, [_flat(table, name) for name in target.table.keys])


def _write(target: Target, stamp: Stamp, table: pa.Table, keys: pa.Array, opens: OpenRows) -> Upserted:
    """Write rows under their keys; of several rows with one key, the last one."""
    last = _last(keys, None if target.window is None else _flat(table, target.window).field("end"))
    merges = merges_of(target, table.take(last), keys.take(last), stamp)
    merged = opens().merge(merges, stamp, whole=target.table.form == "json") if merges else []
    wrong = [merge.key for merge, how in zip(merges, merged, strict=True) if how is Merged.WRONG_TYPE]
    return Upserted(keys.null_count, wrong)


def merges_of(target: Target, table: pa.Table, keys: pa.Array, stamp: Stamp) -> list[Merge]:
    """The merges for the rows under these keys, one per row of the table; NULL has no text, so its field is deleted."""
    texts = keys.cast(pa.binary()).to_pylist()
    slots = slots_of_keys(keys).tolist()
    gone = pc.equal(table[OP], "delete").to_pylist() if OP in table.column_names else [False] * len(table)
    if target.table.form == "json":
        stamps = pa.chunked_array([pa.array([stamp.text.decode()] * len(table), pa.string())])
        objects = json_objects(table.select(target.columns).add_column(0, STAMP, stamps), omit_nulls=False)
        values = objects.cast(pa.large_binary()).to_pylist()
        return [
            Merge(key, slot, [] if deleted else [value], [])
            for key, slot, value, deleted in zip(texts, slots, values, gone, strict=True)
        ]
    names = [name.encode() for name in target.columns]
    columns = [plain_text(name, _flat(table, name)).cast(pa.large_binary()).to_pylist() for name in target.columns]
    merges = []
    for key, slot, deleted, *row in zip(texts, slots, gone, *columns, strict=True):
        values = [None] * len(row) if deleted else row
        pairs = list(zip(names, values, strict=True))
        puts = [word for name, value in pairs if value is not None for word in (name, value)]
        merges.append(Merge(key, slot, puts, [name for name, value in pairs if value is None]))
    return merges


def _last(keys: pa.Array, ends: pa.Array | None) -> pa.Array:
    """The index of the last row of each key: that of the latest window, if the rows contain windows."""
    codes = keys.dictionary_encode().indices
    ranks = np.zeros(len(keys), np.int64) if ends is None else pc.fill_null(ends.cast(pa.int64()), 0).to_numpy()
    known = np.flatnonzero(codes.is_valid().to_numpy(zero_copy_only=False))
    own = pc.fill_null(codes, -1).to_numpy()[known]
    return pa.array(known[last_of_groups(own, ranks[known])])


def _flat(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)

