"""Defines the command `millpond` and its subcommands.

Spark and Arrow are loaded only by the subcommands that use them, so commands of a service start in half the time.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Optional

import msgspec
import typer
from rich.console import Console

from millpond.clock import utc
from millpond.control.commands.command_log import is_json
from millpond.control.commands.starter import write_starter
from millpond.control.diagnose.why_message import WhyShown
from millpond.control.stall_limits import STALLED_SECONDS
from millpond.errors import MillpondError, QueryTypeError, of_machine
from millpond.formats.escapes import printable
from millpond.local_path import local_path
from millpond.log.locations.address import Address, address_of
from millpond.runtime.inspect.timeline import KEPT
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import URL_VARIABLE, only_pond
from millpond.service.api.settings import BY_NAME, starter
from millpond.service.api.settings_file import spark_settings
from millpond.service.terminal import commands
from millpond.service.terminal import serve_arguments as arguments
from millpond.service.terminal.command_groups import GroupedCommands
from millpond.service.terminal.dead_letters import dlq
from millpond.service.terminal.parameters import param
from millpond.service.terminal.parse_arguments import assigned
from millpond.service.terminal.sql_shell import add_sql
from millpond.service.terminal.text import columns, folded, terminal_width, trace_lines
from millpond.version import VERSION

app = typer.Typer(
    cls=GroupedCommands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Many continuous queries over one event stream in one Spark application.",
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE.sql", help=BY_NAME["file"].help)]
Master = Annotated[str, typer.Option("--master", metavar="URL", help=BY_NAME["master"].help)]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help=BY_NAME["memory"].help)]

app.add_typer(dlq, name="dlq")
app.add_typer(param, name="param")
_VERBOSE = ("-v", "--verbose")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option(*_VERBOSE, help="Show the traceback of an error.")] = False,
) -> None:
    del verbose  # `main` has taken it out of the words
    if version:
        typer.echo(f"millpond {VERSION}")
        raise typer.Exit


@app.command()
def run(
    file: arguments.File,
    once: arguments.Once = False,
    drain: arguments.Drain = False,
    master: arguments.Master = "local[*,4]",
    store: arguments.StoreAddress = "lmdb",
    checkpoint: arguments.Checkpoint = None,
    instances: arguments.Instances = None,
    memory: arguments.Memory = "2g",
    stalled_after: arguments.Stalled = STALLED_SECONDS,
    param: arguments.Params = None,
    conf: arguments.Conf = None,
    trace: arguments.Trace = None,
    _log_format: arguments.LogFormat = "text",
    _config: arguments.Config = None,
) -> None:
    """Run the queries of a file until Ctrl-C.

    A later run on the same folder continues where this one stopped.

    Exit status: 0 on success, 1 after an error, 3 if results are incomplete. Standard error then says why.
    """
    if drain and not once:
        raise typer.BadParameter("--drain closes windows that input may still reach: use it with --once.")
    from millpond.control.commands.run import Run, run_file

    folder = _folder(file, checkpoint)
    given = tuple(assigned(one) for one in param or ())
    spark = spark_settings(conf or [])
    settings = Run(_read(file), folder, master, store, instances, memory, given, stalled_after, trace, spark)
    status = run_file(settings, once=once, drain=drain)
    raise typer.Exit(status)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")] = Path(),
    kafka: Annotated[bool, typer.Option("--kafka", help="Read a topic, from a broker in a container.")] = False,
) -> None:
    """Write a first pond: SQL, settings and data.

    It runs as it is. All settings are in millpond.toml, as comments.
    """
    defaults = {
        name.strip("_").replace("_", "-"): parameter.default
        for command in (run, serve) for name, parameter in inspect.signature(command).parameters.items()
    }  # fmt: skip
    given = {"file": '"pond.sql"'} | ({"connections": '"connections.json"'} if kafka else {})
    for path in write_starter(folder, starter(defaults, given), kafka=kafka):
        typer.echo(path)
    typer.echo("Next:")
    words = ([] if folder == Path() else [f"cd {folder}"]) + (["docker compose up --detach --wait"] if kafka else [])
    for line in (*words, "millpond run --once", "millpond lookup revenue north --checkpoint pond.pond"):
        typer.echo(f"  {line}")


@app.command()
def explain(
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(metavar="FILE.sql", help="A pond file [default: the queries of an existing pond]."),
    ] = None,
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="A pond whose registered queries are explained."),
    ] = None,
    add: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--add", metavar="QUERY", help="Estimate one more query: a SELECT, or a FILE.sql of statements."),
    ] = None,
    placement: Annotated[
        bool, typer.Option("--placement", help="Also show where buckets are stored (with the pond's --store).")
    ] = False,
    store: arguments.StoreAddress = "lmdb",
    master: Master = "local[1]",
    memory: Memory = "1g",
) -> None:
    """Show what queries share, and what each one costs.

    Explains the queries of a file, or the registered queries of a pond.
    """
    from millpond.control.commands.explain import explain_file, explain_pond

    if file is None and add is not None:
        raise typer.BadParameter("--add needs the FILE.sql that declares the streams. Or use `millpond add --dry-run`.")
    more = _read(Path(add)) if add is not None and add.endswith(".sql") else None
    if file is None or checkpoint is not None:
        text = None if file is None else _read(file)
        report = explain_pond(checkpoint or only_pond(), text, store if placement else None, add, more, master, memory)
    elif placement:
        raise typer.BadParameter("--placement needs a pond that has run. Name its folder with --checkpoint.")
    else:
        report = explain_file(_read(file), add, more, master, memory)
    typer.echo(folded("\n".join(report.parts), terminal_width()), nl=False)
    for note in report.notes:
        typer.echo(note, err=True)


@app.command("compile")
def compile_file(
    file: File,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FILE.json", help="Output file [default: FILE.json beside FILE.sql]."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check whether it is up to date.")] = False,
    memory: Memory = "1g",
) -> None:
    """Compile a pond file to JSON, for tests without Spark.

    `millpond.testing` reads the compiled file and needs neither Spark nor Java.
    """
    from millpond.control.pond.compile import compile_to
    from millpond.model.compiled_pond import read_if_of, stale

    text = _read(file)
    path = file.with_suffix(".json") if output is None else output
    if check:
        if read_if_of(path, text) is None:
            raise stale(file, path)
        typer.echo(f"{path} is up to date.")
        return
    for line in compile_to(path, text, memory):
        typer.echo(line)


@app.command()
def lookup(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query with 'serve' = 'true'.")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="The values of the key columns, in order.")],
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="The pond's folder."),
    ] = None,
    store: arguments.StoreAddress = "lmdb",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--url", metavar="URL", help="Send the request to this service instead of reading the folder."),
    ] = None,
    token: commands.Token = None,
    ca: commands.Trusted = None,
) -> None:
    """Print the latest row of a key.

    Reads the store of a pond, which may be running, or sends the request to a service (--url).
    """
    if checkpoint is not None and url is None:
        from millpond.control.wiring.pond_reader import look_up

        served = look_up(checkpoint, query, key, store)
        as_of, document = served.n, served.document
    else:
        as_of, document = commands.look_up(commands.client(checkpoint, url, token, ca), query, key)
    if as_json:
        typer.echo(msgspec.json.encode({"as_of": as_of, "found": document}).decode())
    elif document is None:
        typer.echo(f"{query} has no row for {' '.join(key)} as of record {as_of}.")
    else:
        start, end = document["window"]
        width = max(map(len, document["row"]))
        for name, value in document["row"].items():
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            typer.echo(f"{name:<{width}}  {printable(shown)}")
        typer.echo(f"window {utc(start)} to {utc(end)}, written by epoch {document['epoch']}, as of record {as_of}")
    if document is None:
        raise typer.Exit(1)


@app.command()
def why(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query that emits nothing.")],
    checkpoint: commands.Folder = None,
    url: commands.Url = None,
    token: commands.Token = None,
    ca: commands.Trusted = None,
    as_json: commands.Json = False,
) -> None:
    """Explain why a query emits no rows.

    The service of the pond responds. If there is none, the log in the pond's folder is read.
    """
    address = url or (os.environ.get(URL_VARIABLE) if checkpoint is None else None)
    if address:
        with commands.client(None, address, token, ca) as pond:
            found = pond.why(query, width=columns())
    else:
        folder = checkpoint or only_pond()
        found = commands.sent_why(folder, token, ca, query) or _read_why(folder, query)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        typer.echo(found.text, nl=False)


def _read_why(folder: Path, query: str) -> WhyShown:
    """Why a query emits no rows, by the log in a pond's folder."""
    from millpond.control.diagnose.causes import explain_why
    from millpond.control.diagnose.facts import find_facts
    from millpond.control.wiring.pond_reader import read_truth

    return explain_why(find_facts(*read_truth(folder), query)).shown(columns())


