"""The command `millpond`: run a pond file, explain it, look up a row, repair, see the demo."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import Annotated, Optional

import msgspec
import typer
from rich.console import Console

from millpond.control.causes import explain_why
from millpond.control.compiling import compile_text, write_compiled
from millpond.control.dead_letters import kinds, lines, replay
from millpond.control.demo import DemoOptions, run_demo
from millpond.control.doctor import Asked, examine, say_check
from millpond.control.interrupts import interrupts
from millpond.control.measured import measure, measured_text, price_of_state
from millpond.control.placed import placement_text, read_placement
from millpond.control.pond import Pond
from millpond.control.prepare import prepare as prepare_machine
from millpond.control.progress import Progress, utc
from millpond.control.reader import look_up, read_truth
from millpond.control.why import find_facts
from millpond.control.why_picture import draw
from millpond.errors import MillpondError, QueryTypeError, of_machine
from millpond.model.compiled import read_if_of, stale
from millpond.model.join import Join
from millpond.model.selection import Selection
from millpond.plan.build import build_plan, needed_foreign
from millpond.plan.explain import explain as explained
from millpond.plan.explain_joins import price_of_join
from millpond.plan.explain_stateless import price_of_selection
from millpond.plan.price import price, price_text
from millpond.service import terminal
from millpond.service.options import Options
from millpond.spark.session import spark_session
from millpond.version import VERSION

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Many continuous queries over one event stream in one Spark application.",
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE.sql", help="Streams and queries: Spark's own statements.")]
Checkpoint = Annotated[
    Optional[Path],  # noqa: UP045 - typer evaluates it on Python 3.10
    typer.Option("--checkpoint", metavar="DIR", help="The pond's folder [default: FILE.pond beside FILE.sql]."),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs: local[*], local[4], ….")]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Heap of the driver's JVM.")]
StoreAddress = Annotated[
    str,
    typer.Option("--store", metavar="STORE", envvar="MILLPOND_STORE", help="lmdb, lmdb:PATH, redis://HOST or memory."),
]
Instances = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--instances", metavar="N", min=1, help="Parallel folds [default: Spark's parallelism]."),
]

dlq = typer.Typer(help="Dead letters: records of a stream that did not parse.", no_args_is_help=True)
app.add_typer(dlq, name="dlq")
DeadLetters = Annotated[Path, typer.Argument(metavar="DIR", help="What the stream's 'dead.path' names.")]
_VERBOSE = ("-v", "--verbose")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option(*_VERBOSE, help="Show where an error arose; at any place.")] = False,
) -> None:
    del verbose  # `main` has taken it out of the words
    if version:
        typer.echo(f"millpond {VERSION}")
        raise typer.Exit


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Take all input there is, then end.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Then close every open window (with --once).")] = False,
    master: Master = "local[*,4]",
    store: StoreAddress = "lmdb",
    checkpoint: Checkpoint = None,
    instances: Instances = None,
    memory: Memory = "2g",
) -> None:
    """Run the queries of a file until Ctrl-C; a later run on the same folder goes on where this one stopped."""
    if drain and not once:
        raise typer.BadParameter("--drain closes windows that input may still reach: use it with --once.")
    folder = _folder(file, checkpoint)
    console = Console(stderr=True)
    text = _read(file)
    console.print(f"The pond is in {folder}", highlight=False, markup=False, soft_wrap=True)
    told: list[Progress] = []
    with interrupts(lambda what: console.print(what, soft_wrap=True)) as signals, Pond(
        spark_session(master, driver_memory=memory), folder, instances=instances, store=store,
        on_epoch=lambda epoch: told[0].epoch(epoch),
    ) as pond:  # fmt: skip
        pond.load(text)
        for note in pond.notes():
            console.print(str(note), highlight=False, markup=False, soft_wrap=True)
        told.append(Progress(pond.plan, pond.status, console))
        pond.open()
        with told[0] as progress, signals.stopping(pond.stop):
            pond.run(once=once, drain=drain)
        head = progress.epoch_n
        done = "No new input." if head is None else f"All rows are out as of epoch {head}."
        console.print(done, highlight=False)
        for one in pond.status():
            if one.note:
                console.print(f"{one.name}: {one.note}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def explain(
    file: File,
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="A pond that has run these queries: add what it measured."),
    ] = None,
    add: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--add", metavar="QUERY", help="Price one more: a SELECT, or a FILE.sql of statements."),
    ] = None,
    placement: Annotated[
        bool, typer.Option("--placement", help="Add where its buckets lie (with --checkpoint, and --store as it ran).")
    ] = False,
    store: StoreAddress = "lmdb",
    master: Master = "local[1]",
    memory: Memory = "1g",
) -> None:
    """Say how the queries of a file share windows and measures, and what each costs; nothing is run."""
    if placement and checkpoint is None:
        raise typer.BadParameter("--placement looks at a pond that has run: name its folder with --checkpoint.")
    text = _read(file)
    more = _read(Path(add)) if add is not None and add.endswith(".sql") else None
    pond = Pond(spark_session(master, driver_memory=memory), _folder(file, checkpoint))
    pond.load(text)
    measured = None if checkpoint is None else measure(checkpoint, pond.queries)
    plan = pond.plan
    typer.echo(explained(plan, pond.streams), nl=False)
    if measured is not None:
        typer.echo("\n" + measured_text(measured), nl=False)
    if placement and checkpoint is not None:
        typer.echo("\n" + placement_text(read_placement(checkpoint, store)), nl=False)
    if add is not None:
        for query in pond.load(more) if more is not None else (pond.add("added", add),):
            if isinstance(query, Selection):
                typer.echo("\n" + price_of_selection(plan, query), nl=False)
                continue
            if isinstance(query, Join):
                typer.echo("\n" + price_of_join(plan, query), nl=False)
                continue
            found = price(plan, query)
            typer.echo("\n" + price_text(found, price_of_state(found, measured)), nl=False)


@app.command("compile")
def compile_file(
    file: File,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FILE.json", help="Where to [default: FILE.json beside FILE.sql]."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is up to date, without Spark.")] = False,
    memory: Memory = "1g",
) -> None:
    """Write what Spark makes of a file as JSON: millpond.testing tests its queries without Spark or Java."""
    text = _read(file)
    path = file.with_suffix(".json") if output is None else output
    if check:
        if read_if_of(path, text) is None:
            raise stale(file, path)
        typer.echo(f"{path} is up to date.")
        return
    compiled = compile_text(spark_session("local[1]", driver_memory=memory), text)
    write_compiled(path, compiled)
    typer.echo(f"{path} holds {', '.join(query.name for query in compiled.spec.asked)}.")
    for query in compiled.spec.asked:
        for foreign in (one for stream in query.streams for one in needed_foreign(build_plan([query]), stream)):
            typer.echo(f"Only Spark evaluates `{foreign.sql}` of {query.name}: a test must give its values.")


@app.command()
def lookup(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query with 'serve' = 'true'.")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="The key's values, in order.")],
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="The pond's folder."),
    ] = None,
    store: StoreAddress = "lmdb",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--url", metavar="URL", help="Ask this service instead of the folder."),
    ] = None,
    token: terminal.Token = None,
    ca: terminal.Trusted = None,
) -> None:
    """Print the latest row of a key, from the store of a pond that may be running (--checkpoint), or from a service."""
    if checkpoint is not None and url is None:
        served = look_up(checkpoint, query, key, store)
    else:
        served = terminal.look_up(terminal.client(checkpoint, url, token, ca), query, key)
    document = served.document
    if as_json:
        typer.echo(msgspec.json.encode({"as_of": served.n, "found": document}).decode())
    elif document is None:
        typer.echo(f"{query} has no row for {' '.join(key)} as of epoch {served.n}.")
    else:
        start, end = document["window"]
        width = max(map(len, document["row"]))
        for name, value in document["row"].items():
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            typer.echo(f"{name:<{width}}  {shown}")
        typer.echo(
            f"window {utc(start)} to {utc(end)}, written by epoch {document['epoch']}, as of epoch {served.n}"
        )
    if document is None:
        raise typer.Exit(1)


@app.command()
def why(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query that should say something.")],
    checkpoint: Annotated[Path, typer.Option("--checkpoint", metavar="DIR", help="The pond's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Say why nothing comes out of a query, read beside a pond that may be running."""
    found = explain_why(find_facts(*read_truth(checkpoint), query))
    typer.echo(msgspec.json.encode(found).decode() if as_json else draw(found), nl=as_json)


