"""Checks that an existing pond folder was made for the same queries and settings; the error names the difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from millpond.errors import ChangeRefused, ForeignPondError
from millpond.log.locations.address import Address
from millpond.log.manifest import Manifest
from millpond.model.change_history import ChangeEffects
from millpond.model.expressions import Literal
from millpond.model.query import changed_functions
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec, to_json
from millpond.model.stream import Relation, Stream
from millpond.plan.explain.amounts import count_of
from millpond.plan.explain.stream_differences import stream_differences
from millpond.plan.upstream.steps import streams_of
from millpond.reconfigure.catalog import in_force, visible

_SHOWN = 5
_TYPE = re.compile(r'"type":"(?:[^"\\]|\\.)*"')


def checked_spec(
    path: Address, known: PondSpec | None, queries: Sequence[AnyQuery], declared: Sequence[Stream], instances: int,
    parameters: Mapping[str, Literal],
) -> PondSpec:  # fmt: skip
    """The spec of the given queries, without owners, if it equals the spec `known` of the pond at `path`.

    Its streams are as declared now, apart from what derived streams inherited when they were recorded.

    Raises:
        ForeignPondError: the pond has other queries, streams or instances; the message names them, and how to change
            them.
    """
    by_name = {stream.name: stream for stream in declared}
    used = {stream for query in queries for stream in streams_of(query, by_name)}
    if known is not None:
        recorded = {stream.name: stream for stream in known.streams}
        declared = [_continued(stream, recorded.get(stream.name, stream)) for stream in declared]
    spec = PondSpec.of(tuple(stream for stream in declared if stream.name in used), queries, instances)
    if known is not None and not _equal_specs(visible(known).meaning, spec.meaning):
        raise _foreign_pond_error(path, visible(known), spec)
    if known is not None and not (
        isinstance(known.changed, msgspec.UnsetType) and visible(known).meaning == spec.meaning
    ):
        now = {stream.name: stream for stream in declared if stream.source is not None}
        streams = tuple(_with_declared_source(one, now.get(one.name)) for one in known.streams)
        return msgspec.structs.replace(known, streams=streams)
    return msgspec.structs.replace(spec, changed=ChangeEffects(parameters=dict(parameters))) if parameters else spec


def _continued(declared: Stream, recorded: Stream) -> Stream:
    return recorded if declared.derived is not None else declared.continuing(recorded)


def _with_declared_source(recorded: Stream, now: Stream | None) -> Stream:
    """The recorded stream with what a declaration may change."""
    if now is None:
        return recorded
    return msgspec.structs.replace(
        recorded, source=now.source, malformed=now.malformed, first_malformed=now.first_malformed
    )


def with_relations(spec: PondSpec, declared: Sequence[Relation]) -> PondSpec:
    """The spec with what its texts name: as declared now, and otherwise as the log has it."""
    names = {relation.name for relation in declared}
    named = (*declared, *(relation for relation in spec.relations if relation.name not in names))
    return msgspec.structs.replace(spec, named=named or msgspec.UNSET)


def _equal_specs(known: PondSpec, given: PondSpec) -> bool:
    """Whether two specs are equal apart from backticks around names of struct fields, which older ponds do not have."""
    return known == given or _unquoted(known) == _unquoted(given)


def _unquoted(spec: PondSpec) -> str:
    return _TYPE.sub(lambda found: found[0].replace("`", ""), to_json(spec))


def initial_instances(known: PondSpec | None, given: int | None) -> int | None:
    """The number of instances of a pond that is opened: `given`, or that in `known` if it was scaled; None: unknown."""
    if known is None or (given is not None and not known.effects.scaled):
        return given
    return known.instances


def spec_to_claim(loaded: Manifest, spec: PondSpec, manifest: Manifest) -> str:
    """The spec that a claim after `manifest` stores; `spec` was computed from the older manifest `loaded`.

    Raises:
        ChangeRefused: another driver has changed the queries in between.
    """
    before, now = (in_force(one) if one.spec else None for one in (loaded, manifest))
    if now not in (None, before, spec):
        raise ChangeRefused("Another driver has changed the pond while this one opened it.", "Open it again.")
    return to_json(spec)


def unused_texts(texts: Mapping[str, str], queries: Sequence[AnyQuery]) -> str | None:
    """Which `texts` of a pond file, by name, the pond does not run, because it has begun; None if it runs all of them.

    `queries` are the current versions in the pond. Spaces and line breaks make no difference.
    """
    runs = {query.name: query.text.split() for query in queries}
    absent = sorted(texts.keys() - runs.keys())
    changed = sorted(name for name in texts.keys() & runs.keys() if texts[name].split() != runs[name])
    parts = [
        f"{_named(names)} {verb} ({cure})" for names, verb, cure in (
            (absent, "is not in the pond" if len(absent) == 1 else "are not in the pond", "`millpond add`"),
            (changed, "has another text there" if len(changed) == 1 else "have other texts there", "`millpond alter`"),
        ) if names
    ]  # fmt: skip
    return f"The queries of a file are used only when a pond is new. Here {'; '.join(parts)}." if parts else None


def _foreign_pond_error(path: Address, known: PondSpec, given: PondSpec) -> ForeignPondError:
    """The error that an existing pond has other queries, streams or instances than given, and how to change it."""
    has = f"The pond in {path} has {_listed([query.name for query in known.all_queries])}"
    old, new = ({query.name: query for query in spec.meaning.all_queries} for spec in (known, given))
    added, left_out = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    functions = changed_functions(known.queries, given.queries)
    if functions:
        return ForeignPondError(
            f"{has}, and was made with other functions ({', '.join(functions)}).",
            "Give each changed function a new version, and move its queries to it with `millpond alter`.",
        )
    if added or left_out or changed:
        edits = ((added, "new", "add"), (changed, "changed", "alter"), (left_out, "missing", "drop"))
        parts = [f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {how}" for names, how, _ in edits if names]
        verbs = _either([f"`millpond {verb}`" for names, _, verb in edits if names])
        return ForeignPondError(
            f"{has}. In the given queries, {', '.join(parts)}.",
            f"To change a pond in use, run `millpond serve --checkpoint {path}` and then {verbs} (in Python, open the "
            "pond without queries and call its methods). To start again, use another folder.",
        )
    if known.instances != given.instances:
        return ForeignPondError(
            f"The pond in {path} has {known.instances} instances, not {given.instances}.",
            f"Leave the number out, or change it with `millpond serve` and `millpond scale {given.instances}`.",
        )
    before, now = ({stream.name: stream for stream in spec.meaning.streams} for spec in (known, given))
    streams = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    both = [name for name in streams if name in before and name in now]
    what = "".join(f" In {name}, {stream_differences(before[name], now[name])}." for name in both[:_SHOWN])
    return ForeignPondError(
        f"The pond in {path} was made with another declaration of {_listed(streams, 'stream')}.{what}",
        "Declare the streams as before, or use a new folder: a stream cannot change while queries read it.",
    )


def _listed(names: Sequence[str], word: str = "query") -> str:
    """A list of names as text, shortened if it is long.

    >>> _listed(["a"]), _listed(["a", "b"]), _listed([*"abcdefg"])
    ('query a', 'queries a, b', 'queries a, b, c, d, e and 2 more')
    """
    return f"{count_of(len(names), word).partition(' ')[2]} {_named(names)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
