"""The operations of the HTTP service on a pond, one method each.

Health, status, streams, queries, why, parameters, history and the list of dead letters are read from the log and
folders, and work in every process. Every other method needs this process to lead, or raises NotServingError.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from io import BytesIO
from typing import cast

import pyarrow as pa
from msgspec.structs import replace

from millpond.connections import offered, offered_target
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.dead_letters import (
    StreamLetters,
    left_out_line,
    repeated_line,
    replay,
    stream_letters,
    unsent,
)
from millpond.control.diagnose.facts import find_facts
from millpond.control.diagnose.letter_message import LetterKind
from millpond.control.diagnose.why_message import WhyShown
from millpond.control.pond.pond import Pond
from millpond.control.pond.report import QUERY
from millpond.control.wiring.pond_reader import key_columns, served_query
from millpond.errors import ChangeRefused, NotServingError, RequestError
from millpond.followers.prune import PruneFollower
from millpond.followers.runner import FollowerStatus
from millpond.followers.sinks.kinds import KINDS, remote_names, sink_kind
from millpond.model.endpoints import NOWHERE, Sink
from millpond.placement.moves import buckets_moving, maps_in
from millpond.plan.explain.amounts import count_of
from millpond.reconfigure.change_price import AT_ONCE, Price
from millpond.reconfigure.lifecycle import current
from millpond.runtime.inspect.timeline import Trace
from millpond.service.api.messages import (
    STATE_CHANGES,
    Changed,
    ColumnDiffers,
    Differs,
    Event,
    Feeds,
    First,
    FollowerShown,
    Found,
    FunctionShown,
    Health,
    Instances,
    NewQuery,
    Parameter,
    PartitionShown,
    Placed,
    Priced,
    Push,
    PushDone,
    QueryShown,
    Relocation,
    Replay,
    SourceShown,
    Status,
    StreamShown,
    Value,
    Version,
    failure_text,
)
from millpond.service.api.service_files import Places
from millpond.service.server.gauges import Gauges
from millpond.service.server.log_reader import LogReader
from millpond.service.server.pushed_events import push
from millpond.service.server.supervisor import Supervisor
from millpond.spark.reading.intake import Behind

_COSTS = ("time_us", "own_bytes", "shared_bytes", "keys", "group_queries")
_DEDUPLICATED = ("deduplicate", "deduplicate_within")
_PRICED = ("emit", "correct_for", "incomplete", "backfill", "late_by", "state_ttl", "time_zone")
"""The fields of `NewQuery`, besides the text and those above, on which the price of a query depends."""

_EXAMPLES = 20
_ROWS_OF_PART = 65_536
_log = logging.getLogger("millpond.service")


class HostedPond:
    """The pond that the HTTP service serves: one method per operation.

    Every method may be called from any thread. A change returns when it is in the log; with `dry_run` it is only
    priced. `who` is the requester. Served rows may be moved to `shards`, and events be pushed into the streams
    `pushed`.

    Raises:
        NotServingError: this process does not lead; by all methods except `health`, `status`, `streams`, `queries`,
            `why`, `parameters`, `history`, `dead_letters` and `letters`.
        MillpondError: the operation fails, or is refused; by any method.
    """

    def __init__(
        self, supervisor: Supervisor, reader: LogReader, gauges: Callable[[], Gauges], places: Places,
        shards: Sequence[str] = (), pushed: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._supervisor, self._reader, self._gauges = supervisor, reader, gauges
        self._places, self._shards, self._pushed = places, shards, pushed
        self._beginning = threading.Lock()

    def health(self) -> Health:
        """Whether this process leads, stands by, starts or stops."""
        return Health(self._supervisor.role)

    def status(self) -> Status:
        """The state of the pond."""
        found, leader = self._reader.now(), self._places.leader()
        pond, record, epoch, queries, instances, moving = "", -1, -1, 0, 0, 0
        if found is not None:
            truth, spec = found
            pond, record, epoch = truth.pond, truth.manifest.n, truth.manifest.epoch_n
            queries, instances = len(current(spec)), maps_in(spec, truth.manifest)[1].instances
            moving = buckets_moving(spec, truth.manifest)
        followers: tuple[FollowerShown, ...] = ()
        sources: tuple[SourceShown, ...] = ()
        problems: tuple[str, ...] = ()
        with suppress(NotServingError):
            leading = self._pond()
            followers = tuple(
                FollowerShown(one.name, one.behind, one.error, one.note, one.remaining_s) for one in leading.status()
                if one.name != PruneFollower.name and not one.name.startswith(QUERY)
            )  # fmt: skip
            if not self._supervisor.stalled():  # Spark may never answer
                sources = tuple(map(_source, leading.behind()))
            problems = tuple(map(str, leading.problems()))
        gauges = self._gauges()
        return Status(
            self._supervisor.role, pond, record, epoch, queries, None if leader is None else leader.url, instances,
            **gauges.measured()._asdict(), took_over_s=self._supervisor.took_over_s,
            failure=self._supervisor.failure, followers=followers, buckets_moving=moving,
            moved_in_s=gauges.arrival_s(moving),
            sources=sources, problems=problems, standbys=self._places.standbys(),
            starting_s=self._supervisor.starting_s,
        )  # fmt: skip

    def streams(self) -> list[StreamShown]:
        """The streams in force."""
        return self._reader.streams()

    def queries(self) -> list[QueryShown]:
        """The queries in force."""
        gauges, costs = self._gauges(), dict[str, dict[str, int]]()
        with suppress(NotServingError):
            found = self._pond().costs().items()
            costs = {name: {field: getattr(cost, field) for field in _COSTS} for name, cost in found}
        return self._reader.queries(lambda name: gauges.counts(name) | costs.get(name, {}))

    def why(self, name: str, width: int) -> WhyShown:
        """Why a query emits no rows, with a text of at most `width` columns."""
        found = self._reader.now()
        if found is None:
            raise RequestError("The pond has no query yet.", "Add one.")
        followers: Sequence[FollowerStatus] = ()
        with suppress(NotServingError):
            followers = self._pond().status()
        facts = find_facts(*found, name, followers, failure_text(self._supervisor.failure))
        return explain_why(facts).shown(width)

    def parameters(self) -> list[Parameter]:
        """The live parameters in force."""
        return self._reader.parameters()

    def functions(self, reload: bool, who: str) -> list[FunctionShown]:
        """The functions that queries may call, or do call; `reload`: load those of the operator's file first."""
        pond = self._pond()
        newest = pond.load_functions() if reload else pond.functions
        if reload:
            described = ", ".join(f"{one.label} sha256 {one.digest}" for one in newest)
            _log.info("functions were loaded for %s: %s", who, described or "there are none")
        return self._reader.functions(newest)

    def history(self, limit: int) -> list[Event]:
        """The newest changes, the newest first."""
        return self._reader.history(limit)

    def trace(self, epochs: int) -> Trace:
        """Where the time of the newest epochs of this leader went."""
        return self._pond().trace(epochs)

    def push(self, name: str, request: Push) -> PushDone:
        """Write events to the folder of a stream that the operator has opened to clients."""
        self._pond()
        if name not in self._pushed:
            raise RequestError(
                f"Clients may not push events into {name[:80]}.",
                f"The operator allows it: `millpond serve --push {name[:80]}`.",
            )
        if (found := self._reader.now()) is None:
            raise NotServingError("The pond has no query yet.", "Add one.")
        return push(found[1], name, request.key, request.events)

    def dead_letters(self) -> list[StreamLetters]:
        """The dead letters of each stream that keeps them, for the console."""
        found = self._reader.now()
        return [] if found is None else [*stream_letters(found[1])]

    def letters(self, stream: str, pending: bool) -> list[LetterKind]:
        """The kinds of dead letters of a stream; `pending`: without those that a replay has sent."""
        return [kind for kind in self._letters_of(stream).kinds if not (pending and kind.sent)]

    def _letters_of(self, stream: str) -> StreamLetters:
        one = next((one for one in self.dead_letters() if one.stream == stream), None)
        if one is None:
            raise RequestError(f"The stream {stream[:80]!r} keeps no dead letters.", "Choose one with 'dead.path'.")
        return one

    def replay(self, stream: str, request: Replay, who: str, dry_run: bool) -> Changed | Priced:
        """Send the dead letters of a stream to their topics again, each once, if the operator offers these topics."""
        self._pond()
        one = self._letters_of(stream)
        one.check()
        reason, timeless = request.reason, request.timeless
        if dry_run:
            found, left_out = unsent(one.folder, one.connection, None, reason, timeless=timeless)
            kinds = "; ".join(f"{kind.letters} to {kind.topic}: {kind.reason}" for kind in found)
            price = f"sends {count_of(sum(kind.letters for kind in found), 'dead letter')} again"
            price += f" ({kinds})" if found else ""
            warning = left_out_line(left_out) if left_out else repeated_line(found)
            return Priced(f"{price}. {warning}" if warning else price)
        sent, left_out = replay(one.folder, one.connection, None, reason, timeless=timeless, who=who)
        _log.info("dead letters of %s were sent again for %s: %d; left out: %d", stream, who, sent, left_out)
        what = f"{count_of(sent, 'dead letter')} sent"
        return Changed("replay", stream, what=f"{what}. {left_out_line(left_out)}" if left_out else what)

    def lookup(self, name: str, key: Sequence[str]) -> Found:
        """The latest row of a served query for a key, whose values are given as text."""
        pond, found = self._pond(), self._reader.now()
        if found is None:
            raise RequestError(f"There is no query {name!r}.", "Add one.")
        columns = key_columns(served_query(found[1], name), key)
        served = pond.lookup(name, *(column[0].as_py() for column in columns))
        if served.document is None:
            return Found(served.n)
        start, end = served.document["window"]
        return Found(served.n, served.document["row"], (start, end), served.document["epoch"])

    def table(self, name: str) -> Iterator[bytes]:
        """The latest rows of all keys of a served query, as a stream of Arrow in parts."""
        return arrow_stream(self._pond().served_rows(name))

    def placement(self) -> Placed:
        """Where the buckets of served rows are."""
        placement = self._pond().placement()
        shares = tuple(share._asdict() for share in placement.shares)
        return Placed(placement.local_hit_rate, shares, placement.aligned, placement.requests)

    def diff(self, name: str) -> Differs:
        """How a query and its shadow differ."""
        found = self._pond().diff(name)
        mine, other = (tuple(rows[:_EXAMPLES]) for rows in (found.only_query, found.only_shadow))
        first = None if found.first is None else First(*found.first)
        columns = tuple(ColumnDiffers(*column) for column in found.columns)
        return Differs(
            found.n, found.same, len(found.only_query), len(found.only_shadow), mine, other, found.since, first,
            found.closed_us, found.pairs, columns,
        )  # fmt: skip

    def add(self, request: NewQuery, who: str, dry_run: bool) -> Changed | Priced:
        """Add a query."""
        pond = self._pond()
        sink = _sink(request)
        if dry_run:
            return self._priced(pond, "add", request.name, request)
        late = None if request.late is None else Sink(request.late)
        with self._beginning if self._reader.now() is None else nullcontext():
            more = {field: getattr(request, field) for field in ("serve", "budget", *_DEDUPLICATED, *_PRICED)}
            added = pond.add(request.name, request.text, sink=sink, late=late, who=who, **more)
            if self._reader.now() is None:
                self._begin(pond, request.name)
        return replace(self._recorded("add", request.name, bool(request.backfill)), what=added.sink.path)

    def version(self, kind: str, name: str, version: Version, who: str, dry_run: bool) -> Changed | Priced:
        """Add a new version of a query: as a replacement (`alter`) or beside it (`shadow`)."""
        pond = self._pond()
        if dry_run:
            return self._priced(pond, kind, name, version)
        if kind == "shadow":
            if version.deduplicate:
                raise RequestError("A shadow is deduplicated as its query is.", "Leave out deduplicate.")
            pond.shadow(name, version.text, who=who)
        else:
            pond.alter(
                name, version.text, deduplicate=version.deduplicate, deduplicate_within=version.deduplicate_within,
                who=who,
            )  # fmt: skip
        return self._recorded(kind, name)

    def change_state(self, kind: str, name: str, who: str, dry_run: bool) -> Changed | Priced:
        """Make a change that needs no query text: one of `STATE_CHANGES`."""
        if kind not in STATE_CHANGES:
            raise RequestError(f"{kind!r} is no change of a query.", f"Use one of {', '.join(STATE_CHANGES)}.")
        pond = self._pond()
        if dry_run:
            return self._priced(pond, kind, name, None)
        getattr(pond, kind)(name, who=who)
        return self._recorded(kind, name)

    def scale(self, request: Instances, who: str, dry_run: bool) -> Changed | Priced:
        """Change the number of instances and the shards of the store, or end a move of hash slots."""
        pond = self._pond()
        if request.shards == ():
            if request.instances is not None or dry_run:
                raise RequestError("A move of hash slots is ended by itself, without a dry run.", "Ask only for that.")
            pond.stop_resharding(who=who)
            return self._recorded("resharded", "shards")
        if request.instances is None and request.shards is None:
            raise RequestError("The request names neither instances nor shards.", "Name one of them.")
        if dry_run:
            return _priced(pond.price_of_scale(request.instances, shards=request.shards))
        pond.scale(request.instances, shards=request.shards, who=who)
        return self._recorded("scale", "instances")

    def move_rows(self, request: Relocation, who: str, dry_run: bool) -> Changed | Priced:
        """Move the served rows of some buckets to another store; returns when they have arrived."""
        pond = self._pond()
        if request.to not in (*self._shards, "own"):
            raise RequestError(
                f"{request.to[:200]!r} is none of the stores that rows may be moved to.",
                f"Use one of {', '.join((*self._shards, 'own'))}; the operator allows more with --shard.",
            )
        if dry_run:
            return _priced(pond.price_of_move(request.what, request.to))
        pond.move(request.what, request.to, who=who)
        return self._recorded("move", "rows")

    def set(self, name: str, value: Value, who: str) -> Changed:
        """Set the value of a live parameter; one that no query uses must exist, or be requested as new."""
        pond, known = self._pond(), [one.name for one in self._reader.parameters(with_records=False)]
        if name not in known and not value.new and self._reader.now() is not None:
            near = difflib.get_close_matches(name, known, 1)
            mean = f"Did you mean {near[0]}? " if near else f"There are {', '.join(known)}. " if known else ""
            later = f"`millpond param set --new {name[:80]}=…` makes one for queries that come later."
            raise ChangeRefused(f"There is no parameter {name[:80]}.", mean + later)
        pond.param(name, value.value, who=who)
        return self._recorded("param", name)

    def unset(self, name: str, who: str) -> Changed:
        """Remove a live parameter that no query uses."""
        self._pond().unset(name, who=who)
        return self._recorded("unset", name)

    def feed(self, name: str, feeds: Feeds, who: str) -> Changed:
        """Let a live parameter take its values from the rows of a query."""
        self._pond().feed(name, feeds.query, feeds.column, who=who)
        return self._recorded("feed", name)

    def _pond(self) -> Pond:
        return cast(Pond, self._supervisor.leading())

    def _begin(self, pond: Pond, name: str) -> None:
        """Open a pond that had no query; the pond begins with this first query."""
        try:
            pond.open()
        except BaseException:
            pond.drop(name)
            raise
        self._supervisor.wake()

    def _priced(self, pond: Pond, kind: str, name: str, request: NewQuery | Version | None) -> Priced:
        if self._reader.now() is None:
            return Priced(AT_ONCE)
        if request is None:
            return _priced(pond.price_of(kind, name))
        fields = (*_DEDUPLICATED, *(_PRICED if isinstance(request, NewQuery) else ()))
        more = {field: getattr(request, field) for field in fields}
        return _priced(pond.price_of(kind, name, request.text, **more))

    def _recorded(self, kind: str, name: str, backfilled: bool = False) -> Changed:
        """The newest change of that kind: the one that was just made, or a later one."""
        for event in self._reader.history(64):
            if (event.kind, event.name) == (kind, name):
                _log.info("%s %s at record %d, by %s", kind, name, event.record, event.who or "the pond itself")
                what = {"scale": str(event.value), "move": event.text}.get(kind)
                first = self._reader.first_window(name, event.complete_from_us, backfilled)
                return Changed(kind, name, event.record, event.complete_from_us, what, first, event.hand_over)
        return Changed(kind, name)