@app.command()
def trace(
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FILE.json", help="Also write a trace for https://ui.perfetto.dev."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", min=1, max=KEPT, help="Number of epochs.")] = KEPT,
    checkpoint: commands.Folder = None,
    url: commands.Url = None,
    token: commands.Token = None,
    ca: commands.Trusted = None,
    as_json: commands.Json = False,
) -> None:
    """Show where the time of the latest epochs went.

    Prints the median of each step. The same spans are drawn by Perfetto from the file that -o writes.
    """
    with commands.client(checkpoint, url, token, ca) as pond:
        found = pond.trace(epochs)
    if output is not None:
        output.write_bytes(msgspec.json.encode(found))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        for line in trace_lines(found) if found.trace_events else ["No epoch was committed since this leader started."]:
            typer.echo(line)


@app.command()
def doctor(
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="A pond's folder, existing or planned."),
    ] = None,
    store: arguments.StoreAddress = "lmdb",
    memory: Memory = "2g",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Check what a pond needs on this machine.

    Prints one line per check. Exit status 1 if a pond would fail.
    """
    from millpond.control.commands.doctor import Target, examine, print_check

    console = Console(highlight=False, markup=False, soft_wrap=True)
    checks = []
    for check in examine(Target(checkpoint, store, memory)):
        checks.append(check)
        if not as_json:
            print_check(console, check)
    sound = all(check.verdict != "problem" for check in checks)
    if as_json:
        typer.echo(msgspec.json.encode({"ok": sound, "checks": checks}).decode())
    raise typer.Exit(0 if sound else 1)


@app.command()
def prepare() -> None:
    """Cache the classes of Spark's JVM, for faster starts.

    Needed once per machine. Later commands start in about half the time.
    """
    from millpond.control.commands.prepare import prepare as prepare_machine

    typer.echo(f"Spark's classes are in {prepare_machine()}.")


@app.command()
def repair(
    file: File, store: arguments.StoreAddress = "lmdb", checkpoint: arguments.Checkpoint = None,
    master: Master = "local[1]", memory: Memory = "1g",
) -> None:  # fmt: skip
    """Rewind sinks that are ahead of the log.

    For use after the log was lost or restored from a backup.
    """
    from millpond.control.commands.run import Run, repair_file

    for done in repair_file(Run(_read(file), _folder(file, checkpoint), master, store, None, memory)):
        typer.echo(done)


@app.command()
def demo(
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="Keep flights, pond and results in this folder."),
    ] = None,
    rows: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rows", metavar="N", min=1, help="Only the first N flights [default: all 336,776]."),
    ] = None,
    master: Master = "local[*,4]",
    memory: Memory = "2g",
) -> None:
    """Run ten queries over a year of flights.

    Every row is checked against DuckDB.
    """
    from millpond.control.commands.demo import DemoOptions, run_demo

    equal = run_demo(DemoOptions(checkpoint, rows, master, memory), Console())
    raise typer.Exit(0 if equal else 1)


@app.command()
def serve(
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="FILE.sql", help=BY_NAME["file"].help, envvar=BY_NAME["file"].variable, show_envvar=False
        ),
    ] = None,
    checkpoint: arguments.Checkpoint = None,
    master: arguments.Master = "local[*,4]",
    store: arguments.StoreAddress = "lmdb",
    instances: arguments.Instances = None,
    memory: arguments.Memory = "2g",
    listen: arguments.Serving = "127.0.0.1:0",
    pg: arguments.Pg = None,
    tls_cert: arguments.Certificate = None,
    tls_key: arguments.Key = None,
    allow_host: arguments.Hosts = None,
    allow_origin: arguments.Origins = None,
    out: arguments.Out = None,
    patience: arguments.Patience = 10.0,
    stalled_after: arguments.Stalled = STALLED_SECONDS,
    shard: arguments.Shards = None,
    push: arguments.Pushed = None,
    autoscale: arguments.Autoscale = None,
    autoscale_shards: arguments.AutoscaleShards = None,
    target: arguments.Target = 0.5,
    param: arguments.Params = None,
    conf: arguments.Conf = None,
    _log_format: arguments.LogFormat = "text",
    _config: arguments.Config = None,
) -> None:
    """Run a pond as a service until Ctrl-C.

    A second process on the same folder is a standby, and takes over if the first one fails.
    """
    if file is None and checkpoint is None:
        raise typer.BadParameter("Name a FILE.sql, or the folder of a pond with --checkpoint.")
    if autoscale is None and autoscale_shards is not None:
        raise typer.BadParameter("--autoscale-shards needs --autoscale, which decides when to scale.")
    from millpond.service.console.loading import is_installed, open_console

    policy = None if autoscale is None else arguments.policy_of(autoscale, target, autoscale_shards)
    folder = _folder(file or Path(), checkpoint)
    commands.run_service(
        Options(
            "" if file is None else _read(file), folder, master, memory, store, instances, out, patience,
            tuple(shard or ()), policy, tuple(assigned(one) for one in param or ()), stalled_after,
            tuple(push or ()), spark_settings(conf or []),
        ),
        listen, tls_cert, tls_key, tuple(allow_host or ()), tuple(allow_origin or ()), pg,
        open_console if is_installed() else None,
    )  # fmt: skip


commands.add_verbs(app)
add_sql(app)


def _folder(file: Path, checkpoint: Path | None) -> Address:
    return address_of(file.with_suffix(".pond") if checkpoint is None else checkpoint)


def _read(file: Path) -> str:
    try:
        return local_path(file, "The pond file").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise QueryTypeError(f"{file} cannot be read: {reason}.", "Name a file of statements.") from error


def main() -> None:
    """Run the command; an error is one line on standard error, and exit status 1."""
    words = sys.argv[1:]
    if isinstance(sys.stdout, TextIOWrapper):  # file names and locales may have what standard output cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    # without logging handlers, py4j prints a lost connection with its trace
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        app(args=[word for word in words if word not in _VERBOSE])
    except Exception as error:
        if any(word in _VERBOSE for word in words):
            traceback.print_exc()
        text = printable(" ".join(str(_of_ours(error)).split()))
        if is_json():
            logging.getLogger("millpond.pond").error("%s", text)
        else:
            print(text, file=sys.stderr)
        sys.exit(1)


def _of_ours(error: Exception) -> MillpondError:
    """An error of the project; an unexpected exception becomes one that reports a defect."""
    if isinstance(error, MillpondError):
        return error
    return of_machine(error) or MillpondError(
        f"{type(error).__name__}: {error}.", "This is a defect of millpond: please report it with the output of -v."
    )
