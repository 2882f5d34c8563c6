"""Moves hash slots with their keys between the primaries of a Redis cluster, while clients read and write them.

A slot moves as `redis-cli --cluster reshard` moves it: the target imports it, the source migrates it and sends its
keys in batches, and then both name the target as its owner. Few slots are open at a time, and only for milliseconds.
All keys of a slot that fit into one batch move in one command, so no client finds a part of them.

Every step may be repeated. A process that dies leaves slots open, which `finish` closes. Two processes may move slots
at the same time: the target takes a slot only while it imports it from the same source, which one script checks. So a
process that was suspended cannot give a slot to a node that no longer has its keys.

A primary that gives away its last slot becomes a replica of the node that takes it, unless its setting
`cluster-allow-replica-migration` is `no`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from millpond.errors import StoreError
from millpond.faults import reached
from millpond.state.backends.redis_nodes import PATIENCE_SECONDS, NodeAddress, Nodes, Script

SLOTS_AT_ONCE = 64
"""The most slots that are open at a time."""

KEYS_AT_ONCE = 100
"""The most keys that one command moves; the source serves nobody meanwhile."""

_GIVE = Script(
    """#!lua flags=no-writes
local own = ''
for line in string.gmatch(redis.call('CLUSTER', 'NODES'), '[^\\n]+') do
  if string.find(line, 'myself', 1, true) then own = line end