def _priced(found: Price) -> Priced:
    moved, effective = found.moved, found.effective_n or None
    return Priced(
        found.cost, found.complete_from_us, found.rereads, found.freed, moved.buckets, moved.bytes, effective,
        found.recalled, found.source.bytes, found.source.records, None if found.first is None else First(*found.first),
        found.shards, found.slots.buckets, found.slots.bytes, found.adds, found.hand_over,
    )  # fmt: skip


def _source(found: Behind) -> SourceShown:
    partitions = tuple(PartitionShown(*one) for one in found.partitions)
    return SourceShown(found.stream, found.unit, found.waiting, partitions)


def _sink(request: NewQuery) -> Sink:
    """The sink of a query added over the network: a folder that the pond chooses, or an address, topic or table
    that the operator offers.
    """
    kind = sink_kind(request.sink or NOWHERE)
    for field in ("topic", "table", "connection"):
        if getattr(request, field) is not None and field not in kind.options:
            known = ", ".join(name for name in remote_names() if field in KINDS[name].options)
            raise RequestError(
                f"{request.name} names a {field}, but its sink, {kind.name}, has none.", f"Use one of {known}."
            )
    options: dict[str, str] = {}
    target = next((field for field in ("topic", "table") if field in kind.options), None)
    if target is not None and kind.connection is not None:
        named = getattr(request, target)
        options["connection"], options[target] = offered_target(kind.connection, request.connection, named)
    elif kind.connection is not None:
        options["connection"] = offered(request.connection, kind.connection)
    return Sink(kind.name, None, tuple(sorted(options.items())))


def arrow_stream(rows: pa.Table) -> Iterator[bytes]:
    """A table as a stream of Arrow, in parts of at most 65,536 rows.

    >>> pa.ipc.open_stream(b"".join(arrow_stream(pa.table({"n": range(70_000)})))).read_all()["n"].num_chunks
    2
    """
    part = BytesIO()
    with pa.ipc.new_stream(part, rows.schema) as stream:
        for batch in rows.to_batches(max_chunksize=_ROWS_OF_PART):
            stream.write_batch(batch)
            yield part.getvalue()
            part.seek(0)
            part.truncate()
    yield part.getvalue()
