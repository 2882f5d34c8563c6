"""Reads and merges rows of other programs in Redis or Valkey (server, Sentinel or cluster), with one command per row.

A command names one key, so none crosses slots. The commands for one primary are one pipeline, and all pipelines are
sent before the first response is read. An unreachable primary does not hide the rows of the others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from redis import exceptions as refused

from millpond.errors import StoreError
from millpond.state.backends.redis_nodes import Command, NodeAddress, Nodes, Script, packed, without_prefix
from millpond.state.ports.keyed_rows import Absent, KeyedRows, Merge, Merged, Row, Stamp, VanishedError

REST_SECONDS = 1.0
"""How long a server that did not answer is not tried again, in seconds."""

MERGED_AT_ONCE = 10_000
"""The number of rows that one round of pipelines writes."""

# A stamp is stale only for the same pond, by its number; a row with the stamp of another pond is overwritten.
_NEWER = """#!lua
local function stale(stamp)
  local n, pond = string.match(stamp or '', '^(%d+) (.*)$')
  return pond == ARGV[2] and tonumber(n) >= tonumber(ARGV[1])
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= ARGV[3] then return -1 end
"""
_MERGE = Script(
    _NEWER
    + """
if stale(redis.call('HGET', KEYS[1], ARGV[4])) then return 0 end
local last = 5 + tonumber(ARGV[5])
redis.call('HSET', KEYS[1], ARGV[4], ARGV[1] .. ' ' .. ARGV[2], unpack(ARGV, 6, last))
if last < #ARGV then redis.call('HDEL', KEYS[1], unpack(ARGV, last + 1)) end
return 1
"""
)
_REPLACE = Script(
    _NEWER
    + """
if stale(string.match(redis.call('GET', KEYS[1]) or '', '^{"_epoch":"([^"]*)"')) then return 0 end
if ARGV[4] then redis.call('SET', KEYS[1], ARGV[4], 'KEEPTTL') else redis.call('DEL', KEYS[1]) end
return 1
"""
)

_REFUSALS = (refused.NoPermissionError, refused.AuthenticationError)


class RedisKeyed(KeyedRows):
    """The rows at an address (see `Nodes`); its option `prefix` is ignored, because it is for keys of ponds.

    Raises:
        VanishedError: no server answers.
        StoreError: the address is invalid, or the server refuses this user.
    """

    def __init__(self, address: str) -> None:
        try:
            self._nodes = Nodes(without_prefix(address)[0], (_MERGE, _REPLACE))
        except StoreError as error:
            if error.__cause__ is None or isinstance(error.__cause__, _REFUSALS):
                raise
            raise _vanished(error) from error
        self._resting: dict[NodeAddress, float] = {}

    def read(self, keys: Sequence[bytes], slots: Sequence[int], fields: Sequence[bytes]) -> list[Row | Absent]:
        verb = b"HMGET" if fields else b"GET"
        commands = [Command(slot, packed([verb, key, *fields])) for key, slot in zip(keys, slots, strict=True)]
        return [_row(self._nodes, answer) for answer in self._answers(commands)]

    def merge(self, rows: Sequence[Merge], stamp: Stamp, *, whole: bool) -> list[Merged]:
        """See `KeyedRows.merge`; each row takes one script call."""
        commands = []
        for row in rows:
            words = [b"%d" % stamp.n, stamp.pond, b"string" if whole else b"hash"]
            if whole:
                commands.append(Command(row.slot, _REPLACE.call([row.key], [*words, *row.puts])))
            else:
                words += [stamp.field, b"%d" % len(row.puts), *row.puts, *row.removes]
                commands.append(Command(row.slot, _MERGE.call([row.key], words)))
        merged: list[Merged] = []
        for first in range(0, len(commands), MERGED_AT_ONCE):
            merged += map(Merged, self._nodes.run_or_raise(commands[first : first + MERGED_AT_ONCE]))
        return merged

    def close(self) -> None:
        self._nodes.close()

    def _answers(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to the commands; `VANISHED` for commands of servers that do not answer."""
        if not self._resting:
            try:
                return self._nodes.run(commands)
            except StoreError as error:
                if isinstance(error.__cause__, _REFUSALS):
                    raise
        places: dict[NodeAddress, list[int]] = defaultdict(list)
        primaries = set(self._nodes.primaries)
        self._resting = {address: until for address, until in self._resting.copy().items() if address in primaries}
        for number, command in enumerate(commands):
            places[self._nodes.owner(command.slot)].append(number)
        answers: list[Any] = [Absent.VANISHED] * len(commands)
        for address, numbers in places.items():
            if time.monotonic() < self._resting.get(address, 0.0):
                continue
            try:
                found = self._nodes.run([commands[number] for number in numbers])
            except StoreError as error:
                if isinstance(error.__cause__, _REFUSALS):
                    raise
                self._resting[address] = time.monotonic() + REST_SECONDS
                continue
            self._resting.pop(address, None)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers


def _row(nodes: Nodes, answer: Any) -> Row | Absent:
    if isinstance(answer, Absent):
        return answer
    if isinstance(answer, Exception):
        if str(answer).startswith("WRONGTYPE"):
            return Absent.WRONG_TYPE
        raise nodes.explained(answer) from answer
    row = answer if isinstance(answer, list) else [answer]
    return row if any(value is not None for value in row) else Absent.MISSING


def _vanished(error: StoreError) -> VanishedError:
    return VanishedError(error.what, "Is it running, and in reach?")
