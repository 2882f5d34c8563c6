"""Lists the kinds of sinks: the one table from which parser, network API, cursors and docs are derived.

This module imports no sink and no client library: the module of a sink is imported when its first query is opened
(`make_sink.sink_follower`).

A package registers a sink by an entry point of the group `millpond.sinks`. Its name is the name of the sink, and its
value is `module:attribute` of a `SinkKind`. The package is imported when a query first names the sink, so a broken
package harms only the queries that use it. A package cannot replace a sink of Millpond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from millpond.errors import SetupError, UnsupportedQuery
from millpond.local_path import local_path, scheme_of
from millpond.log.locations.address import address_of
from millpond.model.endpoints import FOREACH, NOWHERE, REDIS, Sink
from millpond.plugins import Registry, misnamed

PACKAGE = "millpond.followers.sinks"

QUERY_PROPERTIES = (
    "path", "serve", "late.path", "late.format", "late.by", "emit", "correct.for", "deduplicate", "deduplicate.within",
    "state.ttl", "budget", "time.zone",
)  # fmt: skip
"""The TBLPROPERTIES of every query; no option of a sink may have one of these names."""


class SinkKind(msgspec.Struct, frozen=True, kw_only=True):
    """What Millpond must know about a kind of sink before its module is imported."""

    name: str
    """The name after USING, and the `format` of a `Sink`."""

    opens: str
    """`module:attribute` of a function that takes a `SinkContext` and returns the follower; attributes may have dots.
    The module is imported at the first use."""

    options: tuple[str, ...] = ()
    """The TBLPROPERTIES that a pond file may set, in lower case."""

    env_options: tuple[str, ...] = ()
    """Options that must be `env:NAME`, a variable with the value, because options are stored with the pond."""

    connection: str | None = None
    """The `kind` of the named connection that the option `connection` selects."""

    path: Literal["folder", "file"] | None = None
    """Whether the sink needs a path, and what it is the path of."""

    addresses: bool = False
    """Whether the path may be an address in an object store or in HDFS, for `SinkContext.address`."""

    cursor: Literal["file", "folder", "target", "process"] = "file"
    """Where the cursor is: in a file of the pond, in the folder with the rows, in the system that has the rows, or only
    in the process. The last two are not readable from outside the pond."""

    cursor_suffix: str = ""
    """The suffix of the cursor's file; the name of the kind if empty."""

    own_thread: bool = True
    """Whether the sink may wait for another system. Then it has its own thread and delays no other sink."""

    late: bool = False
    """Whether the sink takes late rows."""

    lasting: bool = True
    """Whether rows outlive the process that runs the pond."""

    repeats: bool = False
    """Whether the rows of a record may arrive again after a crash (at least once)."""

    in_process: bool = False
    """Whether only the process that runs the pond can provide the sink, so that a pond file may not name it."""

    remote: bool = False
    """Whether a query that is added over the network may name the sink."""

    extra: str | None = None
    """The optional dependencies to install: `pip install 'millpond[extra]'`."""

    @property
    def suffix(self) -> str:
        """The suffix of the cursor's file."""
        return self.cursor_suffix or self.name

    def may_be_remote(self, *, late: bool = False) -> bool:
        """Whether a query that is added over the network may name the sink for its rows, or for its late rows."""
        return self.remote and (not late or (self.late and self.path is not None))

    def check_env(self, query: str, options: Mapping[str, str]) -> None:
        """Refuse options whose values would be stored with the pond, though they may contain a password.

        Raises:
            UnsupportedQuery: such an option is no variable.
        """
        for option in self.env_options:
            if not options.get(option, "env:").startswith("env:"):
                raise UnsupportedQuery(
                    f"The {option} of the {self.name} sink of {query}, and a password in it, would be stored with the "
                    "pond.",
                    f"Leave {option} out, or write 'env:NAME', a variable that holds it.",
                )


