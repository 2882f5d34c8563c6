"""The naive twin of `placement.partitions`: MurmurHash2 byte by byte, and every key looked at by itself."""

from __future__ import annotations

_M, _ALL = 0x5BD1E995, 0xFFFFFFFF


def hash_of(key: bytes) -> int:
    """The hash by which Kafka's producers in Java choose a partition, without its sign."""
    found = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _ALL
        word = (word ^ (word >> 24)) * _M & _ALL
        found = (found * _M & _ALL) ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * _M & _ALL
    found = (found ^ (found >> 13)) * _M & _ALL
    return (found ^ (found >> 15)) & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a topic that a record goes to."""
    return hash_of(key) % partitions
