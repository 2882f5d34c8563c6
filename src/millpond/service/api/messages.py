"""The messages of the HTTP API as values: requests and responses, shared by service and client.

Times are microseconds since 1970 UTC. A request with an unknown field is refused.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

FileFormat = Literal["parquet", "json", "csv"]
SinkFormat = Literal["parquet", "json", "csv", "delta", "webhook", "kafka"]
Emit = Literal["final", "update"]
Role = Literal["starting", "standby", "leader", "stopping"]


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A query to be added: see `Pond.add`. Its rows go to a folder of its name below the operator's, to an
    address or a topic that the operator has named for that, or nowhere. `connection`: the name of the address, or of
    the Kafka cluster of the `topic`.
    """

    name: str
    text: str
    sink: SinkFormat | None = None
    serve: bool = False
    late: FileFormat | None = None
    emit: Emit = "final"
    correct_for: str | None = None
    deduplicate: tuple[str, ...] = ()
    deduplicate_within: str | None = None
    connection: str | None = None
    budget: str | None = None
    incomplete: bool = False
    backfill: bool | str = False
    topic: str | None = None


CHOICES: dict[str, tuple[str, ...]] = {
    "sink": get_args(SinkFormat), "late": get_args(FileFormat), "emit": get_args(Emit),
}  # fmt: skip
"""What some fields of `Asked` may be."""


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Another version of a query: see `Pond.alter`."""

    text: str
    deduplicate: tuple[str, ...] = ()
    deduplicate_within: str | None = None


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another value of a live parameter: for IN also a list."""

    value: bool | int | float | str | list[int | float | str]


class Feeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a live parameter takes its values from: a column of the rows of a query."""

    query: str
    column: str


class Instances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many parallel folds the pond is to have: see `Pond.scale`."""

    instances: int


class Relocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Buckets whose served rows are to be kept elsewhere, and where: see `Pond.move`. `to` is one of the stores that
    the operator allows, or `own`.
    """

    what: str
    to: str


class First(msgspec.Struct, frozen=True):
    """The first window that a query answers completely; its rows come when event time reaches `due_us`, which is its
    end plus the delay. Only of windows of a fixed size whose rows are emitted when they close.
    """

    start_us: int
    end_us: int
    due_us: int


class Changed(msgspec.Struct, frozen=True, tag_field="answer", tag="changed"):
    """A change that is in the log as `record`, in force for every epoch after it. `record` None: the query is one of
    those that the pond begins with. `complete_from_us`: the earliest start of a window that is answered; None: all.
    `what`: of instances how many, of rows which have moved and where to. `first`: see `First`.
    """

    kind: str
    name: str
    record: int | None = None
    complete_from_us: int | None = None
    what: str | None = None
    first: First | None = None


class Priced(msgspec.Struct, frozen=True, tag_field="answer", tag="priced"):
    """What a change would cost: see `reconfigure.change_price.Price`. `effective`: the first record that is answered
    so; `reread_bytes`, `reread_records`: what a backfill reads of files, or of Kafka. `first`: see `First`.
    """

    cost: str
    complete_from_us: int | None = None
    rereads: bool = False
    freed_bytes: int = 0
    moved_buckets: int = 0
    moved_bytes: int = 0
    effective: int | None = None
    recalled_bytes: int = 0
    reread_bytes: int = 0
    reread_records: int = 0
    first: First | None = None


class ColumnShown(msgspec.Struct, frozen=True):
    """A column and its SQL type."""

    name: str
    type: str


class Retained(msgspec.Struct, frozen=True):
    """What a stream keeps for queries that come later, in microseconds of event time: cells of slices, events with
    `columns` and those that are read anyway; slices are cut at multiples of `grain_us` too. 0: nothing of that.
    """

    slices_us: int = 0
    events_us: int = 0
    grain_us: int = 0
    columns: tuple[str, ...] = ()


class StreamShown(msgspec.Struct, frozen=True):
    """A stream of the pond. `source`: the format it is read in, `derived`, or `rows of` a query. `retain`: what it
    declares to keep beyond what queries in force need; None: nothing.
    """

    name: str
    source: str
    columns: tuple[ColumnShown, ...]
    newest_us: int | None = None
    retain: Retained | None = None


class QueryShown(msgspec.Struct, frozen=True):
    """A query as it is in force. `state`: running, paused, shadowed, promoted (its shadow is the version before) or
    quarantined, for which `reason` says why.

    `complete_from_us`: the earliest start of a window that is answered, and whole, in whichever version; None: all.
    `counts`: rows told, in all versions, and what became of events, since this leader began; `time_us` of the newest
    epoch, `keys`, and bytes of state: `own_bytes` go if this query alone is dropped, `shared_bytes` are its equal part
    of what it needs with others. `shadow`: the text of the version that is tried beside it.
    """

    name: str
    kind: Literal["windowed", "stateless", "join"]
    state: str
    version: int
    text: str
    streams: tuple[str, ...]
    columns: tuple[ColumnShown, ...]
    sink: str
    serve: bool
    complete_from_us: int | None = None
    reason: str | None = None
    counts: dict[str, int] = {}
    shadow: str | None = None


class FunctionShown(msgspec.Struct, frozen=True):
    """A function of the operator's: what a query calls by its name, or what queries in force still call.

    `digest`: the SHA-256 of its module's file; `newest`: new texts mean this version; `queries` that call it, by name.
    """

    name: str
    version: str
    module: str
    kind: str
    takes: tuple[str, ...]
    returns: str
    digest: str
    newest: bool
    queries: tuple[str, ...] = ()


class Parameter(msgspec.Struct, frozen=True):
    """A live parameter in force; `source`: the QUERY.column by which it is fed, `record`: whose rows gave the value."""

    name: str
    value: bool | int | float | str | list[int | float | str] | None
    type: str
    source: str | None = None
    record: int | None = None


class Event(msgspec.Struct, frozen=True):
    """A change in the history: its record, the writer's clock there, what was changed and by whom (`""`: by the pond
    itself). `functions`: those that the query calls, as `name@version`, each with the SHA-256 of its module's file.
    """

    record: int
    at_us: int
    kind: str
    name: str
    who: str
    text: str | None = None
    value: bool | int | float | str | list[int | float | str] | None = None
    complete_from_us: int | None = None
    functions: dict[str, str] = {}


class Found(msgspec.Struct, frozen=True):
    """The latest row of a key as of a record; `row` None: there is none."""

    as_of: int
    row: dict[str, Any] | None = None
    window_us: tuple[int, int] | None = None
    epoch: int | None = None


class Differs(msgspec.Struct, frozen=True):
    """How the rows of a query and its shadow compare, as of a record since they were compared: numbers of rows that
    both told and that one told, of which some are shown.
    """

    as_of: int
    same: int
    only_query: int
    only_shadow: int
    examples_of_query: tuple[str, ...] = ()
    examples_of_shadow: tuple[str, ...] = ()


class SourceShown(msgspec.Struct, frozen=True):
    """How far the pond is behind the source of a stream: records of Kafka, or files, that are not committed yet.
    `waiting` None: not known, for no epoch was planned since this process began. Of files only those of the epoch at
    hand are known.
    """

    stream: str
    unit: str
    waiting: int | None = None


class FollowerShown(msgspec.Struct, frozen=True):
    """How many records of the log a sink or the view is behind, and what keeps it. See `SourceShown` for input."""

    name: str
    behind: int
    error: str | None = None
    note: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why epochs do not run now, and when they are tried again."""

    code: str
    what: str
    cure: str
    failures: int
    retry_in_s: float


class Health(msgspec.Struct, frozen=True):
    """What a service is now."""

    role: Role


class Status(msgspec.Struct, frozen=True):
    """How a pond fares, as its leader, or one that stands by, sees it.

    `record`: the log's newest; `epoch`: the newest epoch there. Numbers count since this process leads.
    `took_over_s`: from the moment the former leader was found gone to the claim. `buckets_moving`: of so many buckets
    the state is still on its way to the instance that is to have it. `sources`: how much input waits. `problems`: what
    makes results incomplete, such as a quarantined query; each opens with a code.
    """

    role: Role
    pond: str
    record: int
    epoch: int
    queries: int
    leader: str | None = None
    instances: int = 0
    epochs: int = 0
    events: int = 0
    events_per_s: float = 0.0
    epoch_s: float = 0.0
    epoch_p99_s: float = 0.0
    since_epoch_s: float | None = None
    took_over_s: float | None = None
    failure: Failure | None = None
    followers: tuple[FollowerShown, ...] = ()
    buckets_moving: int = 0
    sources: tuple[SourceShown, ...] = ()
    problems: tuple[str, ...] = ()


class Placed(msgspec.Struct, frozen=True):
    """How many buckets each instance has on which shard of the store, and the part of them that is local, 0 … 1."""

    local_hit_rate: float
    shares: tuple[dict[str, int | str], ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """An error: its stable code, what happened, what to do; `retry`: the same request may succeed later."""

    code: str
    what: str
    cure: str = ""
    retry: bool = False