end
local given = {}
for i = 4, #ARGV do
  if string.find(own, '[' .. ARGV[i] .. ARGV[2] .. ARGV[3] .. ']', 1, true) then
    redis.call('CLUSTER', 'SETSLOT', ARGV[i], 'NODE', ARGV[1])
    given[#given + 1] = tonumber(ARGV[i])
  end
end
return given
"""
)
"""Makes the node ARGV[1] the owner of those slots that are open to the node ARGV[3]; ARGV[2] is `-<-` or `->-`."""


_ALREADY = "already the owner"
"""In the answer of a primary that is to import a slot which it owns."""


class Primary(NamedTuple):
    """A primary of a cluster: `HOST:PORT`, its id in the cluster, its address, and the slots that it owns.

    `plain`, `secure`: its ports without and with TLS; 0 if it has no such port, or reports none.
    """

    name: str
    id: bytes
    address: NodeAddress
    slots: frozenset[int]
    plain: int
    secure: int


class _Open(NamedTuple):
    """The slots that a primary sends to, and receives from, the node with an id, whether or not it owns them."""

    migrating: Mapping[int, bytes]
    importing: Mapping[int, bytes]


class ClusterSlots:
    """The hash slots of the cluster at `nodes`."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def primaries(self) -> list[Primary]:
        """All primaries that are up, in the order of their names; some may own no slots.

        Raises:
            StoreError: the store is no cluster, or does not answer.
        """
        sender, answer = self._nodes.run_on_any([b"CLUSTER", b"SHARDS"])
        found = (_primary(shard, sender, self._nodes.encrypted) for shard in answer)
        return sorted(one for one in found if one is not None)

    def move(self, slots: Iterable[int], to: str) -> None:
        """Move slots with their keys to the primary `to`; those that it owns already stay.

        Raises:
            StoreError: there is no such primary, or a node refused; the call may be repeated.
        """
        known = self.primaries()
        target = self._named(to, known)
        wanted = {*slots} - target.slots
        for source in known:
            self._carry(sorted(wanted & source.slots), source, target)

    def primary(self, name: str) -> Primary:
        """The primary with a name.

        Raises:
            StoreError: there is no such primary.
        """
        return self._named(name, self.primaries())

    def finish(self) -> int:
        """Close the slots that a process has left open; returns their number.

        A slot that a node began to send moves to its target. What is left of other moves is removed.

        Raises:
            StoreError: a node refused, or a slot moves to a node that is down; the call may be repeated.
        """
        known = self.primaries()
        by_id = {node.id: node for node in known}
        open_slots = self._open(known)
        half: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
        stale: dict[NodeAddress, list[list[bytes]]] = defaultdict(list)
        for node in known:
            for slot, target in open_slots[node.id].migrating.items():
                if slot not in node.slots:
                    stale[node.address].append(_setslot(slot, b"STABLE"))
                elif target in by_id:
                    half[node.id, target].append(slot)
                else:
                    raise StoreError(
                        f"Slot {slot} of the cluster moves from {node.name} to a node that is down.",
                        "Start this node, or run `redis-cli --cluster fix`.",
                    )
            for slot, source in open_slots[node.id].importing.items():
                sends = source in by_id and open_slots[source].migrating.get(slot) == node.id
                if not (sends and slot in by_id[source].slots):
                    stale[node.address].append(_setslot(slot, b"STABLE"))
        self._sure(stale)
        for (source, target), slots in half.items():
            self._carry(sorted(slots), by_id[source], by_id[target])
        return sum(map(len, half.values())) + sum(map(len, stale.values()))

    def open_slots(self) -> frozenset[int]:
        """The slots that move now, or whose move was interrupted.

        Raises:
            StoreError: a node does not answer.
        """
        found = self._open(self.primaries()).values()
        return frozenset(slot for one in found for slot in (*one.migrating, *one.importing))

    def _named(self, name: str, known: Sequence[Primary]) -> Primary:
        found = next((one for one in known if one.name == name), None)
        if found is None:
            raise StoreError(
                f"The cluster {self._nodes.name} has no primary {name} that is up.",
                f"Join it with `redis-cli --cluster add-node {name} HOST:PORT`, or start it.",
            )
        return found

    def _carry(self, slots: Sequence[int], source: Primary, target: Primary) -> None:
        """Move slots that `source` owns to `target`."""
        port = self._port_of(target, source) if slots else 0
        for first in range(0, len(slots), SLOTS_AT_ONCE):
            self._carry_some(slots[first : first + SLOTS_AT_ONCE], source, target, port)
        self._nodes.refresh_slots()

    def _port_of(self, target: Primary, source: Primary) -> int:
        """The port at which `source` sends keys to `target`: nodes may encrypt what clients do not, and vice versa.

        At the wrong port MIGRATE waits for its timeout, and the source serves nobody meanwhile.
        """
        if not (target.plain and target.secure):
            return target.address[1]
        answer = self._nodes.run_on(source.address, [b"CONFIG", b"GET", b"tls-cluster"])
        if isinstance(answer, list) and len(answer) == 2:
            return target.secure if answer[1] == b"yes" else target.plain
        if self._nodes.encrypted:
            return target.secure
        raise StoreError(
            f"The primaries of {self._nodes.name} have ports with and without TLS, and this user may not read at which "
            "of them they reach each other.",
            "Allow it `+config|get`, or use an address with `rediss://`.",
        )

    def _carry_some(self, slots: Sequence[int], source: Primary, target: Primary, port: int) -> None:
        words = [_setslot(slot, b"IMPORTING", source.id) for slot in slots]
        answers = self._nodes.run_on_each({target.address: words})[target.address]
        moved = [slot for slot, answer in zip(slots, answers, strict=True) if _ALREADY in str(answer)]
        self._check(answer for answer in answers if _ALREADY not in str(answer))
        reached("slots.importing")
        slots = [slot for slot in slots if slot not in moved]
        self._sure({source.address: [_setslot(slot, b"MIGRATING", target.id) for slot in slots]})
        reached("slots.migrating")
        remaining = slots
        while remaining:
            words = [[b"CLUSTER", b"GETKEYSINSLOT", b"%d" % slot, b"%d" % KEYS_AT_ONCE] for slot in remaining]
            found = self._sure({source.address: words})[source.address]
            remaining = [slot for slot, keys in zip(remaining, found, strict=True) if keys]
            for keys in filter(None, found):
                self._sure({source.address: [self._migrate(keys, (target.address[0], port))]})
                reached("slots.keys_moved")
        moved += self._give(slots, target, target, b"-<-", source)
        reached("slots.taken")
        self._give(moved, target, source, b"->-", target)  # the other nodes learn it from the target
        if not {*slots} <= {*moved}:
            raise StoreError(
                f"Slots of the cluster {self._nodes.name} are moved by another process, too.",
                "Let it end; this move is repeated.",
            )

    def _give(self, slots: Sequence[int], to: Primary, at: Primary, arrow: bytes, other: Primary) -> list[int]:
        words = [b"EVAL", _GIVE.text, b"0", to.id, arrow, other.id, *(b"%d" % slot for slot in slots)]
        given: list[int] = self._sure({at.address: [words]})[at.address][0]
        return given

    def _migrate(self, keys: Sequence[bytes], target: NodeAddress) -> list[bytes]:
        # the copy at the source is the newer one if an earlier command was interrupted, hence REPLACE
        host, port, timeout = target[0].encode(), b"%d" % target[1], b"%d" % int(1000 * PATIENCE_SECONDS)
        login = self._nodes.login
        auth = [] if login is None else [b"AUTH2", *login]
        return [b"MIGRATE", host, port, b"", b"0", timeout, b"REPLACE", *auth, b"KEYS", *keys]

    def _open(self, known: Sequence[Primary]) -> dict[bytes, _Open]:
        found = self._sure({one.address: [[b"CLUSTER", b"NODES"]] for one in known})
        return {one.id: _open_in(found[one.address][0]) for one in known}

    def _sure(self, words: Mapping[NodeAddress, Sequence[Sequence[bytes]]]) -> dict[NodeAddress, list[Any]]:
        found = self._nodes.run_on_each(words)
        self._check(one for answers in found.values() for one in answers)
        return found

    def _check(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._nodes.explained(answer) from answer


def _primary(shard: Sequence[Any], sender: NodeAddress, encrypted: bool) -> Primary | None:
    """The primary in an entry of CLUSTER SHARDS that the node `sender` has sent; None: it is down.

    >>> node = [b"id", b"a1", b"port", 7001, b"ip", b"h", b"endpoint", b"", b"role", b"master", b"health", b"online"]
    >>> _primary([b"slots", [0, 1, 5, 5], b"nodes", [node]], ("g", 7000), False)
    Primary(name='g:7001', id=b'a1', address=('g', 7001), slots=frozenset({0, 1, 5}), plain=7001, secure=0)
    >>> _primary([b"slots", [], b"nodes", [node]], ("g", 7000), True)
    Traceback (most recent call last):
    millpond.errors.StoreError: [MP-STORE] A primary of the cluster, g, reports no port with TLS. Use `tls-cluster yes`\
 on its servers.

    Raises:
        StoreError: it reports no port with TLS, or none without, as `encrypted` requires.
    """
    of = dict(zip(shard[::2], shard[1::2], strict=True))
    for words in of[b"nodes"]:
        node = dict(zip(words[::2], words[1::2], strict=True))
        if node[b"role"] == b"master" and node[b"health"] == b"online":
            plain, secure = (int(node.get(kind, 0)) for kind in (b"port", b"tls-port"))
            # a node that does not know its own name reports none
            address = (node[b"endpoint"] or b"").decode() or sender[0], secure if encrypted else plain
            if not address[1]:
                kind, cure = ("with", "`tls-cluster yes` on its servers") if encrypted else ("without", "`rediss://`")
                raise StoreError(f"A primary of the cluster, {address[0]}, reports no port {kind} TLS.", f"Use {cure}.")
            ranges = zip(of[b"slots"][::2], of[b"slots"][1::2], strict=True)
            slots = frozenset(slot for first, last in ranges for slot in range(first, last + 1))
            return Primary(f"{address[0]}:{address[1]}", node[b"id"], address, slots, plain, secure)
    return None


def _setslot(slot: int, *words: bytes) -> list[bytes]:
    return [b"CLUSTER", b"SETSLOT", b"%d" % slot, *words]


def _open_in(nodes: bytes) -> _Open:
    """The open slots in a node's own line of CLUSTER NODES.

    >>> _open_in(b"a1 h:1@2 myself,master - 0 0 1 connected 0-5 [3->-b2] [9-<-c3]\\n")
    _Open(migrating={3: b'b2'}, importing={9: b'c3'})
    """
    own = next(line for line in nodes.splitlines() if b"myself" in line)
    migrating, importing = dict[int, bytes](), dict[int, bytes]()
    for word in own.split()[8:]:
        for found, arrow in ((migrating, b"->-"), (importing, b"-<-")):
            slot, arrow_found, node = word.strip(b"[]").partition(arrow)
            if arrow_found:
                found[int(slot)] = node
    return _Open(migrating, importing)
