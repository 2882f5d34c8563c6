"""The messages of the HTTP API as values: requests and responses, shared by service and client.

Times are microseconds since 1970 UTC. A request with an unknown field is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec

from millpond.errors import RequestError, one_of
from millpond.followers.sinks.kinds import is_known, remote_names, sink_kind
from millpond.service.api.notebook import Tabular

FileFormat = Annotated[str, msgspec.Meta(examples=sorted(remote_names(late=True)))]
SinkFormat = Annotated[str, msgspec.Meta(examples=sorted(remote_names()))]
Emit = Literal["final", "update"]
LateBy = Literal["event", "window", "join"]
Role = Literal["starting", "standby", "leader", "stopping"]

STATE_CHANGES = ("drop", "pause", "resume", "promote", "rollback", "discard")
"""The changes of a query that need no text."""


class NewQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to add a query: see `Pond.add`.

    `sink` None: rows are not published. A file sink writes to a folder with the query's name, in the operator's output
    folder; so does `late` for late rows. A webhook publishes to the address of the named `connection`, Kafka to the
    `topic` in the cluster of the named `connection`, PostgreSQL to its `table`; the operator must offer both. The
    only connection that is offered needs no name.
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
    late_by: LateBy = "event"
    state_ttl: str | None = None
    time_zone: str | None = None
    table: str | None = None


def check_sink_names(sink: str | None, late: str | None, *, unknown: bool) -> None:
    """Check the names of the sinks for rows and for late rows.

    `unknown`: also refuse names of sinks that this process does not know. A client leaves these to the service.

    Raises:
        RequestError: a query that is added over the network may not name the sink.
    """
    for field, name, known in (("sink", sink, remote_names()), ("late", late, remote_names(late=True))):
        if name is None or not (unknown or is_known(name)):
            continue
        if not (is_known(name) and sink_kind(name).may_be_remote(late=field == "late")):
            raise not_allowed(field, name, known)


def not_allowed(field: str, value: str, known: Collection[str]) -> RequestError:
    """The error for a field of `NewQuery` with another value than the known ones."""
    what = f"A query that is added over the network cannot have {value!r} as its {field}."
    return RequestError(what, one_of(value, known))


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a new version of a query: see `Pond.alter` and `Pond.shadow`."""

    text: str
    deduplicate: tuple[str, ...] = ()
    deduplicate_within: str | None = None


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events for a stream, as objects with its columns. A request with a `key` that was used before adds nothing."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    events: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


class PushDone(msgspec.Struct, frozen=True):
    """The number of events of a request that are durable; `repeated`: an earlier request with this key wrote them."""

    stream: str
    events: int
    repeated: bool


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sends dead letters again, those whose reason is or contains `reason`; `timeless`: also those without a time."""

    reason: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    timeless: bool = False


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to set a live parameter; for a parameter of IN, `value` may be a list.

    `new`: make the parameter if there is none of this name, for queries that come later.
    """

    value: bool | int | float | str | list[int | float | str]
    new: bool = False


class Feeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to feed a live parameter from a column of a query's rows: see `Pond.feed`."""

    query: str
    column: str


class Instances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to change the number of instances, or the shards of the store: see `Pond.scale`.

    `instances`: null for the present number. `shards`: a number or names of servers; null: they stay; an empty list,
    without a number of instances, ends a move of hash slots where it is.
    """

    instances: int | None = None
    shards: int | tuple[str, ...] | None = None


class Relocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to move the served rows of some buckets to another store: see `Pond.move`.

    `what`: the buckets. `to`: one of the stores that the operator allows, or `own` for the pond's own store.
    """

    what: str
    to: str


class First(msgspec.Struct, frozen=True):
    """The first window that a query answers completely.

    Its rows are emitted when event time reaches `due_us`: the end of the window plus the query's delay. Given only for
    windows of a fixed size whose rows are emitted when the window closes.
    """

    start_us: int
    end_us: int
    due_us: int


class Changed(Tabular, frozen=True, tag_field="answer", tag="changed"):
    """A change that was made.

    `record`: the record of the change in the log; it is in force from the next epoch on. None: the query was added
    before the pond's first epoch. `complete_from_us`: the earliest start of a complete window; None: all windows are
    complete. `what`: for `scale` the number of instances, for `move` the buckets and their new store, for `add` the
    folder of its rows. `first`: see `First`. `hand_over`: if an altered query
    has windows, which of them its old version emits, as text; then `complete_from_us` is that of its new version.
    """

    kind: str
    name: str
    record: int | None = None
    complete_from_us: int | None = None
    what: str | None = None
    first: First | None = None
    hand_over: str = ""