@app.command()
def doctor(
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="A pond's folder, there or to be made."),
    ] = None,
    store: StoreAddress = "lmdb",
    memory: Memory = "2g",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Try what a pond needs of this machine: one line a check; exit status 1 when something would stop a pond."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    checks = []
    for check in examine(Asked(checkpoint, store, memory)):
        checks.append(check)
        if not as_json:
            say_check(console, check)
    sound = all(check.verdict != "problem" for check in checks)
    if as_json:
        typer.echo(msgspec.json.encode({"ok": sound, "checks": checks}).decode())
    raise typer.Exit(0 if sound else 1)


@app.command()
def prepare() -> None:
    """Keep Spark's classes in one file, once for this machine: every later command starts in half the time."""
    typer.echo(f"Spark's classes are in {prepare_machine()}.")


@dlq.command("list")
def list_dead_letters(folder: DeadLetters) -> None:
    """Count the records that did not parse, by topic and reason."""
    found = kinds(folder)
    for kind in found:
        typer.echo(f"{kind.letters:>8}  {kind.topic}  {kind.reason}  {kind.first} .. {kind.last}")
    typer.echo("" if found else "There are none.", nl=not found)


@dlq.command("show")
def show_dead_letters(
    folder: DeadLetters,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many of the newest.")] = 20,
) -> None:
    """Show the newest records that did not parse, with the beginning of their bytes."""
    for line in lines(folder, limit):
        typer.echo(line)


