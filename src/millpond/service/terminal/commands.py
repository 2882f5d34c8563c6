"""The commands of the terminal for a service: `millpond serve`, and the commands that call it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from millpond.errors import MillpondError, NotServingError, RequestError, SetupError
from millpond.placement.autoscale_policy import Policy
from millpond.service.api.messages import Changed, Priced
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import only_pond
from millpond.service.api.verbs import MOVES
from millpond.service.terminal.overview import picture
from millpond.service.terminal.parse_arguments import assigned, selected
from millpond.service.terminal.text import (
    change_text,
    diff_lines,
    event_line,
    function_line,
    parameter_line,
    query_line,
    query_lines,
    stream_line,
)
from millpond.version import install

if TYPE_CHECKING:
    from millpond.service.api.client import Client

Folder = Annotated[
    Optional[Path],  # noqa: UP045 - typer evaluates it on Python 3.10
    typer.Option("--checkpoint", metavar="DIR", help="The pond's folder [default: the only one served from here]."),
]
Url = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--url", metavar="URL", help="The service [default: as DIR tells, else MILLPOND_URL]."),
]
Token = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--token", metavar="TOKEN", help="Its token [default: MILLPOND_TOKEN, or as the folder tells]."),
]
Trusted = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--ca", metavar="FILE.pem", help="A certificate to trust besides the system's."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would cost.")]
Name = Annotated[str, typer.Argument(metavar="QUERY", help="The query's name.")]
Text = Annotated[str, typer.Argument(metavar="SELECT", help="Its text, a FILE.sql that holds it, or - to read it.")]
FileSink = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--sink", metavar="FORMAT", help="parquet, json, csv, delta (below --out), webhook or kafka."),
]
Address = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--connection", metavar="NAME", help="The webhook's address, or Kafka's, as the operator named it."),
]
Topic = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--topic", metavar="TOPIC", help="Of the sink kafka: one that the operator offers."),
]
Deduplicated = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--deduplicate", metavar="COLUMN", help="Leave out events that are equal in these columns."),
]
Within = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--deduplicate-within", metavar="TIME", help="…to one at most so long before: '1 hour'."),
]

Serving = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where to answer; port 0 is any that is free.")
]
Certificate = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--tls-cert", metavar="FILE.pem", help="The certificate; needed where others can reach."),
]
Key = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--tls-key", metavar="FILE.pem", help="Its key."),
]
Hosts = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--allow-host", metavar="NAME", help="A name by which requests may ask, besides its own."),
]
Origins = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--allow-origin", metavar="URL", help="Whose pages may ask from a browser; none by default."),
]
Out = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--out", metavar="DIR", help="Below it go rows of queries that are added [default: DIR/out]."),
]
Shards = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--shard", metavar="STORE", help="A store that served rows may be moved to; env:NAME hides it."),
]
Range = Annotated[str, typer.Option("--instances", metavar="LEAST-MOST", help="So many instances.")]
Autoscale = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--autoscale", metavar="LEAST-MOST", help="Let instances come and go with the load [default: off]."),
]
Target = Annotated[
    float, typer.Option("--target", min=0.05, max=0.95, help="The part of the time that instances should fold.")
]
Params = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--param", metavar="NAME=VALUE", help="First value of a live parameter, :NAME in texts; repeatable."),
]
Patience = Annotated[
    float, typer.Option("--patience", metavar="SECONDS", min=2, help="Take over from a leader that is silent so long.")
]


_NO_EDGE = 10_000
_LOOK_SECONDS = 2.0


def run_service(
    options: Options, listen: str, certificate: Path | None, key: Path | None, names: tuple[str, ...],
    origins: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve at `listen` (HOST:PORT) until a signal; `names` and `origins` may ask, besides its own.

    Raises:
        SetupError: the libraries are missing, or the address needs TLS. MillpondError: it cannot go on.
    """
    try:
        from millpond.service.server.process import Web, serve
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    said = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    host, _, port = listen.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise typer.BadParameter(f"{listen!r} is no HOST:PORT.")
    web = Web(host.strip("[]"), int(port), certificate, key, names, origins)
    serve(options, web, said.print)


def client(folder: Path | None, url: str | None, token: str | None, trusted: Path | None) -> Client:
    """The client that a verb's options mean.

    Raises:
        SetupError, NotServingError, AccessError: see `Client.of`.
    """
    try:
        from millpond.service.api.client import Client
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return Client.of(folder, url=url, token=token, certificate=trusted)


def look_up(asked: Client, query: str, key: list[str]) -> tuple[int, dict[str, Any] | None]:
    """The record that the service answers as of, and the latest row of a key, as a store has it."""
    with asked:
        found = asked.lookup(query, *key)
    row = None if found.row is None else {"row": found.row, "window": found.window_us, "epoch": found.epoch}
    return found.as_of, row


def add_verbs(app: typer.Typer) -> None:
    """Give the command the verbs that ask a service."""
    _changes(app)
    _scale(app)
    _relocate(app)
    _autoscale(app)
    for move in MOVES:
        _move(app, move)
    _shows(app)
    _watch(app)
    app.add_typer(_parameters(), name="param")


