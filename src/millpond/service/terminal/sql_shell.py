"""The command `millpond sql`: a shell for the SQL of a served pond.

The endpoint of `serve --pg` answers SELECT, SHOW and DESCRIBE. If the service has none, the shell starts one for
itself, which reads the pond's log and store. Statements that change queries become the requests of `millpond add`,
`alter` and `drop`, after a dry run that shows the price.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import msgspec
import typer

from millpond.connections import is_loopback
from millpond.errors import AccessError, MillpondError, NotServingError, RequestError, SetupError, of_code
from millpond.formats.escapes import printable
from millpond.service.api.messages import Changed, Priced, QueryShown
from millpond.service.api.service_files import TOKEN_VARIABLE, URL_VARIABLE, only_pond, places_of
from millpond.service.postgres.client_sql import distinct_names, statements_of
from millpond.service.terminal import commands
from millpond.service.terminal.serve_arguments import StoreAddress, host_and_port
from millpond.service.terminal.text import change_lines, folded, table_lines, terminal_width
from millpond.version import install

if TYPE_CHECKING:
    from millpond.log.locations.address import Given
    from millpond.service.api.client import Client

try:
    import readline
except ImportError:  # a Python without line editing
    readline = None  # type: ignore[assignment]

KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "DESC", "HAVING", "JOIN", "DESCRIBE", "SHOW QUERIES",
    "SHOW STREAMS", "SHOW PARAMETERS", "SHOW CHANGES", "SHOW TABLES", "CREATE STREAMING TABLE", "USING",
    "TBLPROPERTIES", "ALTER STREAMING TABLE", "DROP STREAMING TABLE", "FROM STREAM", "WATERMARK", "IF EXISTS",
    "IF NOT EXISTS", "CREATE OR REPLACE STREAMING TABLE",
)  # fmt: skip

_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_TEXT = r"'((?:[^']|'')*)'"
_PROPERTY = re.compile(rf"\s*{_TEXT}\s*=\s*{_TEXT}\s*(?:,|\Z)")
_CREATE = re.compile(
    rf"{_GAP}CREATE\s+(?P<replace>OR\s+(?:REPLACE|REFRESH)\s+)?STREAMING\s+TABLE\s+"
    r"(?P<absent>IF\s+NOT\s+EXISTS\s+)?(?P<name>\w+)"
    rf"(?:\s+USING\s+(?P<sink>\w+))?(?:\s+TBLPROPERTIES\s*\((?P<properties>(?:[^')]|{_TEXT})*)\))?"
    r"\s+AS\s+(?P<text>.+)",
    re.DOTALL | re.IGNORECASE,
)
_EXISTING = r"(?P<exists>IF\s+EXISTS\s+)?(?P<name>\w+)"
_ALTER = re.compile(rf"{_GAP}ALTER\s+STREAMING\s+TABLE\s+{_EXISTING}\s+AS\s+(?P<text>.+)", re.DOTALL | re.IGNORECASE)
_DROP = re.compile(rf"{_GAP}DROP\s+(?:STREAMING\s+)?TABLE\s+{_EXISTING}\s*", re.DOTALL | re.IGNORECASE)
_CODED = re.compile(r"\[(MP-[A-Z-]+)\] (.*)")
_OPTIONS = {
    "serve": "serve", "emit": "emit", "correct.for": "correct_for", "deduplicate": "deduplicate", "topic": "topic",
    "table": "table",
    "deduplicate.within": "deduplicate_within", "connection": "connection", "budget": "budget", "late.by": "late_by",
    "state.ttl": "state_ttl", "time.zone": "time_zone", "late.format": "late",
}  # fmt: skip
"""The properties of a query that is added, and the arguments of `Client.add`."""
_VERSIONED = ("deduplicate", "deduplicate_within")
"""The arguments of `Client.alter` among them."""
_CONNECT_SECONDS = 10
_START_SECONDS, _PAUSE_SECONDS = 30, 0.1
_OWN_SECONDS = 60
"""How long the shell's own endpoint may take to answer: a busy host loads DuckDB slowly, and with a low priority."""


