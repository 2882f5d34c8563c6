"""The commands of the terminal for a service: `millpond serve`, and the commands that call it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer
from rich.console import RenderableType

from millpond.control.commands.command_log import log_writer
from millpond.errors import MillpondError, NotServingError, SetupError
from millpond.followers.sinks.kinds import KINDS, remote_names
from millpond.formats.escapes import printable
from millpond.service.api.messages import STATE_CHANGES, Changed, Priced
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import only_pond
from millpond.service.terminal.overview import console, picture, redraw, text_of
from millpond.service.terminal.parse_arguments import selected
from millpond.service.terminal.serve_arguments import Range, Target, host_and_port, policy_of
from millpond.service.terminal.text import (
    change_lines,
    columns,
    diff_lines,
    event_line,
    folded,
    function_line,
    query_line,
    query_lines,
    stream_line,
    terminal_width,
)
from millpond.version import install

if TYPE_CHECKING:
    from millpond.control.diagnose.why_message import WhyShown
    from millpond.service.api.client import Client
    from millpond.service.server.serve_process import OpenConsole

Folder = Annotated[
    Optional[Path],  # noqa: UP045 - typer evaluates it on Python 3.10
    typer.Option("--checkpoint", metavar="DIR", help="The pond's folder [default: the only one served from here]."),
]
Url = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--url", metavar="URL,…", help="Address of the service [default: from DIR, else MILLPOND_URL]."),
]
Token = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--token", metavar="TOKEN", help="Token of the service [default: MILLPOND_TOKEN, else from DIR]."),
]
Trusted = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--ca", metavar="FILE.pem", help="A certificate authority to trust, besides those of the system."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Estimate the cost, and change nothing.")]
Name = Annotated[str, typer.Argument(metavar="QUERY", help="The query's name.")]
Text = Annotated[str, typer.Argument(metavar="SELECT", help="The text, a FILE.sql with it, or - for standard input.")]
_BELOW_OUT = ", ".join(name for name in remote_names() if KINDS[name].path)
_CONNECTED = ", ".join(name for name in remote_names() if KINDS[name].connection is not None)
_OTHERS = ", ".join(name for name in remote_names() if not KINDS[name].path)
FileSink = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--sink", metavar="FORMAT", help=f"{_BELOW_OUT} (below --out), or {_OTHERS}."),
]
ConnectionName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--connection", metavar="NAME", help=f"The operator's connection for the sinks {_CONNECTED}."),
]
Topic = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--topic", metavar="TOPIC", help="The topic for the sink kafka. The operator must allow it."),
]
SinkTable = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--table", metavar="TABLE", help="The table for the sink postgres. The operator must allow it."),
]
Deduplicated = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--deduplicate", metavar="COLUMN", help="Leave out events that repeat these columns. Repeatable."),
]
Within = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--deduplicate-within", metavar="TIME", help="Compare with events at most this much older: '1 hour'."),
]
TimeZone = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--time-zone", metavar="ZONE", help="The time zone of the text, such as Europe/Berlin."),
]
StateTtl = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--state-ttl", metavar="TIME", help="Forget events of joins, and keys of DISTINCT, after this time."),
]

_LOOK_SECONDS = 2.0
_WHY_SECONDS = 5.0
"""The longest time until a service says why; then the folder of the pond is read."""


def run_service(
    options: Options, listen: str, certificate: Path | None, key: Path | None, names: tuple[str, ...],
    origins: tuple[str, ...], pg: str | None = None, open_console: OpenConsole | None = None,
) -> None:  # fmt: skip
    """Serve at `listen` (HOST:PORT) until a signal.

    `names`: additional host names by which requests may address the service. `origins`: allowed origins of web pages.
    `pg`: where PostgreSQL clients are answered (HOST:PORT). `open_console`: loads the web console, if there is one.

    Raises:
        SetupError: the libraries are missing, or the address needs TLS.
        MillpondError: the pond cannot be served, or can no longer be served.
    """
    try:
        from millpond.service.postgres.endpoint import Endpoint
        from millpond.service.server.serve_process import Web, serve
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    say = log_writer("millpond.service")
    web = Web(*host_and_port(listen), certificate, key, names, origins)
    if pg is None:
        serve(options, web, say, open_console=open_console)
        return
    host, port = host_and_port(pg)
    endpoint = Endpoint(options.folder, options.store, Web(host, port, certificate, key))
    serve(options, web, say, endpoint.running, open_console, f"{host}:{endpoint.port}")


def client(
    folder: Path | None, url: str | None, token: str | None, trusted: Path | None, timeout: float = 60.0
) -> Client:  # fmt: skip
    """The client for the options of a command.

    Raises:
        SetupError, NotServingError, AccessError: see `Client.of`.
    """
    try:
        from millpond.service.api.client import Client
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return Client.of(folder, url=url, token=token, certificate=trusted, timeout=timeout)


def look_up(pond: Client, query: str, key: list[str]) -> tuple[int, dict[str, Any] | None]:
    """The record as of which the service responds, and the latest row of a key in the format of a store's document."""
    with pond:
        found = pond.lookup(query, *key)
    row = None if found.row is None else {"row": found.row, "window": found.window_us, "epoch": found.epoch}
    return found.as_of, row