def _changes(app: typer.Typer) -> None:
    @app.command()
    def add(
        name: Name, text: Text, sink: FileSink = None,
        serve: Annotated[bool, typer.Option("--serve", help="Keep the latest row of each key for lookups.")] = False,
        late: Annotated[Optional[str], typer.Option("--late", metavar="FORMAT", help="Write late events.")] = None,  # noqa: UP045
        emit: Annotated[str, typer.Option("--emit", metavar="MODE", help="final or update.")] = "final",
        correct_for: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--correct-for", metavar="TIME", help="Correct rows when events come so much later."),
        ] = None,
        deduplicate: Deduplicated = None, deduplicate_within: Within = None, connection: Address = None,
        topic: Topic = None,
        budget: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--budget", metavar="LIMITS", help="'state 100 MB, keys 1000000, time 50 ms': at most."),
        ] = None,
        incomplete: Annotated[bool, typer.Option("--incomplete", help="Tell open windows too; see _complete.")] = False,
        backfill: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--backfill", metavar="all|TIME", help="Read the source again: all, or from a time on."),
        ] = None,
        dry_run: DryRun = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Add a query to a pond that is served; it is answered from the next epoch on."""
        with client(checkpoint, url, token, ca) as asked:
            _tell(
                asked.add(
                    name, selected(text), sink=sink, serve=serve, late=late, emit=emit,
                    correct_for=correct_for, deduplicate=deduplicate or (), deduplicate_within=deduplicate_within,
                    connection=connection, budget=budget, incomplete=incomplete,
                    backfill=backfill or False, topic=topic, dry_run=dry_run,
                ),
                as_json,
            )  # fmt: skip

    @app.command()
    def alter(
        name: Name, text: Text, deduplicate: Deduplicated = None, deduplicate_within: Within = None,
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Put another version in the place of a query."""
        with client(checkpoint, url, token, ca) as asked:
            done = asked.alter(
                name, selected(text), deduplicate=deduplicate or (), deduplicate_within=deduplicate_within,
                dry_run=dry_run,
            )  # fmt: skip
            _tell(done, as_json)

    @app.command()
    def shadow(
        name: Name, text: Text, dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None,
        token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Try another version beside a query; `millpond diff` compares their rows."""
        with client(checkpoint, url, token, ca) as asked:
            _tell(asked.shadow(name, selected(text), dry_run=dry_run), as_json)


def _scale(app: typer.Typer) -> None:
    @app.command()
    def scale(
        instances: Annotated[int, typer.Argument(metavar="N", min=1, help="So many parallel folds.")],
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Give a pond that is served another number of instances, from the next epoch on."""
        with client(checkpoint, url, token, ca) as asked:
            _tell(asked.scale(instances, dry_run=dry_run), as_json)


def _relocate(app: typer.Typer) -> None:
    @app.command("move")
    def move_rows(
        what: Annotated[str, typer.Argument(metavar="BUCKET|SHARD", help="A number, FIRST-LAST, or a shard.")],
        to: Annotated[str, typer.Option("--to", metavar="STORE", help="The store, or own: the pond's.")],
        dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Keep the served rows of some buckets in another store, one that `millpond serve --shard` allows."""
        with client(checkpoint, url, token, ca) as asked, _telling(asked, "move"):
            done = asked.relocate(what, to, dry_run=dry_run)
        _tell(done, as_json)


def _autoscale(app: typer.Typer) -> None:
    @app.command()
    def autoscale(
        checkpoint: Folder = None, instances: Range = "1-8", target: Target = 0.5, as_json: Json = False,
        _dry_run: Annotated[bool, typer.Option("--dry-run", help="As without it, and as other verbs say it.")] = False,
    ) -> None:  # fmt: skip
        """Say what `serve --autoscale` would do with a pond now, and why; changes nothing."""
        from millpond.control.commands.autoscale import advice, advice_text

        found = advice(checkpoint or only_pond(), policy_of(instances, target))
        _lines(found, as_json, [advice_text(found)])


def policy_of(instances: str, target: float) -> Policy:
    """The policy that `LEAST-MOST` and a target mean.

    >>> policy_of("2-8", 0.6).most, policy_of("4", 0.6).least
    (8, 4)
    """
    least, divided, most = instances.partition("-")
    if not (least.isdecimal() and (most.isdecimal() or not divided) and 1 <= int(least) <= int(most or least)):
        raise typer.BadParameter(f"{instances!r} is no LEAST-MOST, such as 1-8.")
    return Policy(target=target, least=int(least), most=int(most or least))


_SAYS = {
    "drop": "End a query: its state goes, its name is free.",
    "pause": "Keep rows of a query from leaving, for ever, until resume.",
    "resume": "Let rows of a paused query leave again.",
    "promote": "Let a query and its shadow change places.",
    "rollback": "Take a promote back, while the version before it is the shadow.",
    "discard": "End the shadow of a query.",
}


def _move(app: typer.Typer, kind: str) -> None:
    @app.command(kind, help=_SAYS[kind])
    def move(
        name: Name, dry_run: DryRun = False, checkpoint: Folder = None, url: Url = None, token: Token = None,
        ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        with client(checkpoint, url, token, ca) as asked:
            _tell(asked.move(kind, name, dry_run=dry_run), as_json)


def _shows(app: typer.Typer) -> None:
    @app.command("list")
    def queries(
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False
    ) -> None:
        """List the queries in force, and what the streams retain for others; --json: the queries."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.queries()
            streams = [] if as_json else asked.streams()
        lines = [*map(query_line, found), *map(stream_line, streams)]
        _lines(found, as_json, lines, "The pond is asked nothing.")

    @app.command()
    def show(
        name: Name, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Show a query: its text, its columns, from when on it is whole."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.show(name)
        _lines(found, as_json, query_lines(found))

    @app.command()
    def functions(
        reload: Annotated[bool, typer.Option("--reload", help="Load new versions from the operator's file.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """List the operator's functions, and which queries call which version."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.functions(reload=reload)
        _lines(found, as_json, map(function_line, found), "The operator has no functions.")

    @app.command()
    def history(
        limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many changes.")] = 20,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """List the newest changes, the newest first: when, by whom, in which record."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.history(limit)
        _lines(found, as_json, map(event_line, found), "Nothing was changed yet.")

    @app.command()
    def diff(
        name: Name, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
        as_json: Json = False,
    ) -> None:  # fmt: skip
        """Say how the rows of a query and its shadow differ."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.diff(name)
        _lines(found, as_json, diff_lines(found))


def _watch(app: typer.Typer) -> None:
    @app.command()
    def status(
        placement: Annotated[bool, typer.Option("--placement", help="Add the local-hit rate.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Say how a pond that is served fares."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.status()
            if as_json:
                _lines(found, True, [])
            else:
                placed = asked.placement() if placement else None
                console().print(picture(found, asked.queries(), placed))

    @app.command()
    def top(
        every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often.")] = 1.0,
        placement: Annotated[bool, typer.Option("--placement", help="Add the local-hit rate.")] = False,
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
    ) -> None:  # fmt: skip
        """Show a pond that is served, again and again, until Ctrl-C; it follows the leader."""
        shown, pause = console(), threading.Event()
        with Live(console=shown, screen=shown.is_terminal, auto_refresh=False) as live:
            while True:
                try:
                    with client(checkpoint, url, token, ca) as asked:
                        placed = asked.placement() if placement else None
                        live.update(picture(asked.status(), asked.queries(), placed), refresh=True)
                except NotServingError as error:
                    live.update(str(error), refresh=True)
                except KeyboardInterrupt:
                    return
                pause.wait(every)


def _parameters() -> typer.Typer:
    param = typer.Typer(help="Live parameters, :name in texts.", no_args_is_help=True, rich_markup_mode=None)

    @param.command("list")
    def shown(
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False
    ) -> None:
        """List the live parameters in force."""
        with client(checkpoint, url, token, ca) as asked:
            found = asked.params()
        _lines(found, as_json, map(parameter_line, found), "The pond has no live parameters.")

    @param.command("set")
    def put(
        values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="A number, true, false or a text.")],
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Set live parameters, in force from the next epoch on."""
        with client(checkpoint, url, token, ca) as asked:
            for name, value in [assigned(one) for one in values]:
                _tell(asked.param(name, value), as_json)

    @param.command("feed")
    def fed(
        name: str, source: Annotated[str, typer.Option("--from", metavar="QUERY.COLUMN", help="Whose rows feed it.")],
        checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        """Let a live parameter take its values from the rows of a query's newest window, until it is set."""
        query, divided, column = source.partition(".")
        if not divided:
            raise RequestError(f"{source!r} is no QUERY.COLUMN.", "Write --from top.merchant.")
        with client(checkpoint, url, token, ca) as asked:
            _tell(asked.feed(name, query, column), as_json)

    return param


def _tell(done: Changed | Priced, as_json: bool) -> None:
    _lines(done, as_json, [change_text(done)])


def _lines(found: object, as_json: bool, lines: Iterable[str], none: str = "") -> None:
    """What was found, as JSON or as lines; that there is `none` goes to people, not into a pipe."""
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    elif told := [*lines]:
        typer.echo("\n".join(told))
    else:
        typer.echo(none, err=True)


def console() -> Console:
    """Where tables go: what is no terminal has no edge at which to cut them."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_NO_EDGE)


@contextmanager
def _telling(asked: Client, follower: str) -> Iterator[None]:
    """Say on standard error how far a change is that waits, each time that its note in the status is another one."""
    ended, said = threading.Event(), ""

    def watch() -> None:
        nonlocal said
        while not ended.wait(_LOOK_SECONDS):
            with suppress(MillpondError):  # whatever keeps it from telling, the change itself says
                notes = {one.name: one.note or "" for one in asked.status().followers}
                if (note := notes.get(follower, "")) not in ("", said):
                    typer.echo(f"{note} …", err=True)
                    said = note

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join(_LOOK_SECONDS)


def _missing(error: ModuleNotFoundError) -> SetupError:
    return SetupError(f"The libraries of the service are missing: {error}.", f"Run `{install('serve')}`.")