class QueryChange(NamedTuple):
    """A statement that changes a query: the kind of the change, the query, its text, and arguments of `Client.add`.

    A `replace` alters the query if it exists, and adds it otherwise. `conditional`: the change is only made if the
    query exists or, for `add`, if it does not.
    """

    kind: str
    name: str
    text: str = ""
    options: Mapping[str, Any] = {}
    conditional: bool = False

    def request(self, pond: Client, *, dry_run: bool) -> Changed | Priced | None:
        """Make the change, or only price it; None: its condition is not met.

        Raises:
            RequestError: the query exists, and a `replace` has other properties.
        """
        kind, options, known = self.kind, self.options, None
        if self.conditional or kind == "replace":
            known = next((one for one in pond.queries() if one.name == self.name), None)
        if self.conditional and (known is None) == (kind != "add"):
            return None
        if kind == "replace":
            kind, options = ("add", options) if known is None else ("alter", self._for_existing(known))
        if kind == "add":
            return pond.add(self.name, self.text, dry_run=dry_run, **options)
        if kind == "alter":
            return pond.alter(self.name, self.text, dry_run=dry_run, **options)
        return pond.move("drop", self.name, dry_run=dry_run)

    @property
    def unmet(self) -> str:
        """What is reported if the condition is not met."""
        exists = f"The query {self.name} exists" if self.kind == "add" else f"There is no query {self.name}"
        return f"{exists}; nothing was changed."

    def _for_existing(self, known: QueryShown) -> dict[str, Any]:
        """The arguments of `Client.alter`; a sink or a property that would differ is refused."""
        existing = {"sink": known.sink, "serve": known.serve}
        for option, value in self.options.items():
            if option in _VERSIONED or existing.get(option) == value:
                continue
            name = next((name for name, one in _OPTIONS.items() if one == option), option)
            kept = f" is {existing[option]!r}" if option in existing else " is fixed"
            what = f"{self.name} exists, and its {name!r}{kept}: only its text can be replaced."
            raise RequestError(what, f"Leave {name!r} out, or drop the query first.")
        return {option: value for option, value in self.options.items() if option in _VERSIONED}


def change_of(text: str) -> QueryChange | None:
    """The change that a statement makes; None: it is another statement.

    Raises:
        RequestError: it has a property that a query which is added over the network cannot have.

    >>> change_of("DROP TABLE visits")
    QueryChange(kind='drop', name='visits', text='', options={}, conditional=False)
    >>> change_of("CREATE STREAMING TABLE a USING json TBLPROPERTIES ('serve' = 'true') AS SELECT 1").options
    {'sink': 'json', 'serve': True}
    """
    if match := _DROP.fullmatch(text):
        return QueryChange("drop", match["name"], conditional=match["exists"] is not None)
    if match := _ALTER.fullmatch(text):
        return QueryChange("alter", match["name"], match["text"], conditional=match["exists"] is not None)
    if (match := _CREATE.fullmatch(text)) is None:
        return None
    if match["replace"] and match["absent"]:
        raise RequestError("OR REPLACE and IF NOT EXISTS exclude each other.", "Use one of them.")
    sink = {} if match["sink"] is None else {"sink": match["sink"].lower()}
    options = sink | dict(_options(match["properties"] or ""))
    kind = "replace" if match["replace"] else "add"
    return QueryChange(kind, match["name"], match["text"], options, match["absent"] is not None)