class Priced(Tabular, frozen=True, tag_field="answer", tag="priced"):
    """The price of a change that was not made: the response to a dry run.

    `cost`: one of `at once`, `complete at once`, `complete later`, `state moves`, `rows are copied`.
    `complete_from_us`: the earliest start of a complete window; None: all windows are complete. `rereads`: the read
    restarts on its checkpoint. `freed_bytes`: state that the change frees. `moved_buckets`, `moved_bytes`: state
    that migrates to other instances. `effective`: the first epoch with the change, as the number of its record.
    `recalled_bytes`: retained events that the first epoch replays. `reread_bytes`, `reread_records`: the amount
    that a backfill reads from files, or from Kafka. `first`: see `First`. `shards`: the servers of the store that
    keep rows afterwards, if the change names them; `slots_buckets`, `slots_bytes`: rows that move between them.
    `adds`: what an added query shares with the others and adds to them, or what stays of a dropped query and who
    else reads its streams, as text. `hand_over`: see `Changed`.
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
    shards: tuple[str, ...] = ()
    slots_buckets: int = 0
    slots_bytes: int = 0
    adds: str = ""
    hand_over: str = ""


class ColumnShown(msgspec.Struct, frozen=True):
    """A column and its SQL type."""

    name: str
    type: str


class Retained(msgspec.Struct, frozen=True):
    """The retention of a stream for queries that are added later, in microseconds of event time; 0: none.

    `slices_us`: how long cells are retained; slices are also cut at multiples of `grain_us`. `events_us`: how long
    events are retained, with `columns` in addition to the columns that registered queries read.
    """

    slices_us: int = 0
    events_us: int = 0
    grain_us: int = 0
    columns: tuple[str, ...] = ()


class StreamShown(msgspec.Struct, frozen=True):
    """A stream of the pond.

    `name`: of a stream that Spark computes while it reads, the declared streams and what is added to them. `source`:
    the format of its source, `derived from` and the names of streams, or `rows of` and the name of a query.
    `newest_us`: the largest event time seen. `retain`: its declared retention; None: it keeps only what the queries in
    force need.
    """

    name: str
    source: str
    columns: tuple[ColumnShown, ...]
    newest_us: int | None = None
    retain: Retained | None = None


class QueryShown(msgspec.Struct, frozen=True):
    """A query in force.

    `state`: running, paused, shadowed (it has a shadow), promoted (its shadow is the previous version) or quarantined;
    `reason` says why it is quarantined. `version`: each alter, promote and rollback adds one, a shadow adds none.
    `complete_from_us`: the earliest start of a complete window, in any version;
    None: all windows are complete. `counts`: since this leader began, the `rows` that all versions emitted and the fate
    of the events that the current version read; in the newest epoch, the query's time `time_us`, its number of `keys`
    and its bytes of state: `own_bytes` would be freed if this query were dropped, `shared_bytes` are its equal share of
    state that several queries need. `shadow`: the text of its shadow. `time_zone`: that of the text, if it is not
    that of the session. `earlier_until_us`: earlier versions with another text still emit windows that start before
    this time, and keep state for them; None: there are none.
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
    time_zone: str | None = None
    earlier_until_us: int | None = None


class FunctionShown(msgspec.Struct, frozen=True):
    """A version of a user function of the operator.

    `digest`: the SHA-256 of its module's file. `newest`: new query texts get this version; an older version is listed
    while queries in force call it. `queries`: the names of the queries that call it.
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
    """A live parameter in force.

    `source`: the column that feeds it, as `QUERY.column`. `record`: the change that set the current value, or the epoch
    whose rows did; None: the pond began with it, or it was set more than 1,000 changes ago.
    """

    name: str
    value: bool | int | float | str | list[int | float | str] | None
    type: str
    source: str | None = None
    record: int | None = None


class Event(msgspec.Struct, frozen=True):
    """A change in the history.

    `at_us`: the writer's clock when it appended the record. `who`: the requester; `""`: the pond itself. `text`: that
    of a query, or what `end` ended. `functions`: the user functions that the query calls, as `name@version`, each with
    the SHA-256 of its module's file. `hand_over`: see `Changed`.
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
    hand_over: str = ""


class Found(msgspec.Struct, frozen=True):
    """The latest row of a key as of a record; `row` None: the key has no row."""

    as_of: int
    row: dict[str, Any] | None = None
    window_us: tuple[int, int] | None = None
    epoch: int | None = None


class RowsSent(msgspec.Struct, frozen=True):
    """The data of an event `rows`: rows of a query that one record committed, in the order of the log.

    The `id` of the event is the position after these rows. A record with many rows is sent as several events. Other
    events: `position`, whose id says how far the log was read while there were no rows, and `error`, the last one.
    """

    record: int
    rows: list[dict[str, Any]]


