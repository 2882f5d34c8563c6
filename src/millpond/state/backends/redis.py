"""The store on Redis 7 or later, or Valkey: one server, a Sentinel service, or a cluster of any number of primaries.

Version 1 of the keys; `P` is a prefix (`mp`), and `T` the hash tag of the bucket. The tag puts everything of a bucket
into one slot, on the node of the cluster that has the hash slots of the bucket's keys:

    P:{T}:meta          hash   `applied`, `mark`, `pond`, `layout`: the number and its mark, the owner, "1"
    P:{T}:tables        set    names of tables
    P:{T}:rows:TABLE    hash   key -> value

A step is one script, which Redis runs atomically. It checks the pond, the number, and that memory is available before
it writes. Scripts are called by digest, and sent again if a server has forgotten them. In addition to the port:
  * any number of processes may write; the number of each bucket guards it;
  * rows are lost with an unsaved server, a flush, or a fail-over that lost writes; the number is lost with them;
  * a server that evicts keys would remove parts of a bucket, so it must be set to `noeviction`;
  * a step of one bucket may have at most 500 000 rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from millpond.errors import ForeignPondError, StoreError
from millpond.state.backends.kinds import StoreContext
from millpond.state.backends.redis_nodes import Command, NodeAddress, Nodes, Script, packed, without_prefix
from millpond.state.backends.redis_slots import ClusterSlots
from millpond.state.ports.elastic import ElasticStore
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
)

LAYOUT = b"1"
PREFIX = "mp"
MAX_ARGUMENTS = 1_000_000
"""The maximum number of arguments of a command; the limit of Redis is slightly higher."""

SCANNED_AT_ONCE = 10_000
"""The number of rows that a scan reads with one command."""

_SCANS = 3
"""How often a scan in pieces is tried before all rows are read with one command, which blocks the server."""

_VERDICTS = (Verdict.APPLIED, Verdict.ALREADY, Verdict.BEHIND)
_FOREIGN = "MPFOREIGN "

_OWNED = """
local pond = redis.call('HGET', KEYS[1], 'pond')
if pond and pond ~= ARGV[1] and ARGV[1] ~= '' then return redis.error_reply('MPFOREIGN ' .. pond) end"""
"""Refuses the bucket of another pond; every script that writes begins with this."""

# With the first line, Redis refuses a script before its first write if there is no memory, or on a replica.
# Lua cannot unpack a table of more than 8000 values.
_APPLY = Script(
    "#!lua"
    + _OWNED
    + """
local stored = tonumber(redis.call('HGET', KEYS[1], 'applied') or '-1')
local at, moved, mark, outcomes = 2, false, '', {}
local function word() at = at + 1 return ARGV[at - 1] end
local function number() return tonumber(word()) end
local function send(command, key, count, write)
  for first = at, at + count - 1, 4000 do
    if write then redis.call(command, key, unpack(ARGV, first, math.min(first + 3999, at + count - 1))) end
  end
  at = at + count
