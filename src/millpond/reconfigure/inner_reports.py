"""Reports on inner queries as parts of the queries that use them, because users do not know inner queries.

The events of a query are those that its steps read from streams. Events and rows that a later step cannot use are
counted, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.log.records import EpochRecord, Fates
from millpond.model.selection import INNER, AnyQuery, is_inner
from millpond.model.spec import PondSpec
from millpond.model.stream import DeclaredTables, Relation, Stream
from millpond.plan.options.live_parameters import parameters_in
from millpond.plan.upstream.steps import inner_of, streams_of, with_inner

_NAME = re.compile(rf"{INNER}[0-9a-f]+")
_WORD = re.compile(rf"(?:{INNER})?\w+")
_MARKER = re.compile(r"'(?:[^'\\]|\\.)*'|\b(join[0-9]+)\b(\.?)")  # texts of users are found first, and stay
_LOST = ("late", "dead")


def visible_record(record: EpochRecord, spec: PondSpec) -> EpochRecord:
    """The record of an epoch in which inner queries are parts of the queries that use them."""
    if not any(stream.steps for stream in spec.streams):
        return record
    return msgspec.structs.replace(
        record, counts=_counts(record.counts, spec), fates=_fates(record.fates, spec),
        quarantined=visible_quarantine(record.quarantined, spec),
    )  # fmt: skip


def visible_quarantine(reasons: Mapping[str, str], spec: PondSpec) -> dict[str, str]:
    """The reasons for quarantine by query; a query whose inner query is quarantined has the reason of that."""
    found = {name: why for name, why in reasons.items() if not is_inner(name)}
    for query, inner in _steps(spec):
        for step in inner:
            if reasons.get(step.name) and not found.get(query.name):
                found[query.name] = reasons[step.name].replace(step.name, query.name)
    return found


def users_of(name: str, queries: Iterable[AnyQuery], streams: Mapping[str, Stream]) -> list[str]:
    """The sorted names of the queries that use a parameter, in any of their steps."""
    return sorted(query.name for query in queries if name in parameters_of_steps(query, streams))


def parameters_of_steps(query: AnyQuery, streams: Mapping[str, Stream]) -> frozenset[str]:
    """The names of the parameters in a query and in its inner queries."""
    return frozenset[str]().union(*map(parameters_in, with_inner([query], streams)))


def plain_names(text: str, label: str) -> str:
    """The text with `label` instead of the names of inner queries."""
    return _NAME.sub(label, text)


def relabelled(text: str, names: Mapping[str, str]) -> str:
    """The text with labels, see `labels`, instead of names.

    Columns of a joined table are those of the stream that was named last before an empty line, or of all streams.

    >>> print(relabelled("tx_1 where join1\\n  join1.c = 'join1'\\n\\ntx_2 join1.d, join2.e", {
    ...     "tx_1": "tx with a", "tx_1/join1": "a", "tx_2/join1": "b", "tx_2/join2": "c"}))
    tx with a where matches a
      a.c = 'join1'
    <BLANKLINE>
    tx_2 b.d, c.e
    """
    tables: dict[str, dict[str, str]] = {}
    for name, label in names.items():
        stream, divided, marker = name.partition("/")
        if divided:
            tables.setdefault(stream, {})[marker] = label
    every: dict[str, set[str]] = {}
    for marker, label in (pair for of in tables.values() for pair in of.items()):
        every.setdefault(marker, set()).add(label)
    shared = {marker: found.pop() for marker, found in every.items() if len(found) == 1}

    def line_of(line: str, own: Mapping[str, str]) -> str:
        def table(found: re.Match[str]) -> str:
            label = own.get(found[1] or "", shared.get(found[1] or ""))
            return found[0] if label is None else f"{label}." if found[2] else f"matches {label}"

        return _WORD.sub(lambda found: names.get(found[0], found[0]), _MARKER.sub(table, line) if tables else line)

    lines, own = [], dict[str, str]()
    for line in text.split("\n"):
        if tables:
            named = [tables[word] for word in _WORD.findall(line) if word in tables]
            own = named[0] if named else own if line.strip() else {}
        lines.append(line_of(line, own))
    return "\n".join(lines)


def stream_labels(streams: Iterable[Stream], relations: Collection[Relation]) -> dict[str, str]:
    """A readable and distinct name for each derived stream, see `Stream.labelled`.

    Equal names of two streams get the digests of their definitions, so no name is that of another stream after a drop.
    Also the name of each joined table, under the name of the stream, `/`, and what precedes the columns of the table.
    """
    streams, tables = tuple(streams), DeclaredTables(relations)
    found = {
        one.name: plain_names(one.labelled(tables), "rows of an inner query")
        for one in streams if one.derived is not None
    }  # fmt: skip
    taken = Counter([*found.values(), *(stream.name for stream in streams if stream.derived is None)])
    columns = {f"{one.name}/{name}": table for one in streams for name, table in one.joined(tables).items()}
    return columns | {
        name: label if taken[label] == 1 else f"{label} ({name.rpartition('_')[2]})" for name, label in found.items()
    }


@contextmanager
def declared_names(streams: Iterable[Stream], relations: Collection[Relation]) -> Iterator[None]:
    """An error within names derived streams by their labels."""
    try:
        yield
    except UnsupportedQuery as error:
        raise type(error)(relabelled(error.what, stream_labels(streams, relations)), error.cure) from error


def labels(
    queries: Iterable[AnyQuery], streams: Iterable[Stream], relations: Collection[Relation]
) -> dict[str, str]:  # fmt: skip
    """A readable name for each inner query and each derived stream.

    An inner query has its number among the steps of the first query that uses it. The stream of a UNION ALL has a name
    like an inner query, and a label, too.
    """
    streams = tuple(streams)
    by_name = {stream.name: stream for stream in streams}
    found = stream_labels(streams, relations)
    for query in sorted((query for query in queries if not is_inner(query.name)), key=lambda query: query.name):
        for number, step in enumerate(inner_of(query, by_name), 1):
            found.setdefault(step.name, f"step {number} of {query.name}")
        for name in streams_of(query, by_name):
            if name in by_name and len(by_name[name].upstreams) > 1:
                found.setdefault(name, f"union of {query.name}")
    return found


def _steps(spec: PondSpec) -> Iterable[tuple[AnyQuery, tuple[AnyQuery, ...]]]:
    by_name = {stream.name: stream for stream in spec.streams}
    for query in spec.all_queries:
        if inner := inner_of(query, by_name):
            yield query, inner


def _is_first(step: AnyQuery) -> bool:
    return any(not is_inner(stream) for stream in step.streams)


def _counts(counts: Mapping[str, Mapping[str, int]], spec: PondSpec) -> dict[str, dict[str, int]]:
    merged = {name: dict(of) for name, of in counts.items() if not is_inner(name)}
    for query, inner in _steps(spec):
        mine = merged.setdefault(query.name, {})
        total: dict[str, int] = {}
        for step in (*inner, query):
            for fate in ("read", "applied", "late", "dead", "filtered"):
                number = counts.get(step.name, {}).get(fate, 0)
                if _is_first(step) or fate in _LOST:
                    total[fate] = total.get(fate, 0) + number
                if fate in _LOST and not _is_first(step):
                    total["read"] = total.get("read", 0) + number
        if any(total.values()) or "read" in mine:
            mine.update(total)
    return merged


def _fates(fates: Fates, spec: PondSpec) -> Fates:
    found = {name: dict(of) for name, of in fates.items() if not is_inner(name)}
    for query, inner in _steps(spec):
        mine: dict[str, list[int]] = {}
        for step in (*inner, query):
            for partition, numbers in fates.get(step.name, {}).items() if _is_first(step) else ():
                mine[partition] = [a + b for a, b in zip(mine.get(partition, [0] * len(numbers)), numbers, strict=True)]
        if mine or query.name in found:
            found[query.name] = mine
    return found