def _options(properties: str) -> Iterator[tuple[str, Any]]:
    at = 0
    while at < len(properties.rstrip()):
        if (match := _PROPERTY.match(properties, at)) is None:
            raise RequestError(f"TBLPROPERTIES has {properties[at:].strip()!r}.", "Write 'NAME' = 'VALUE', ….")
        name, value = (one.replace("''", "'") for one in match.groups())
        if name == "path":
            raise RequestError("The operator chooses the folder of rows, with --out.", "Leave 'path' out.")
        if name not in _OPTIONS:
            raise RequestError(f"A query cannot be added with {name!r}.", f"Use {', '.join(sorted(_OPTIONS))}.")
        if name == "serve":
            if value.lower() not in ("true", "false"):
                raise RequestError(f"'serve' is {value!r}.", "Write 'true' or 'false'.")
            yield "serve", value.lower() == "true"
        elif name == "deduplicate":
            yield "deduplicate", tuple(one.strip() for one in value.split(",") if one.strip())
        else:
            yield _OPTIONS[name], value
        at = match.end()


class SqlAddress(NamedTuple):
    """Where SQL is answered (HOST:PORT, of several services separated by commas), the token, and a certificate.

    `seconds`: how long a connection may take. `cure`: what helps if nobody answers.
    """

    at: str
    token: str
    certificate: str | None
    seconds: int = _CONNECT_SECONDS
    cure: str = "Start the service with --pg, and name that address."

    def arguments(self) -> dict[str, Any]:
        """The arguments of `psycopg.connect`."""
        hosts, ports = zip(*map(host_and_port, self.at.split(",")), strict=True)
        arguments: dict[str, Any] = {
            "host": ",".join(hosts), "port": ",".join(map(str, ports)), "user": "millpond", "password": self.token,
            "dbname": "pond", "autocommit": True, "connect_timeout": self.seconds,
        }  # fmt: skip
        if self.certificate is None and all(map(is_loopback, hosts)):
            return arguments | {"sslmode": "disable"}
        # the token must not cross a network in plain text
        return arguments | {"sslmode": "verify-full", "sslrootcert": self.certificate or "system"}


