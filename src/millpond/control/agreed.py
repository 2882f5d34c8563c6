"""What a pond is asked when it is opened: what the folder was asked before, or a refusal that names the difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from millpond.errors import ChangeRefused, ForeignPondError
from millpond.log.manifest import Manifest
from millpond.model.changed import Changed
from millpond.model.expressions import Literal
from millpond.model.query import changed_functions
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec, to_json
from millpond.model.stream import Stream
from millpond.reconfigure.catalog import in_force, seen

_TYPE = re.compile(r'"type":"(?:[^"\\]|\\.)*"')


def agreed(
    path: Path, known: PondSpec | None, queries: Sequence[AnyQuery], declared: Sequence[Stream], instances: int,
    parameters: Mapping[str, Literal],
) -> PondSpec:  # fmt: skip
    """What is asked now, without owners, if it is what the pond at `path` was asked before (`known`).

    Raises:
        ForeignPondError: it was asked something else.
    """
    used = {stream for query in queries for stream in query.streams}
    spec = PondSpec.of(tuple(stream for stream in declared if stream.name in used), queries, instances)
    if known is not None and not _alike(seen(known).meaning, spec.meaning):
        raise ForeignPondError(
            f"{path} was made for {_differences(seen(known), spec)}.",
            "Use the queries it was made for, or a new folder."
            if isinstance(known.changed, msgspec.UnsetType)
            else "Its queries were changed: open it without any, or with those in force.",
        )
    if known is not None and not (isinstance(known.changed, msgspec.UnsetType) and seen(known).meaning == spec.meaning):
        return known
    return msgspec.structs.replace(spec, changed=Changed(parameters=dict(parameters))) if parameters else spec


def _alike(known: PondSpec, asked: PondSpec) -> bool:
    """Whether two specs are equal, wherever names of struct fields stand in backticks: older ponds have none."""
    return known == asked or _unquoted(known) == _unquoted(asked)


def _unquoted(spec: PondSpec) -> str:
    return _TYPE.sub(lambda found: found[0].replace("`", ""), to_json(spec))


def born_with(known: PondSpec | None, told: int | None) -> int | None:
    """How many instances the pond was made with, which a pond that was scaled need not be told; None: nobody says."""
    if known is None or (told is not None and not known.left.scaled):
        return told
    return known.instances


def claimed(loaded: Manifest, spec: PondSpec, manifest: Manifest) -> str:
    """What a claim behind `manifest` says, given that `spec` was made for what stood in the log when it was loaded.

    Raises:
        ChangeRefused: another driver has changed the queries since.
    """
    before, now = (in_force(one) if one.spec else None for one in (loaded, manifest))
    if now not in (None, before, spec):
        raise ChangeRefused("Another driver has changed the pond while this one opened it.", "Open it again.")
    return to_json(spec)


def _differences(known: PondSpec, asked: PondSpec) -> str:
    """What two specs do not share, by name."""
    if known.instances != asked.instances:
        return f"{known.instances} instances, not {asked.instances}"
    functions = changed_functions(known.queries, asked.queries)
    if functions:
        return f"other functions ({', '.join(functions)}; what changed must have a new version)"
    old, new = ({query.name: query for query in spec.meaning.asked} for spec in (known, asked))
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return f"other queries ({', '.join(changed[:5])})" if changed else "other streams"