BUILT_IN: tuple[SinkKind, ...] = (
    *(
        SinkKind(
            name=name, opens=f"{PACKAGE}.folder:FolderSink.open", path="folder", addresses=True, cursor="folder",
            own_thread=False, late=True, remote=True,
        ) for name in ("parquet", "json", "csv")
    ),
    SinkKind(
        name="console", opens=f"{PACKAGE}.local_sinks:open_console", cursor_suffix="cursor", own_thread=False,
        late=True, repeats=True,
    ),
    SinkKind(
        name=NOWHERE, opens=f"{PACKAGE}.local_sinks:open_noop", cursor_suffix="cursor", own_thread=False, lasting=False
    ),
    SinkKind(  # the rows stay in the log for a while, where the service reads them
        name="subscribers", opens=f"{PACKAGE}.local_sinks:open_noop", cursor_suffix="cursor", own_thread=False,
        lasting=False, remote=True,
    ),
    SinkKind(
        name="memory", opens=f"{PACKAGE}.local_sinks:open_memory", cursor="process", own_thread=False, late=True,
        lasting=False, in_process=True,
    ),
    SinkKind(name=FOREACH, opens=f"{PACKAGE}.local_sinks:open_foreach", repeats=True, in_process=True),
    SinkKind(name="delta", opens=f"{PACKAGE}.delta_lake:DeltaSink.open", path="folder", remote=True, extra="delta"),
    SinkKind(
        name=REDIS, opens=f"{PACKAGE}.redis_rows:KeyedSink.open",
        options=("key", "type", "columns", "wrong.type", "address"), env_options=("address",), cursor_suffix="cursor",
    ),
    SinkKind(
        name="kafka", opens=f"{PACKAGE}.kafka:KafkaSink.open", options=("topic", "connection", "transactions"),
        connection="kafka", remote=True, extra="kafka",
    ),
    SinkKind(
        name="postgres", opens=f"{PACKAGE}.postgres:PostgresSink.open", options=("table", "connection", "key"),
        connection="postgres", cursor="target", remote=True, extra="postgres",
    ),
    SinkKind(
        name="webhook", opens=f"{PACKAGE}.webhook:WebhookSink.open", options=("connection", "rows"), connection="http",
        repeats=True, remote=True, extra="serve",
    ),
)  # fmt: skip
"""The kinds of sinks of Millpond itself."""

KINDS: Mapping[str, SinkKind] = {kind.name: kind for kind in BUILT_IN}

SINKS = Registry("millpond.sinks", "sink", SinkKind, KINDS)
"""The kinds of sinks of Millpond and of installed packages."""


def late_names() -> tuple[str, ...]:
    """The names of the sinks of Millpond that a pond file may name for late rows."""
    return tuple(kind.name for kind in BUILT_IN if kind.late and not kind.in_process)


def remote_names(late: bool = False) -> tuple[str, ...]:
    """The names of the sinks of Millpond that a query added over the network may name for its rows or late rows."""
    return tuple(kind.name for kind in BUILT_IN if kind.may_be_remote(late=late))


def sink_kind(name: str) -> SinkKind:
    """The kind of sink with a name.

    Raises:
        UnsupportedQuery: there is none.
        SetupError: the package that registers it cannot be imported, is wrong, or takes the name of another sink.
    """
    kind = SINKS.get(name)
    if kind is None:
        known = ", ".join(SINKS.names())
        raise UnsupportedQuery(f"There is no sink {name}.", f"Use one of {known}, or install the package that has it.")
    if name not in KINDS:
        for wrong in _mistakes(name, kind):
            raise SetupError(f"The sink {name} of a package {wrong}.", f"Mend its SinkKind, which {kind.opens} opens.")
    return kind


def sink_path(sink: Sink, what: str, home: str | None = None) -> str:
    """The path of a sink made absolute, or its address; `what` names it in messages.

    Raises:
        PlaceError: the sink cannot write there.
        UnsupportedQuery, SetupError: as `sink_kind`.
    """
    take = address_of if sink_kind(sink.format).addresses else local_path
    return str(take(sink.path or "", what, home))


def waits_for_others(sink: Sink) -> bool:
    """Whether writing to the sink may wait for another system.

    Raises:
        UnsupportedQuery, SetupError: as `sink_kind`.
    """
    return sink_kind(sink.format).own_thread or scheme_of(sink.path or "") not in (None, "file")


def declared_names() -> tuple[str, ...]:
    """The names of the sinks that a pond file may name."""
    return tuple(name for name in SINKS.names() if name not in KINDS or not KINDS[name].in_process)


def is_known(name: str) -> bool:
    """Whether this process knows a sink of that name."""
    return name in SINKS.names()


def _mistakes(name: str, kind: SinkKind) -> Iterator[str]:
    """What does not fit in the kind of a package, as the end of a sentence about it."""
    yield from misnamed(name, kind)
    if kind.in_process:
        yield "is in_process, which only sinks of Millpond can be"
    for option in kind.options:
        if option != option.lower():
            yield f"has the option {option}, which must be in lower case"
        if option in QUERY_PROPERTIES:
            yield f"has the option {option}, which is a property of every query"
    for option in sorted(set(kind.env_options) - set(kind.options)):
        yield f"has the env_option {option}, which is not one of its options"