class EndpointClient:
    """The SQL endpoint of a pond; connects with the first statement, and again after a lost connection.

    `find`: where SQL is answered now. A statement whose connection is lost is repeated if another service answers now.

    Raises:
        SetupError: psycopg is missing. NotServingError: nobody answers. RequestError: a statement fails.
    """

    def __init__(self, find: Callable[[], SqlAddress]) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise SetupError(f"The SQL shell needs psycopg: {error}.", f"Run `{install('sql')}`.") from error
        self._psycopg, self._find = psycopg, find
        self._connection: psycopg.Connection[Any] | None = None
        self._address: SqlAddress | None = None

    def rows(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of the columns, and the rows."""
        if self._connection is None or self._connection.closed:
            self._connect(self._find())
        try:
            return self._executed(statement)
        except NotServingError:
            if (now := self._find()) == self._address:
                raise
        self._connect(now)
        return self._executed(statement)

    def _connect(self, address: SqlAddress) -> None:
        arguments, self._address = address.arguments(), address
        try:
            self._connection = self._psycopg.connect(**arguments)
        except self._psycopg.OperationalError as error:
            why = _one_line(error)
            if f"[{AccessError.code}]" in why:
                raise AccessError(
                    f"The service at {address.at} refuses the token.", f"Give --token, or set {TOKEN_VARIABLE}."
                ) from error
            raise NotServingError(f"No SQL is answered at {address.at}: {why}.", address.cure) from error

    def _executed(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        assert self._connection is not None and self._address is not None
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement.encode())
                return [one.name for one in cursor.description or ()], cursor.fetchall() if cursor.description else []
        except self._psycopg.Error as error:
            diagnosis = error.diag
            if self._connection.closed and diagnosis.message_primary is None:
                what = f"The connection to {self._address.at} was lost: {_one_line(error)}."
                raise NotServingError(what, "Try again.") from error
            what = " ".join((diagnosis.message_primary or str(error)).split())
            found = _CODED.fullmatch(what)
            kind, what = (RequestError, what) if found is None else (of_code(found[1]), found[2])
            raise kind(f"{what.rstrip('.!')}.", diagnosis.message_hint or "") from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".?")


class Shell:
    """Runs statements and prints their answers.

    `pond` and `endpoint` are made when they are first needed. `width`: of the terminal, None without one. `confirm`:
    whether to apply a change after its price was shown; None: always.
    """

    def __init__(
        self, pond: Callable[[], Client], endpoint: Callable[[], EndpointClient], width: int | None, as_json: bool,
        confirm: Callable[[], bool] | None, dry_run: bool,
    ) -> None:  # fmt: skip
        self._pond, self._endpoint, self._width, self._as_json = pond, endpoint, width, as_json
        self._confirm, self._dry_run = confirm, dry_run

    def run(self, text: str) -> None:
        """Run the statements of a text."""
        for statement in statements_of(text):
            change = change_of(statement.text)
            if change is None:
                self._read(statement.text)
            else:
                self._change(change)

    def _read(self, statement: str) -> None:
        names, rows = self._endpoint().rows(statement)
        if self._as_json:
            names = distinct_names(names)
            for row in rows:
                typer.echo(msgspec.json.encode(dict(zip(names, row, strict=True))).decode())
            return
        for line in table_lines(names, rows, self._width):
            typer.echo(line)

    def _change(self, change: QueryChange) -> None:
        with self._pond() as pond:
            price = change.request(pond, dry_run=True)
            if price is None:
                self._show(change, None)
                return
            self._show(change, price, err=not self._dry_run)
            if not self._dry_run and (self._confirm is None or self._confirm()):
                self._show(change, change.request(pond, dry_run=False))

    def _show(self, change: QueryChange, done: Changed | Priced | None, *, err: bool = False) -> None:
        """Show a change or its price. As JSON, a change that was not made has no record."""
        if self._as_json:
            shown = msgspec.json.encode(done or Changed(change.kind, change.name)).decode()
        else:
            shown = folded(change.unmet if done is None else "\n".join(change_lines(done)), self._width)
        typer.echo(shown, err=err)

    def loop(self) -> None:
        """Read statements from the terminal until its end."""
        self._complete()
        lines: list[str] = []
        while True:
            try:
                line = input("   -> " if lines else "pond> ")
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo()
                lines = []
                continue
            if not lines and line.strip().rstrip(";").lower() in ("exit", "quit", r"\q"):
                return
            lines.append(line)
            if line.rstrip().endswith(";"):
                text, lines = "\n".join(lines), []
                try:
                    self.run(text)
                except MillpondError as error:
                    typer.echo(printable(str(error)), err=True)
                except (KeyboardInterrupt, typer.Abort):  # ends the statement or the question, not the shell
                    typer.echo()

    def _complete(self) -> None:
        """Complete keywords, and the names of tables and columns, with the key Tab."""
        if readline is None or not sys.stdin.isatty():
            return
        words = set(KEYWORDS)
        with suppress(MillpondError):
            _, rows = self._endpoint().rows("SELECT table_name, column_name FROM information_schema.columns")
            words |= {str(name) for row in rows for name in row}
        readline.set_completer_delims(" \t\n,();=<>")
        readline.set_completer(lambda text, state: next(iter(completions(words, text)[state:]), None))
        readline.parse_and_bind("tab: complete")


def completions(words: set[str], text: str) -> list[str]:
    """The words that begin with a text, in any case; keywords are in capitals.

    >>> completions({"SELECT", "sales", "SHOW QUERIES"}, "s"), completions({"SELECT", "sales"}, "sel")
    (['sales', 'SELECT', 'SHOW QUERIES'], ['SELECT'])
    """
    return sorted((word for word in words if word.lower().startswith(text.lower())), key=str.lower)


@contextmanager
def own_endpoint(pond: Given, store: str, token: str) -> Iterator[SqlAddress]:
    """An endpoint for this shell alone, which reads the pond at an address; `store`: where served rows are kept.

    Raises:
        SetupError: DuckDB, or the libraries of the service, are missing; or the endpoint does not start.
    """
    try:
        from millpond.service.postgres.endpoint import Endpoint as Listener
        from millpond.service.server.serve_process import Web
    except ModuleNotFoundError as error:
        raise SetupError(f"The SQL shell needs more libraries: {error}.", f"Run `{install('serve')}`.") from error
    listener = Listener(pond, store, Web())
    with listener.running(token):
        for _ in range(round(_START_SECONDS / _PAUSE_SECONDS)):
            with suppress(OSError), socket.create_connection(("127.0.0.1", listener.port), _PAUSE_SECONDS):
                break
            sleep(_PAUSE_SECONDS)
        else:
            raise SetupError("The SQL endpoint of this shell does not start.", "See the lines above.")
        yield SqlAddress(f"127.0.0.1:{listener.port}", token, None, _OWN_SECONDS, "The host is busy: try again.")


def _address(
    folder: Path | None, url: str | None, pg: str | None, token: str | None, authority: Path | None,
    start: Callable[[Path, str], SqlAddress],
) -> SqlAddress:  # fmt: skip
    """Where SQL is answered: at `pg`, else by the leader that serves the pond of a folder now, else by an endpoint that
    `start` starts for the pond.
    """
    if folder is None and pg is None and url is not None:
        raise SetupError(
            "--url does not say where SQL is answered.",
            "Start the service with --pg, and give that address as --pg too. Or name the pond's folder: --checkpoint.",
        )
    token, certificate = token or os.environ.get(TOKEN_VARIABLE), None if authority is None else str(authority)
    if pg is None or token is None:
        pond = folder or only_pond()
        places = places_of(pond)
        leader = places.known_leader()
        token, certificate = token or places.known_secret(), certificate or leader.known_certificate
        if (pg := pg or leader.pg) is None:
            return start(pond, token)
    return SqlAddress(pg, token, certificate)


def _client(folder: Path | None, url: str | None, pg: str | None, token: str | None, authority: Path | None) -> Client:
    """The client for changes: of the service whose SQL is read, not of another one that this folder names."""
    if folder is None and url is None and pg is not None:
        raise SetupError("--pg does not say where changes are made.", "Give --url or --checkpoint too.")
    return commands.client(folder, url, token, authority)


def add_sql(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def sql(
        command: Annotated[
            Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
            typer.Option("-c", "--command", metavar="SQL", help="Run these statements, then end. Repeatable."),
        ] = None,
        dry_run: commands.DryRun = False,
        pg: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--pg", metavar="HOST:PORT,…", help="Where the service answers SQL [default: from DIR]."),
        ] = None,
        checkpoint: commands.Folder = None, url: commands.Url = None, token: commands.Token = None,
        ca: commands.Trusted = None, as_json: commands.Json = False, store: StoreAddress = "lmdb",
    ) -> None:  # fmt: skip
        """Query and change a served pond with SQL.

        Reads from `serve --pg` or, without it, from the pond's folder and store.

        Without -c, statements are read from standard input: from a terminal each ends with a semicolon, and a script
        ends at its first error.
        """
        interactive = command is None and sys.stdin.isatty()
        if command is None and not interactive:
            command = [sys.stdin.read()]
        width = terminal_width()
        if checkpoint is None:
            url = url or os.environ.get(URL_VARIABLE)
        with ExitStack() as ending:
            start = cache(lambda pond, token: ending.enter_context(own_endpoint(pond, store, token)))
            find = partial(_address, checkpoint, url, pg, token, ca, start)
            endpoint = cache(lambda: ending.enter_context(closing(EndpointClient(find))))
            shell = Shell(
                partial(_client, checkpoint, url, pg, token, ca), endpoint, width, as_json,
                (lambda: typer.confirm("Apply it?")) if interactive else None, dry_run,
            )  # fmt: skip
            if command is None:
                shell.loop()
            for text in command or ():
                shell.run(text)
