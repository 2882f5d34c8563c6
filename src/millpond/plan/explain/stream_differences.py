"""Compares two declarations of a stream in the words of CREATE TABLE, for messages."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.model.stream import Field, Stream

_ORDER = "the order of columns"


def stream_differences(before: Stream, now: Stream) -> str:
    """What differs between two declarations of a stream, with both values, as a part of a sentence.

    >>> old = Stream("tx", (Field("ts", "timestamp"),))
    >>> stream_differences(old, msgspec.structs.replace(old, max_ahead_us=None))
    "'max_ahead' was 3600 seconds and is now none"
    >>> stream_differences(old, Stream("tx", (Field("ts", "string"), Field("v", "bigint"))))
    'the column ts was timestamp and is now string; the column v was not set and is now bigint'
    >>> two = Stream("tx", (Field("ts", "timestamp"), Field("v", "bigint")))
    >>> stream_differences(two, Stream("tx", two.columns[::-1]))
    'the order of columns was ts, v and is now v, ts'
    """
    old, new = dict(_properties(before)), dict(_properties(now))
    orders = [[field.name for field in stream.columns] for stream in (before, now)]
    if sorted(orders[0]) == sorted(orders[1]):
        old[_ORDER], new[_ORDER] = map(", ".join, orders)
    changed = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return "; ".join(f"{name} was {old.get(name, 'not set')} and is now {new.get(name, 'not set')}" for name in changed)


def _properties(stream: Stream) -> Iterator[tuple[str, str]]:
    """What a declaration consists of, by name, as text; without what is not set."""
    for field in stream.columns:
        yield f"the column {field.name}", _column(field)
    for made in stream.generated:
        yield f"the generated column {made.name}", f"{made.type} AS ({made.sql})"
    if stream.source is not None:
        yield "the source", stream.source.format
        for name, value in stream.source.options:
            yield f"the option {name}", repr(value)
    if stream.order is not None:
        yield "'order.partition'", stream.order.partition
        yield "'order.offset'", stream.order.offset or "not set"
        yield "'order.partitions'", ", ".join(stream.order.partitions) or "not set"
        yield "'idle_after'", _seconds(stream.order.idle_after_us)
    yield "'max_ahead'", "none" if stream.max_ahead_us is None else _seconds(stream.max_ahead_us)
    if stream.partitioned_by is not None:
        yield "PARTITIONED BY", stream.partitioned_by
    kept, policy = stream.retention, stream.on_malformed
    for name, us in (("retain.slices", kept.slices_us), ("retain.events", kept.events_us), ("grain", kept.grain_us)):
        yield f"'{name}'", _seconds(us)
    yield "'retain.columns'", ", ".join(kept.columns) or "not set"
    yield "'malformed'", repr(policy.policy)
    yield "'dead.path'", "not set" if policy.sink is None else repr(policy.sink.path)
    yield "'dead.ratio'", "not set" if policy.ratio is None else f"{policy.ratio:g}"


def _column(field: Field) -> str:
    kind = field.type if isinstance(field.char, msgspec.UnsetType) else field.char
    default = "" if isinstance(field.default, msgspec.UnsetType) else f" DEFAULT {field.default}"
    return f"{kind}{default}"


def _seconds(us: int) -> str:
    return f"{us / 1_000_000:g} seconds"