end
for _ = 1, number() do
  local n, previous, said, writes = number(), number(), word(), number()
  local write = stored < n and stored == previous
  for _ = 1, writes do
    local key, table, puts, deletes = KEYS[number()], word(), number(), number()
    if write then redis.call('SADD', KEYS[2], table) end
    send('HSET', key, puts, write)
    send('HDEL', key, deletes, write)
  end
  if write then
    outcomes[#outcomes + 1] = 0
    stored, moved, mark = n, true, said
  else
    outcomes[#outcomes + 1] = stored >= n and 1 or 2
  end
  outcomes[#outcomes + 1] = stored
end
if moved then
  redis.call('HSET', KEYS[1], 'applied', string.format('%.0f', stored), 'mark', mark, 'pond', ARGV[1], 'layout', '1')
end
return outcomes
"""
)

_READ = Script(
    """#!lua flags=no-writes
local found = {redis.call('HGET', KEYS[1], 'applied')}
for first = 1, #ARGV, 4000 do
  local some = redis.call('HMGET', KEYS[2], unpack(ARGV, first, math.min(first + 3999, #ARGV)))
  for i = 1, #some do found[first + i] = some[i] end
end
return found
""",
    reading=True,
)

_SCAN = Script(
    """#!lua flags=no-writes
local applied = redis.call('HGET', KEYS[1], 'applied')
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[1]) then return {applied, false} end
return {applied, redis.call('HGETALL', KEYS[2])}
""",
    reading=True,
)

# All keys of a bucket have its tag, so the script may build the keys of its tables.
_CLEAR = Script(
    "#!lua flags=allow-oom"
    + _OWNED
    + """
for _, table in ipairs(redis.call('SMEMBERS', KEYS[2])) do redis.call('UNLINK', ARGV[2] .. table) end
return redis.call('UNLINK', KEYS[1])
"""
)

_DROP = Script(
    "#!lua flags=allow-oom"
    + _OWNED
    + """
if tonumber(redis.call('HGET', KEYS[1], 'applied') or '-1') > tonumber(ARGV[3]) then return 0 end
redis.call('UNLINK', KEYS[3])
return redis.call('SREM', KEYS[2], ARGV[2])
"""
)

_SIZE = Script(
    """#!lua flags=no-writes
local rows, bytes = 0, 0
for _, table in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  rows = rows + redis.call('HLEN', ARGV[1] .. table)
  bytes = bytes + (redis.call('MEMORY', 'USAGE', ARGV[1] .. table) or 0)
end
return {rows, bytes}
""",
    reading=True,
)

_SCRIPTS = (_APPLY, _READ, _SCAN, _CLEAR, _DROP, _SIZE)


class RedisStore(BucketStore, ElasticStore):
    """A store at `address` (see `Nodes`); bucket b has the hash tag `tags[b]`.

    The option `prefix` of the address is the prefix of all keys. `owner` is stored with each bucket and compared; ""
    accepts any owner. With `read_only`, the settings of the server are not checked, so a user with read permission is
    enough. Without `check`, nothing is checked, because another process has done it.

    Raises:
        ForeignPondError: the keys belong to another pond.
        StoreError: a server cannot be reached, or its version or settings are unsuitable.
    """

    def __init__(
        self, address: str, tags: Sequence[str], *, owner: str = "", read_only: bool = False, check: bool = True
    ) -> None:
        address, prefix = keys_of(address)
        self._owner = owner.encode()
        self._read_only = read_only
        self._places = [f"{prefix}:{{{tag}}}:".encode() for tag in tags]
        self._slots = [key_slot(place) for place in self._places]
        self._nodes = Nodes(address, _SCRIPTS)
        self._cluster = ClusterSlots(self._nodes)
        try:
            if check and not read_only:
                for primary in self._nodes.primaries:
                    self._check_fit(primary)
            if check:
                self._check_identity()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, context: StoreContext) -> RedisStore:
        """The store at a URL, for one pond."""
        return cls(context.address, context.tags, owner=context.pond, read_only=context.read_only, check=context.check)

    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        """See `BucketStore.apply_many`; all steps of one bucket are applied atomically together."""
        self._check_writable()
        numbers: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            numbers[step.bucket].append(number)
        answers = self._run(
            [self._apply_command(bucket, [steps[i] for i in step_numbers]) for bucket, step_numbers in numbers.items()]
        )
        outcomes: list[Outcome | None] = [None] * len(steps)
        for (bucket, step_numbers), answer in zip(numbers.items(), answers, strict=True):
            for i, verdict, applied in zip(step_numbers, answer[::2], answer[1::2], strict=True):
                outcomes[i] = Outcome(bucket, _VERDICTS[verdict], applied)
        return [outcome for outcome in outcomes if outcome is not None]

    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        answers = self._plain(buckets, b"HMGET", b"meta", b"applied", b"mark")
        return [Stand(_number(applied), (mark or b"").decode()) for applied, mark in answers]

    def read_many(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        answers = self._run([self._call(_READ, one.bucket, [b"meta", _rows(one.table)], one.keys) for one in requests])
        return [ReadResult(_number(answer[0]), answer[1:]) for answer in answers]

    def scan(self, bucket: int, table: str) -> Rows:
        """See `BucketStore.scan`; never torn, but rows may be missing if the bucket is lost and replayed meanwhile.

        Many rows are read in pieces, so that the server can serve other clients, and again if the number has changed.
        """
        for _ in range(_SCANS):
            applied, flat = self._whole([bucket], table, SCANNED_AT_ONCE)[0]
            if flat is not None:
                return _scanned(applied, flat)
            rows = self._in_pieces(bucket, table)
            if self.applied(bucket) == _number(applied):
                return Rows(_number(applied), list(rows), list(rows.values()))
        return _scanned(*self._whole([bucket], table, 1 << 62)[0])

    def scan_many(self, buckets: Iterable[int], table: str) -> list[Rows]:
        """See `BucketStore.scan_many`; it takes one round trip to each server, and more for buckets with many rows."""
        wanted = list(buckets)
        found = zip(wanted, self._whole(wanted, table, SCANNED_AT_ONCE), strict=True)
        return [
            self.scan(bucket, table) if flat is None else _scanned(applied, flat) for bucket, (applied, flat) in found
        ]

    def clear_many(self, buckets: Iterable[int]) -> None:
        self._check_writable()
        self._run(
            [
                self._call(_CLEAR, bucket, [b"meta", b"tables"], [self._owner, self._place(bucket) + b"rows:"])
                for bucket in dict.fromkeys(buckets)
            ]
        )

    def tables(self) -> frozenset[str]:
        """See `BucketStore.tables`; it takes one command per bucket."""
        answers = self._plain(range(len(self._places)), b"SMEMBERS", b"tables")
        return frozenset(name.decode() for answer in answers for name in answer)

    def drop_table(self, table: str, upto: int) -> None:
        """See `BucketStore.drop_table`; it takes one command per bucket."""
        self._check_writable()
        keys, arguments = [b"meta", b"tables", _rows(table)], [self._owner, table.encode(), b"%d" % upto]
        self._run([self._call(_DROP, bucket, keys, arguments) for bucket in range(len(self._places))])

    def shards(self, buckets: Iterable[int]) -> list[str]:
        """See `BucketStore.shards`: `host:port` of the primaries in the current slot map."""
        self._nodes.refresh_slots()
        found = []
        for bucket in buckets:
            self._place(bucket)
            host, port = self._nodes.owner(self._slots[bucket])
            found.append(f"{host}:{port}")
        return found

    def servers(self) -> list[str]:
        """See `ElasticStore.servers`: `host:port` of the primaries that have joined the cluster."""
        if not self._nodes.is_cluster:
            return self.shards([0])
        return [primary.name for primary in self._cluster.primaries()]

    def check_server(self, name: str) -> None:
        """See `ElasticStore.check_server`."""
        self._check_fit(self._cluster.primary(name).address)

    def unfinished(self) -> int:
        """See `ElasticStore.unfinished`: the number of open slots."""
        return len(self._cluster.open_slots())

    def finish(self) -> None:
        """See `ElasticStore.finish`."""
        self._check_writable()
        self._cluster.finish()

    def move_shard(self, buckets: Sequence[int], to: str) -> None:
        """See `ElasticStore.move_shard`; keys of other programs in the slots of these buckets move, too."""
        self._check_writable()
        bounds = [*self._slots, SLOTS]
        self._cluster.move((slot for one in buckets for slot in range(bounds[one], bounds[one + 1])), to)

    def statistics(self) -> Statistics:
        """See `BucketStore.statistics`; the servers estimate the bytes from a few rows of each hash."""
        sizes = self._run(
            [self._call(_SIZE, bucket, [b"tables"], [place + b"rows:"]) for bucket, place in enumerate(self._places)]
        )
        return Statistics(sum(size[0] for size in sizes), sum(size[1] for size in sizes))

    def close(self) -> None:
        self._nodes.close()

    def _apply_command(self, bucket: int, steps: Sequence[Apply]) -> Command:
        keys: dict[bytes, int] = {b"meta": 1, b"tables": 2}
        words = [self._owner, b"%d" % len(steps)]
        for step in steps:
            words += [b"%d" % step.n, b"%d" % step.previous, step.mark.encode(), b"%d" % len(step.writes)]
            for write in step.writes:
                at = keys.setdefault(_rows(write.table), len(keys) + 1)
                puts, deletes = _parted(write)
                words += [b"%d" % at, write.table.encode(), b"%d" % len(puts), b"%d" % len(deletes), *puts, *deletes]
        if len(words) > MAX_ARGUMENTS:
            raise StoreError(
                f"A step of bucket {bucket} has {len(words) // 2:,} rows; Redis takes {MAX_ARGUMENTS // 2:,}.",
                "Use more buckets or smaller epochs.",
            )
        return self._call(_APPLY, bucket, list(keys), words)

    def _call(self, script: Script, bucket: int, keys: Sequence[bytes], arguments: Sequence[bytes] = ()) -> Command:
        place = self._place(bucket)
        return Command(self._slots[bucket], script.call([place + key for key in keys], arguments))

    def _whole(self, buckets: Sequence[int], table: str, most: int) -> list[Any]:
        """The number and the rows of each bucket; None instead of more than `most` rows."""
        keys, arguments = [b"meta", _rows(table)], [b"%d" % most]
        return self._run([self._call(_SCAN, bucket, keys, arguments) for bucket in buckets])

    def _in_pieces(self, bucket: int, table: str) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, flat = self._plain([bucket], b"HSCAN", _rows(table), cursor, b"COUNT", b"%d" % SCANNED_AT_ONCE)[0]
            rows.update(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                return rows

    def _plain(self, buckets: Iterable[int], command: bytes, key: bytes, *more: bytes) -> list[Any]:
        return self._run(
            [Command(self._slots[bucket], packed([command, self._place(bucket) + key, *more])) for bucket in buckets]
        )

    def _place(self, bucket: int) -> bytes:
        if not 0 <= bucket < len(self._places):
            raise StoreError(f"The store has no bucket {bucket}.", f"It was opened with {len(self._places)}.")
        return self._places[bucket]

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        answers = self._nodes.run(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                if str(answer).startswith(_FOREIGN):
                    raise self._foreign(str(answer).removeprefix(_FOREIGN).split(" ")[0])
                raise self._nodes.explained(answer) from answer
        return answers

    def _check_writable(self) -> None:
        if self._read_only:
            raise StoreError(f"The store {self._nodes.name} was opened to read.", "Only the pond writes it.")

    def _check_fit(self, primary: NodeAddress) -> None:
        said = {**self._info(primary, b"server"), **self._info(primary, b"memory")}
        where = f"{primary[0]}:{primary[1]}"
        version = said.get("redis_version", "0")
        if int(version.split(".")[0]) < 7:
            raise StoreError(f"The Redis at {where} is version {version}.", "Use Redis 7 or later, or Valkey.")
        policy = said.get("maxmemory_policy", "")
        if policy != "noeviction":
            raise StoreError(
                f"The Redis at {where} may evict rows of the view (maxmemory-policy {policy}).",
                "Run `redis-cli CONFIG SET maxmemory-policy noeviction` there, and put it into its configuration.",
            )

    def _info(self, primary: NodeAddress, section: bytes) -> dict[str, str]:
        answer = self._nodes.run_on(primary, [b"INFO", section])
        if isinstance(answer, Exception):
            raise self._nodes.explained(answer) from answer
        pairs = (line.partition(":") for line in answer.decode().splitlines() if not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    def _check_identity(self) -> None:
        for layout, pond in self._plain(range(len(self._places)), b"HMGET", b"meta", b"layout", b"pond"):
            if layout not in (None, LAYOUT):
                raise StoreError(
                    f"The store {self._nodes.name} has layout {layout!r}, not {LAYOUT!r}.",
                    "The store is derived from the log: delete its keys and the view is rebuilt.",
                )
            if pond and self._owner and pond != self._owner:
                raise self._foreign(pond.decode())

    def _foreign(self, pond: str) -> ForeignPondError:
        return ForeignPondError(
            f"The keys in the store {self._nodes.name} belong to {pond!r}, not to {self._owner.decode()!r}.",
            "Give each pond a prefix of its own, `redis://…?prefix=NAME`, or delete the keys of a pond that is gone.",
        )


def _rows(table: str) -> bytes:
    return b"rows:" + table.encode()


def _scanned(applied: bytes | None, flat: list[bytes]) -> Rows:
    return Rows(_number(applied), flat[::2], flat[1::2])


def _number(answer: bytes | None) -> int:
    return NEVER if answer is None else int(answer)


def _parted(write: TableWrite) -> tuple[list[bytes], list[bytes]]:
    """The words to put, alternating key and value, and the keys to delete."""
    latest = dict(zip(write.keys, write.values, strict=True))
    puts = [word for key, value in latest.items() if value is not None for word in (key, value)]
    return puts, [key for key, value in latest.items() if value is None]


def keys_of(address: str) -> tuple[str, str]:
    """An address without its option `prefix`, and the prefix of its keys.

    Raises:
        StoreError: the prefix is invalid.
    """
    address, said = without_prefix(address)
    prefix = PREFIX if said is None else said
    if not prefix or set(prefix) & set("{}*?[]\\ "):
        raise StoreError(f"No keys can begin with {prefix!r}.", "Use letters, digits and colons for the prefix.")
    return address, prefix