def sent_why(folder: Path, token: str | None, trusted: Path | None, query: str) -> WhyShown | None:
    """Why a query emits no rows, by the service of a folder; None: there is none, or it does not respond."""
    with suppress(MillpondError), client(folder, None, token, trusted, _WHY_SECONDS) as pond:
        return pond.why(query, width=columns())
    return None


def add_verbs(app: typer.Typer) -> None:
    """Add the subcommands that send requests to a service."""
    _changes(app)
    _scale(app)
    _relocate(app)
    _autoscale(app)
    for change in STATE_CHANGES:
        _state_change(app, change)
    _shows(app)
    _watch(app)


def _changes(app: typer.Typer) -> None:
    @app.command()
    def add(
        name: Name, text: Text, sink: FileSink = None,
        serve: Annotated[bool, typer.Option("--serve", help="Keep the latest row of each key for lookups.")] = False,
        late: Annotated[Optional[str], typer.Option("--late", metavar="FORMAT", help="Write late events.")] = None,  # noqa: UP045
        emit: Annotated[str, typer.Option("--emit", metavar="MODE", help="final or update (every change).")] = "final",
        correct_for: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--correct-for", metavar="TIME", help="Correct emitted rows for events that are so late."),
        ] = None,
        deduplicate: Deduplicated = None, deduplicate_within: Within = None, connection: ConnectionName = None,
        topic: Topic = None, table: SinkTable = None, state_ttl: StateTtl = None, time_zone: TimeZone = None,
        late_by: Annotated[str, typer.Option("--late-by", help="event, window (if it has closed), or join.")] = "event",
        budget: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--budget", metavar="LIMITS", help="Limits: 'state 100 MB, keys 1000000, time 50 ms'."),
        ] = None,
        incomplete: Annotated[bool, typer.Option("--incomplete", help="Emit open windows too; see _complete.")] = False,
        backfill: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--backfill", metavar="all|TIME", help="Read the source again: all, or from a time on."),
        ] = None,
        dry_run: DryRun = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Add a query to a served pond, from the next epoch on."""
        with client(checkpoint, url, token, ca) as pond, _progress_of(pond, "backfill") if backfill else nullcontext():
            done = pond.add(
                name, selected(text), sink=sink, serve=serve, late=late, emit=emit,
                correct_for=correct_for, deduplicate=deduplicate or (), deduplicate_within=deduplicate_within,
                connection=connection, budget=budget, incomplete=incomplete, backfill=backfill or False,
                topic=topic, table=table, dry_run=dry_run, late_by=late_by, state_ttl=state_ttl, time_zone=time_zone,
            )  # fmt: skip
        print_change(done, as_json)

    @app.command()
    def alter(
        name: Name, text: Text, deduplicate: Deduplicated = None, deduplicate_within: Within = None,
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Replace a query from a window on, which the response names."""
        with client(checkpoint, url, token, ca) as pond:
            done = pond.alter(
                name, selected(text), deduplicate=deduplicate or (), deduplicate_within=deduplicate_within,
                dry_run=dry_run,
            )  # fmt: skip
            print_change(done, as_json)

    @app.command()
    def shadow(
        name: Name, text: Text, dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None,
        token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Run a new version beside a query, for `millpond diff`."""
        with client(checkpoint, url, token, ca) as pond:
            print_change(pond.shadow(name, selected(text), dry_run=dry_run), as_json)


def _scale(app: typer.Typer) -> None:
    @app.command()
    def scale(
        instances: Annotated[
            Optional[int],  # noqa: UP045
            typer.Argument(metavar="N", min=1, help="The new number of instances."),
        ] = None,
        shards: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(
                "--shards", metavar="M|HOST:PORT,…|stay",
                help="Primaries of a Redis cluster that keep the rows; stay: end a move where it is.",
            ),
        ] = None,
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Change the number of instances, and the shards of the store."""
        wanted = None if shards is None else shards_of(shards)
        if instances is None and wanted is None:
            raise typer.BadParameter("Give a number of instances, or --shards.")
        with client(checkpoint, url, token, ca) as pond:
            print_change(pond.scale(instances, shards=wanted, dry_run=dry_run), as_json)


def _relocate(app: typer.Typer) -> None:
    @app.command("move")
    def move_rows(
        what: Annotated[str, typer.Argument(metavar="BUCKET|SHARD", help="A bucket number, FIRST-LAST, or a shard.")],
        to: Annotated[str, typer.Option("--to", metavar="STORE", help="The target store; own: the pond's store.")],
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Move served rows to a store that `serve --shard` allows."""
        with client(checkpoint, url, token, ca) as pond, _progress_of(pond, "move"):
            done = pond.relocate(what, to, dry_run=dry_run)
        print_change(done, as_json)


def _autoscale(app: typer.Typer) -> None:
    @app.command()
    def autoscale(
        checkpoint: Folder = None, instances: Range = "1-8", target: Target = 0.5, as_json: Json = False,
        _dry_run: Annotated[bool, typer.Option("--dry-run", help="No effect; the command changes nothing.")] = False,
    ) -> None:  # fmt: skip
        """Show what `serve --autoscale` would do now, and why."""
        from millpond.control.commands.autoscale import advice, advice_text

        found = advice(checkpoint or only_pond(), policy_of(instances, target))
        print_lines(found, as_json, [advice_text(found)])


def shards_of(text: str) -> int | tuple[str, ...]:
    """The shards that an option names; "stay" names none.

    >>> shards_of("3"), shards_of("a:1,b:2"), shards_of("stay")
    (3, ('a:1', 'b:2'), ())
    """
    if text == "stay":
        return ()
    return int(text) if text.isdecimal() else tuple(filter(None, text.replace(" ", "").split(",")))


_HELP = {
    "drop": "Drop a query and free its state.",
    "pause": "Stop emitting the rows of a query. Rows that are due before resume are never emitted.",
    "resume": "Emit the rows of a paused query again.",
    "promote": "Exchange a query with its shadow.",
    "rollback": "Undo a promote, while the previous version is the shadow.",
    "discard": "Drop the shadow of a query.",
}


def _state_change(app: typer.Typer, kind: str) -> None:
    @app.command(kind, help=_HELP[kind])
    def change_state(
        name: Name, dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None,
        ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        with client(checkpoint, url, token, ca) as pond:
            print_change(pond.move(kind, name, dry_run=dry_run), as_json)


def _shows(app: typer.Typer) -> None:
    @app.command("list")
    def queries(
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False
    ) -> None:
        """List the queries, and what streams retain (not with --json)."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.queries()
            streams = [] if as_json else pond.streams()
        lines = [*map(query_line, found), *map(stream_line, streams)]
        print_lines(found, as_json, lines, "The pond has no queries.")

    @app.command()
    def show(
        name: Name, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Show the text, columns and state of a query."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.show(name)
        print_lines(found, as_json, query_lines(found))

    @app.command()
    def functions(
        reload: Annotated[bool, typer.Option("--reload", help="Load new versions from the operator's file.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """List the operator's functions and the queries that call them."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.functions(reload=reload)
        print_lines(found, as_json, map(function_line, found), "The operator has registered no functions.")

    @app.command()
    def history(
        limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Number of changes.")] = 20,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """List the latest changes: record, time, change and author."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.history(limit)
        print_lines(found, as_json, map(event_line, found), "There are no changes yet.")

    @app.command()
    def diff(
        name: Name, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Compare the rows of a query with those of its shadow."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.diff(name)
        print_lines(found, as_json, diff_lines(found))


def _watch(app: typer.Typer) -> None:
    @app.command()
    def rows(
        name: Name,
        after: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--after", metavar="POSITION", help="Continue after this place in the log."),
        ] = None,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
    ) -> None:  # fmt: skip
        """Print rows of a query as they are committed, as JSON lines."""
        with client(checkpoint, url, token, ca) as pond, suppress(KeyboardInterrupt):
            for row in pond.rows(name, after=after):
                typer.echo(msgspec.json.encode(row).decode())

    @app.command("open")
    def open_console(
        link: Annotated[bool, typer.Option("--link", help="Only print the link, which is valid for a minute.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
    ) -> None:  # fmt: skip
        """Open the web console in a browser, signed in."""
        with client(checkpoint, url, token, ca) as pond:
            if link or typer.launch(pond.console_link()):
                typer.echo(pond.console_link())

    @app.command()
    def status(
        placement: Annotated[bool, typer.Option("--placement", help="Also show the local-hit rate.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Show the state of a pond: epochs, lag, queries, costs."""
        with client(checkpoint, url, token, ca) as pond:
            found = pond.status()
            if as_json:
                print_lines(found, True, [])
            else:
                placed = pond.placement() if placement else None
                typer.echo(text_of(picture(found, pond.queries(), placed), console()))

    @app.command()
    def top(
        every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Refresh interval.")] = 1.0,
        placement: Annotated[bool, typer.Option("--placement", help="Also show the local-hit rate.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
    ) -> None:  # fmt: skip
        """Show the state of a pond until Ctrl-C, and follow the leader.

        A pipe gets each state after the one before, with an empty line between them.
        """

        def state() -> RenderableType:
            try:
                with client(checkpoint, url, token, ca) as pond:
                    placed = pond.placement() if placement else None
                    return picture(pond.status(), pond.queries(), placed)
            except NotServingError as error:
                return str(error)

        with suppress(KeyboardInterrupt):
            redraw(state, console(), every)


def print_change(done: Changed | Priced, as_json: bool) -> None:
    """Print the effect of a change, or its price."""
    print_lines(done, as_json, change_lines(done))


def print_lines(found: object, as_json: bool, lines: Iterable[str], none: str = "") -> None:
    """Print a response as JSON or as lines. If there are no lines, print `none` on standard error."""
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        text = "\n".join(printable(part.expandtabs(4)) for part in "\n".join(lines).split("\n"))
        typer.echo(folded(text, terminal_width()) or none, err=not text)


@contextmanager
def _progress_of(pond: Client, follower: str) -> Iterator[None]:
    """Print the progress of a waiting change on standard error, whenever its note in the status changes."""
    ended, last_note = threading.Event(), ""

    def watch() -> None:
        nonlocal last_note
        while not ended.wait(_LOOK_SECONDS):
            with suppress(MillpondError):  # the change itself reports any failure
                notes = {one.name: one.note or "" for one in pond.status().followers}
                if (note := notes.get(follower, "")) not in ("", last_note):
                    typer.echo(f"{note} …", err=True)
                    last_note = note

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join(_LOOK_SECONDS)


def _missing(error: ModuleNotFoundError) -> SetupError:
    return SetupError(f"The libraries of the service are missing: {error}.", f"Run `{install('serve')}`.")