@dlq.command("replay")
def replay_dead_letters(
    folder: DeadLetters,
    connection: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--connection", metavar="NAME", help="How Kafka is reached [default: the only connection]."),
    ] = None,
    to: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--to", metavar="TOPIC", help="Another topic than they came from."),
    ] = None,
) -> None:
    """Send those that were not sent before to Kafka again, each once."""
    typer.echo(f"{replay(folder, connection, to)} sent.")


@app.command()
def repair(
    file: File, store: StoreAddress = "lmdb", checkpoint: Checkpoint = None, master: Master = "local[1]",
    memory: Memory = "1g",
) -> None:  # fmt: skip
    """Set Spark's checkpoint to the log, after it was lost or restored."""
    text = _read(file)
    with Pond(spark_session(master, driver_memory=memory), _folder(file, checkpoint), store=store) as pond:
        pond.load(text)
        pond.repair()
    typer.echo("Spark's checkpoint continues the log.")


@app.command()
def demo(
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="Keep flights, pond and results there."),
    ] = None,
    rows: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rows", metavar="N", min=1, help="Only the first N flights [default: all 336,776]."),
    ] = None,
    master: Master = "local[*,4]",
    memory: Memory = "2g",
) -> None:
    """Replay a year of flights through ten queries, and check every row against DuckDB."""
    equal = run_demo(DemoOptions(checkpoint, rows, master, memory), Console())
    raise typer.Exit(0 if equal else 1)


@app.command()
def serve(
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(metavar="FILE.sql", help="Streams, views and the queries that a new pond begins with."),
    ] = None,
    checkpoint: Checkpoint = None,
    master: Master = "local[*,4]",
    store: StoreAddress = "lmdb",
    instances: Instances = None,
    memory: Memory = "2g",
    web: terminal.Serving = "127.0.0.1:0",
    cert: terminal.Certificate = None,
    key: terminal.Key = None,
    allow_host: terminal.Hosts = None,
    allow_origin: terminal.Origins = None,
    out: terminal.Out = None,
    patience: terminal.Patience = 10.0,
    shard: terminal.Shards = None,
    autoscale: terminal.Autoscale = None,
    target: terminal.Target = 0.5,
) -> None:
    """Run a pond as a service until Ctrl-C; a second one on the same folder stands by and takes over."""
    if file is None and checkpoint is None:
        raise typer.BadParameter("Name a FILE.sql, or the folder of a pond with --checkpoint.")
    folder = checkpoint if checkpoint is not None else _folder(file or Path(), None)
    terminal.run_service(
        Options(
            "" if file is None else _read(file), folder, master, memory, store, instances, out, patience,
            tuple(shard or ()), None if autoscale is None else terminal.policy_of(autoscale, target),
        ),
        web, cert, key, tuple(allow_host or ()), tuple(allow_origin or ()),
    )  # fmt: skip


terminal.add_verbs(app)


def _folder(file: Path, checkpoint: Path | None) -> Path:
    return checkpoint if checkpoint is not None else file.with_suffix(".pond")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise QueryTypeError(f"{file} cannot be read: {reason}.", "Name a file of statements.") from error


def main() -> None:
    """Run the command; an error is one line on standard error, and exit status 1."""
    words = sys.argv[1:]
    # py4j logs a lost connection, with its trace, to whoever has set up no logging
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        app(args=[word for word in words if word not in _VERBOSE])
    except Exception as error:
        if any(word in _VERBOSE for word in words):
            traceback.print_exc()
        print(" ".join(str(_of_ours(error)).split()), file=sys.stderr)
        sys.exit(1)


def _of_ours(error: Exception) -> MillpondError:
    """An error of ours; one that no code foresees is a defect, and says so."""
    if isinstance(error, MillpondError):
        return error
    return of_machine(error) or MillpondError(
        f"{type(error).__name__}: {error}.", "This is a defect of millpond: please report it with the output of -v."
    )
