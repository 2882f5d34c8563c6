"""The embedded default store: one LMDB file, written by a thread of the driver and readable by all of its host.

Version 1 of the file has two named databases. Integers in keys are big-endian, so that ranges are contiguous.

    meta   "v"               -> "1"                  version of this layout
           "o"               -> text                 the owner (the pond's id), UTF-8
           "i"               -> u32                  the next table number; numbers are never reused
           "t" table         -> u32                  a table's number; its name is UTF-8, at most 400 bytes
           "b" u16           -> u64 mark             the number a bucket has applied, and its mark; absent: none
    rows   u32 u16 0x00 key  -> value                table number, bucket, key
           u32 u16 0x01 hash -> u32 key value        a key too long for LMDB, by BLAKE2b-256; u32: its length

A call of `apply_many` is one transaction, so here all of its buckets advance together. In addition to the port:
  * only one process writes at a time. A second writer is safe (the number of each bucket guards it), but it waits. It
    waits indefinitely if the first is *stopped* inside a transaction (a killed one does no harm).
  * a process opens a file only once: LMDB's locks belong to the process, and a second open would break them.
  * a power failure may undo the newest applied numbers, but does not damage the file.
  * a damaged file is renamed to `path`.damaged, and a new one is created; opening it for reading raises an error.
  * reads should be short: the pages that a reader uses cannot be reused, so the file grows meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from millpond.errors import ForeignPondError, StoreError, no_room, of_machine
from millpond.local_path import real_file
from millpond.state.backends.kinds import StoreContext
from millpond.state.backends.lmdb_check import damage_of
from millpond.state.backends.lmdb_gate import Gate
from millpond.state.ports.store import (
    NEVER,
    Apply,
    BucketStore,
    Outcome,
    ReadRequest,
    ReadResult,
    Rows,
    Stand,
    Statistics,
    TableWrite,
    Verdict,
    decide,
)

VERSION = b"1"
DEFAULT_MAP_BYTES = 1 << 30
"""The address space reserved at first; the file itself grows only with its content."""

LOCK_SECONDS = 10.0
"""How long opening waits for another process that is writing, in seconds."""

_MAX_TABLE_BYTES = 400
_MAX_READERS = 512
_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_FULL = "No space left on device"
_CURE = "The store is derived from the log: delete the file and the view is rebuilt."

T = TypeVar("T")

_open_files: set[tuple[int, str]] = set()
_open_files_lock = threading.Lock()


class LmdbStore(BucketStore):
    """A store in the file `path` (with the lock file `path`-lock); a missing file is created unless `read_only`.

    `owner` is stored in the file and compared at the next open; "" accepts any owner. The memory map begins with
    `map_bytes` and doubles whenever it is full. `note` describes a repair by the store itself. ForeignPondError: the
    file has another owner. StoreError: it cannot be opened, has another version, or is already open in this process.
    """

    def __init__(
        self, path: Path, *, owner: str = "", read_only: bool = False, map_bytes: int = DEFAULT_MAP_BYTES
    ) -> None:
        self.note: str | None = None
        self._path = real_file(path, "-lock")
        self._read_only = read_only
        self._map_bytes = map_bytes
        self._gate = Gate()
        self._writing = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._registered = (self._pid, str(self._path))
        _register(self._registered)
        try:
            self._open(owner)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, context: StoreContext) -> LmdbStore:
        """The store at a path, for one pond."""
        assert context.path is not None
        context.path.parent.mkdir(parents=True, exist_ok=True)
        return cls(context.path, owner=context.pond, read_only=context.read_only)

    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        """See `BucketStore.apply_many`; all steps are applied in one transaction."""
        return self._write(lambda draft: [draft.apply(step) for step in steps])

    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        """See `BucketStore.stands_many`; the result is one consistent snapshot."""
        return self._read(lambda draft: [draft.stand(bucket) for bucket in buckets])

    def read_many(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """See `BucketStore.read_many`; the result is one consistent snapshot."""
        return self._read(lambda draft: [draft.read_keys(one) for one in requests])

    def scan(self, bucket: int, table: str) -> Rows:
        """See `BucketStore.scan`; never torn."""
        return self._read(lambda draft: draft.scan(bucket, table))

    def scan_many(self, buckets: Iterable[int], table: str) -> list[Rows]:
        """See `BucketStore.scan_many`; the result is one consistent snapshot."""
        wanted = list(buckets)
        return self._read(lambda draft: [draft.scan(bucket, table) for bucket in wanted])

    def scan_tables(self, buckets: Iterable[int], tables: Sequence[str]) -> list[list[Rows]]:
        """See `BucketStore.scan_tables`; the result is one consistent snapshot."""
        wanted = list(buckets)
        return self._read(lambda draft: [[draft.scan(bucket, table) for table in tables] for bucket in wanted])

    def clear_many(self, buckets: Iterable[int]) -> None:
        cleared = list(buckets)
        self._write(lambda draft: draft.clear(cleared))

    def tables(self) -> frozenset[str]:
        return self._read(lambda draft: frozenset(draft.tables()))

    def drop_table(self, table: str, upto: int) -> None:
        self._write(lambda draft: draft.drop(table, upto))

    def shards(self, buckets: Iterable[int]) -> list[str]:
        with self._explained(), self._gate.shared():
            self._check_usable()
            return [str(self._path) for _ in buckets]

    def statistics(self) -> Statistics:
        """See `BucketStore.statistics`; the bytes are the used length of the file, including reusable pages."""
        keys = self._read(lambda draft: draft.row_count())
        with self._explained(), self._gate.shared():
            self._check_usable()
            used = (int(self._env.info()["last_pgno"]) + 1) * int(self._env.stat()["psize"])
        return Statistics(keys, used)

    def close(self) -> None:
        with self._writing, self._gate.exclusive():
            if self._closed:
                return
            self._closed = True
            if hasattr(self, "_env"):
                self._env.close()
        _forget(self._registered)

    def _open(self, owner: str) -> None:
        with self._explained():
            if not self._read_only:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._put_damage_aside()
            self._open_environment()
            # The slots of killed readers would keep old pages alive indefinitely.
            self._env.reader_check()
        self._check_identity(owner)

    def _put_damage_aside(self) -> None:
        """Checks the file in a child process first, because reading a lost page would kill the process."""
        damage = damage_of(self._path, thorough=not self._read_only)
        if damage is None:
            return
        if self._read_only:
            raise StoreError(f"The store {self._path} is damaged: {damage}.", _CURE)
        aside = self._path.with_name(f"{self._path.name}.damaged")
        self._path.replace(aside)
        self._path.with_name(f"{self._path.name}-lock").unlink(missing_ok=True)
        self.note = f"{self._path} was damaged: {damage}; it is rebuilt, and what it was is now {aside.name}"

    def _open_environment(self) -> None:
        self._map_bytes = max(self._map_bytes, self._path.stat().st_size if self._path.exists() else 0)
        self._env = lmdb.open(
            str(self._path),
            map_size=self._map_bytes,
            subdir=False,
            readonly=self._read_only,
            create=not self._read_only,
            mode=0o600,  # the file may be outside of the pond's folder
            # Without metasync a power failure may undo the newest transaction, which the log then replays.
            metasync=False,
            max_dbs=2,
            max_readers=_MAX_READERS,
        )
        if self._read_only:
            self._meta = self._env.open_db(b"meta", create=False)
            self._rows = self._env.open_db(b"rows", create=False)
        else:
            self._open_tables()

    def _open_tables(self) -> None:
        # LMDB waits for the writer's lock without a time limit, and `open_db` would hold the GIL meanwhile.
        env, opened, abandoned, deciding = self._env, threading.Event(), threading.Event(), threading.Lock()
        done: list[tuple[Any, Any]] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                with env.begin(write=True) as transaction:
                    done.append((env.open_db(b"meta", txn=transaction), env.open_db(b"rows", txn=transaction)))
            except Exception as error:
                failed.append(error)
            with deciding:
                opened.set()
            if abandoned.is_set():
                env.close()
                _forget(self._registered)

        threading.Thread(target=work, name="millpond-lmdb-open", daemon=True).start()
        opened.wait(LOCK_SECONDS)
        with deciding:  # either this thread uses the environment, or the other one closes it
            if not opened.is_set():
                abandoned.set()
        if abandoned.is_set():
            self._closed = True  # the thread closes it when it gets the lock
            raise StoreError(
                f"Another process holds the writer's lock of the store {self._path}, and may be stopped.",
                "Continue or kill that process: it is a driver that ran before.",
            )
        if failed:
            raise failed[0]
        self._meta, self._rows = done[0]

    def _check_identity(self, owner: str) -> None:
        version, stored = self._read(lambda draft: draft.identity())
        if version is None and not self._read_only:
            self._write(lambda draft: draft.set_identity(owner))
            return
        if version != VERSION:
            raise StoreError(f"The store {self._path} has layout {version!r}, not {VERSION!r}.", _CURE)
        if owner and stored != owner.encode():
            raise ForeignPondError(
                f"The store {self._path} belongs to {stored!r}, not to {owner!r}.",
                "Give each pond a file of its own.",
            )

    def _read(self, work: Callable[[_Draft], T]) -> T:
        while True:
            with self._explained():
                try:
                    with self._gate.shared():
                        self._check_usable()
                        with self._env.begin() as transaction:
                            return work(self._draft(transaction))
                except lmdb.MapResizedError:
                    self._adopt_size()

    def _write(self, work: Callable[[_Draft], T]) -> T:
        if self._read_only:
            raise StoreError(f"The store {self._path} was opened to read.", "Only the pond's driver writes it.")
        with self._writing:
            while True:
                with self._explained():
                    try:
                        with self._gate.shared():
                            self._check_usable()
                            with self._env.begin(write=True) as transaction:
                                return work(self._draft(transaction))
                    except lmdb.MapFullError:
                        self._grow()
                    except lmdb.MapResizedError:
                        self._adopt_size()

    def _grow(self) -> None:
        with self._gate.exclusive():
            self._env.close()
            self._map_bytes *= 2
            self._open_environment()

    def _adopt_size(self) -> None:
        with self._gate.exclusive():
            self._check_usable()
            self._env.set_mapsize(0)
            self._map_bytes = int(self._env.info()["map_size"])

    def _draft(self, transaction: Any) -> _Draft:
        return _Draft(transaction, self._meta, self._rows, self._env.max_key_size())

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"The store {self._path} is closed.", "Open it again.")
        if os.getpid() != self._pid:
            raise StoreError(f"The store {self._path} was opened before a fork.", "Open it in the child, to read.")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, OSError) as error:
            if _FULL in str(error):  # LMDB reports this as text, without an error number
                raise no_room(str(error), self._path) from error
            raise of_machine(error, self._path) or StoreError(
                f"The store {self._path} failed: {error}.", _CURE
            ) from error


class _Draft:
    """Reads and writes the layout within one transaction; only this class knows how keys and values are encoded."""

    def __init__(self, transaction: Any, meta: Any, rows: Any, max_key: int) -> None:
        self._txn = transaction
        self._meta = meta
        self._rows = rows
        self._max_key = max_key
        self._numbers: dict[str, bytes | None] = {}

    def identity(self) -> tuple[bytes | None, bytes | None]:
        return self._txn.get(b"v", db=self._meta), self._txn.get(b"o", db=self._meta)

    def set_identity(self, owner: str) -> None:
        self._txn.put(b"v", VERSION, db=self._meta)
        self._txn.put(b"o", owner.encode(), db=self._meta)

    def applied(self, bucket: int) -> int:
        return self.stand(bucket).n

    def stand(self, bucket: int) -> Stand:
        stored = self._txn.get(b"b" + _U16.pack(bucket), db=self._meta)
        if stored is None:
            return Stand(NEVER)
        return Stand(int(_U64.unpack_from(stored)[0]), stored[_U64.size :].decode())

    def apply(self, step: Apply) -> Outcome:
        stored = self.applied(step.bucket)
        verdict = decide(stored, step)
        if verdict is Verdict.APPLIED:
            for write in step.writes:
                self._put(step.bucket, write)
            self._txn.put(b"b" + _U16.pack(step.bucket), _U64.pack(step.n) + step.mark.encode(), db=self._meta)
            stored = step.n
        return Outcome(step.bucket, verdict, stored)

    def read_keys(self, request: ReadRequest) -> ReadResult:
        number = self._number(request.table)
        if number is None:
            return ReadResult(self.applied(request.bucket), [None] * len(request.keys))
        prefix, get, rows = number + _U16.pack(request.bucket), self._txn.get, self._rows
        stored = [get(place, db=rows) for place in self._places(prefix, request.keys)]
        limit = self._max_key - len(prefix) - 1
        values = [
            value if value is None or len(key) <= limit else self._unframed(key, value)
            for key, value in zip(request.keys, stored, strict=True)
        ]
        return ReadResult(self.applied(request.bucket), values)

    def scan(self, bucket: int, table: str) -> Rows:
        rows = Rows(self.applied(bucket))
        number = self._number(table)
        if number is not None:
            prefix = number + _U16.pack(bucket)
            for place, value in self._range(prefix, self._rows):
                if place[len(prefix)]:
                    length = 4 + _U32.unpack_from(value)[0]
                    rows.keys.append(value[4:length])
                    rows.values.append(value[length:])
                else:
                    rows.keys.append(place[len(prefix) + 1 :])
                    rows.values.append(value)
        return rows

    def clear(self, buckets: Iterable[int]) -> None:
        numbers = [self._txn.get(b"t" + name.encode(), db=self._meta) for name in self.tables()]
        for bucket in buckets:
            for number in numbers:
                self._delete_range(number + _U16.pack(bucket))
            self._txn.delete(b"b" + _U16.pack(bucket), db=self._meta)

    def tables(self) -> list[str]:
        return [place[1:].decode() for place, _ in self._range(b"t", self._meta)]

    def drop(self, table: str, upto: int) -> None:
        number = self._number(table)
        if number is None:
            return
        stand = {place[1:]: _U64.unpack_from(value)[0] for place, value in self._range(b"b", self._meta)}
        if max(stand.values(), default=upto) <= upto:
            self._delete_range(number)
            self._txn.delete(b"t" + table.encode(), db=self._meta)
            return
        for bucket, n in stand.items():
            if n <= upto:
                self._delete_range(number + bucket)

    def row_count(self) -> int:
        return int(self._txn.stat(self._rows)["entries"])

    def _put(self, bucket: int, write: TableWrite) -> None:
        prefix = self._number_or_new(write.table) + _U16.pack(bucket)
        latest = dict(zip(write.keys, write.values, strict=True))
        limit = self._max_key - len(prefix) - 1
        puts: list[tuple[bytes, bytes]] = []
        for (key, value), place in zip(latest.items(), self._places(prefix, latest), strict=True):
            if value is None:
                self._txn.delete(place, db=self._rows)
            else:
                framed = value if len(key) <= limit else _U32.pack(len(key)) + key + value
                puts.append((place, framed))
        # In key order, each put is likely to write to the page of the previous put.
        puts.sort()
        with self._txn.cursor(db=self._rows) as cursor:
            cursor.putmulti(puts)

    def _places(self, prefix: bytes, keys: Iterable[bytes]) -> list[bytes]:
        short, limit = prefix + b"\x00", self._max_key - len(prefix) - 1
        return [
            short + key if len(key) <= limit else prefix + b"\x01" + hashlib.blake2b(key, digest_size=32).digest()
            for key in keys
        ]

    def _unframed(self, key: bytes, stored: bytes) -> bytes | None:
        length = 4 + int(_U32.unpack_from(stored)[0])
        return stored[length:] if stored[4:length] == key else None

    def _number(self, table: str) -> bytes | None:
        if table not in self._numbers:
            self._numbers[table] = self._txn.get(_table_place(table), db=self._meta)
        return self._numbers[table]

    def _number_or_new(self, table: str) -> bytes:
        number = self._number(table)
        if number is None:
            number = self._txn.get(b"i", db=self._meta) or _U32.pack(0)
            self._txn.put(b"i", _U32.pack(_U32.unpack(number)[0] + 1), db=self._meta)
            self._txn.put(_table_place(table), number, db=self._meta)
            self._numbers[table] = number
        return number

    def _range(self, prefix: bytes, db: Any) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(db=db) as cursor:
            if cursor.set_range(prefix):
                for place, value in cursor.iternext():
                    if not place.startswith(prefix):
                        return
                    yield place, value

    def _delete_range(self, prefix: bytes) -> None:
        with self._txn.cursor(db=self._rows) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                # Deleting moves the cursor to the next key; at the end of the database the key is empty.
                found = cursor.delete()


def _table_place(table: str) -> bytes:
    name = table.encode()
    if not 0 < len(name) <= _MAX_TABLE_BYTES:
        raise StoreError(
            f"A table's name has {len(name)} bytes; at most {_MAX_TABLE_BYTES} fit.", "Choose a shorter name."
        )
    return b"t" + name


def _register(file: tuple[int, str]) -> None:
    with _open_files_lock:
        if file in _open_files:
            raise StoreError(f"The store {file[1]} is open in this process already.", "Share the open one.")
        _open_files.add(file)


def _forget(file: tuple[int, str]) -> None:
    with _open_files_lock:
        _open_files.discard(file)