class ColumnDiffers(msgspec.Struct, frozen=True):
    """A column in which a query and its shadow differ.

    `rows`: the number of pairs of rows with the same window and key whose values differ. `largest`: the largest
    difference of two numbers; None: the column has no numbers, or no two have a finite difference but 0. `greater`,
    `less`: the number of pairs in which the number of the shadow is greater or less.
    """

    column: str
    rows: int
    largest: float | None = None
    greater: int = 0
    less: int = 0


class Differs(msgspec.Struct, frozen=True):
    """The comparison of a query with its shadow, after the record `since` to the record `as_of`.

    It begins when the shadow is added, and anew when the pond is opened. `same`: the number of rows that both
    emitted. `only_query`, `only_shadow`: the number of rows that only one of them emitted, with some of these rows
    as examples. `first`: the first window that is compared; None: there are no windows of a fixed size, or rows are
    emitted before they close. `closed_us`: the compared windows end by this watermark. `pairs`: the number of
    differing rows that both have with the same window and key, with which the examples of both begin, in one order;
    `columns`: where they differ.
    """

    as_of: int
    same: int
    only_query: int
    only_shadow: int
    examples_of_query: tuple[str, ...] = ()
    examples_of_shadow: tuple[str, ...] = ()
    since: int | None = None
    first: First | None = None
    closed_us: int | None = None
    pairs: int = 0
    columns: tuple[ColumnDiffers, ...] = ()


class PartitionShown(msgspec.Struct, frozen=True):
    """The offsets of a partition of a topic: `committed` is the next one to read, `end` follows the newest record."""

    topic: str
    partition: str
    committed: int
    end: int


class SourceShown(msgspec.Struct, frozen=True):
    """The backlog of a stream's source.

    `waiting`: the number of Kafka records, or of files, that are not committed yet; `unit` says which. None: not known,
    because this process has not planned an epoch yet. For files, only those of the current epoch are known.
    `partitions`: those of a topic.
    """

    stream: str
    unit: str
    waiting: int | None = None
    partitions: tuple[PartitionShown, ...] = ()


class FollowerShown(msgspec.Struct, frozen=True):
    """The number of records of the log that a sink or the view still has to apply, and its error, if it has one.

    `remaining_s`: about how many seconds that will take; None if it is not known. For the backlog of input see
    `SourceShown`.
    """

    name: str
    behind: int
    error: str | None = None
    note: str | None = None
    remaining_s: float | None = None


class Failure(msgspec.Struct, frozen=True):
    """The error that stops epochs, the number of failures in a row, and the time to the next attempt."""

    code: str
    what: str
    cure: str
    failures: int
    retry_in_s: float


def failure_text(failure: Failure | None) -> str:
    """The error as text; empty if there is none."""
    return "" if failure is None else f"[{failure.code}] {failure.what} {failure.cure}"


class Health(msgspec.Struct, frozen=True):
    """The current role of a service."""

    role: Role


class Status(Tabular, frozen=True):
    """The state of a pond, as reported by its leader or by a standby.

    `record`: the newest record of the log. `epoch`: the newest epoch in it. `epochs`, `events` and the times of epochs
    are measured since this process leads. `took_over_s`: the time from the discovery that the previous leader had
    failed to the claim. `buckets_moving`: the number of buckets whose state has not yet migrated to its next instance.
    `moved_in_s`: the estimated seconds until it will have, if the rate is known.
    `sources`: the backlog of each source. `standbys`: the addresses of the processes that take over if the leader
    fails. `problems`: causes of incomplete results, such as a quarantined query; each begins with an error code.
    `starting_s`: for how long the process has been starting, if it neither leads nor stands by.
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
    moved_in_s: float | None = None
    sources: tuple[SourceShown, ...] = ()
    problems: tuple[str, ...] = ()
    standbys: tuple[str, ...] = ()
    starting_s: float | None = None


class Placed(msgspec.Struct, frozen=True):
    """The placement of the buckets of served rows.

    `shares`: the number of buckets of each instance on each shard. `aligned`: the fraction of buckets that are on the
    main shard of their instance, 0 to 1. `local_hit_rate`: of the `requests` that instances sent to the store for the
    newest record, the fraction that stayed on the instance's host, 0 to 1; null if there were none.
    """

    local_hit_rate: float | None
    shares: tuple[dict[str, int | str], ...] = ()
    aligned: float | None = None
    requests: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """An error: its stable code, what happened and what to do. `retry`: the same request may succeed later."""

    code: str
    what: str
    cure: str = ""
    retry: bool = False
