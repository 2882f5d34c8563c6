"""Transfers files of a pond between hosts through Redis or Valkey.

The parts `P` and `T` of keys are as in `redis`:

    P:{T}:POND:file:NAME     hash   pieces of the file by number, and `size`: its size in bytes
    P:{T}:POND:files         set    names of files

`T` is the tag of the first bucket of the instance that wrote the file, so the file is on the primary that has the
instance's rows. A file without `size`, or with fewer bytes, counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redis.crc import key_slot

from millpond.state.backends.redis import keys_of
from millpond.state.backends.redis_nodes import Command, Nodes, packed
from millpond.state.ports.file_store import UNNAMED_SECONDS, FileStore, Parts

PIECE_BYTES = 16 << 20
"""The size of a piece, which one command transfers; the limit of Redis is 512 MB."""

_SIZE = b"size"


class RedisFiles(FileStore):
    """The files of `pond` at `address`; the files of instance i have the hash tag `tags[i]`.

    Raises:
        StoreError: a server cannot be reached.
    """

    def __init__(self, address: str, pond: str, tags: Sequence[str]) -> None:
        address, prefix = keys_of(address)
        self._places = [f"{prefix}:{{{tag}}}:{pond}:".encode() for tag in tags]
        self._slots = [key_slot(place) for place in self._places]
        self._nodes = Nodes(address)

    def put(self, name: str, parts: Parts, *, kept: bool = False) -> None:
        data = b"".join(parts)
        words: list[list[bytes]] = []
        for number, first in enumerate(range(0, len(data), PIECE_BYTES)):
            words.append([b"HSET", _file(name), b"%d" % number, data[first : first + PIECE_BYTES]])
        words.append([b"HSET", _file(name), _SIZE, b"%d" % len(data)])
        words.append([b"PERSIST", _file(name)] if kept else [b"EXPIRE", _file(name), b"%d" % UNNAMED_SECONDS])
        words.append([b"SADD", b"files", name.encode()])
        self._nodes.run_or_raise([self._command(name, one) for one in words])

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        answers = self._nodes.run_or_raise([self._command(name, [b"HGETALL", _file(name)]) for name in names])
        return [_whole(one) for one in answers]

    def take_many(self, names: Sequence[str]) -> list[bytes | None]:
        verbs = (b"PERSIST", b"HGETALL")
        answers = self._nodes.run_or_raise([self._command(name, [v, _file(name)]) for name in names for v in verbs])
        return [_whole(one) for one in answers[1::2]]

    def lacking(self, names: Iterable[str]) -> list[str]:
        wanted = list(names)
        answers = self._nodes.run_or_raise([self._command(name, [b"HEXISTS", _file(name), _SIZE]) for name in wanted])
        return [name for name, there in zip(wanted, answers, strict=True) if not there]

    def names(self) -> set[str]:
        wanted = [
            Command(slot, packed([b"SMEMBERS", place + b"files"]))
            for place, slot in zip(self._places, self._slots, strict=True)
        ]
        return {name.decode() for answers in self._nodes.run_or_raise(wanted) for name in answers}

    def remove_many(self, names: Iterable[str]) -> None:
        wanted = list(names)
        self._nodes.run_or_raise([self._command(name, [b"UNLINK", _file(name)]) for name in wanted])
        self._nodes.run_or_raise([self._command(name, [b"SREM", b"files", name.encode()]) for name in wanted])

    def close(self) -> None:
        """Closes the connections."""
        self._nodes.close()

    def _command(self, name: str, words: Sequence[bytes]) -> Command:
        """A command for a file; its second word is completed to a key of the file's instance."""
        home = _writer(name) % len(self._places)
        verb, key, *more = words
        return Command(self._slots[home], packed([verb, self._places[home] + key, *more]))


def _file(name: str) -> bytes:
    return b"file:" + name.encode()


def _writer(name: str) -> int:
    """The instance that wrote a file: the first number of its name; 0 for records, which have no such number.

    >>> _writer("delta/00000000000000000012/3-writer-7.1.arrow"), _writer("log/00000000000000000012")
    (3, 0)
    """
    instance, divided, _ = name.rpartition("/")[2].partition("-")
    return int(instance) if divided and instance.isdecimal() else 0


def _whole(flat: Sequence[bytes]) -> bytes | None:
    pieces = dict(zip(flat[::2], flat[1::2], strict=True))
    size = pieces.pop(_SIZE, None)
    if size is None:
        return None
    data = b"".join(pieces[number] for number in sorted(pieces, key=int))
    return data if len(data) == int(size) else None
