"""Runs and repairs the pond of a file, for `millpond run` and `millpond repair`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from millpond.connections import unencrypted
from millpond.control.checks.sink_folders import check_sink_folders
from millpond.control.commands.command_log import is_json, line_writer, log_epoch
from millpond.control.commands.interrupts import interrupts
from millpond.control.commands.progress import Progress
from millpond.control.commands.watchdog import Steps, Watchdog, end_process
from millpond.control.pond.pond import Pond
from millpond.control.pond.problems import LOGGER, Problem, stopped_early
from millpond.control.pond.report import QUERY
from millpond.control.stall_limits import STALLED_SECONDS
from millpond.control.wiring.output_folders import default_output
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import checked_store
from millpond.control.wiring.truth import holds_pond
from millpond.errors import ForeignPondError, MillpondError
from millpond.gc_freeze import freeze_loaded_objects
from millpond.log.locations.address import Address, Given
from millpond.model.expressions import plain_of
from millpond.plan.options.live_parameters import Constant
from millpond.reconfigure.inner_reports import stream_labels
from millpond.spark.driver.epochs import Epoch
from millpond.spark.session.session import Session, explaining, spark_session, with_json_log


class Run(NamedTuple):
    """The `text` of a pond file, the pond's address, and the options of the run.

    `stalled_after`: in seconds. `trace`: the file for the timelines of the last epochs, if any. `spark`:
    settings of Spark.
    """

    text: str
    folder: Address
    master: str
    store: str
    instances: int | None
    memory: str
    parameters: tuple[tuple[str, Constant], ...] = ()
    stalled_after: float = STALLED_SECONDS
    trace: Path | None = None
    spark: tuple[tuple[str, str], ...] = ()


_STOPS = {"spark.sql.streaming.stopTimeout": "1s"}
"""How long Ctrl-C waits for a query that runs no epoch: one that requests offsets of a broker that is down."""


def start_spark(master: str, memory: str, settings: Iterable[tuple[str, str]]) -> Session:
    """Start Spark for a command, which logs as the command does; `settings` of Spark take precedence."""
    extra = _STOPS | dict(settings)
    extra = with_json_log(extra) if is_json() else extra
    return spark_session(master, driver_memory=memory, extra=extra, mllib=False)


INCOMPLETE = 3
"""Exit status of a run that ended normally, but whose results are incomplete."""


def given_parameters(pond: Pond, folder: Given, parameters: Iterable[tuple[str, Constant]]) -> None:
    """Set the values of live parameters on a pond that is not opened yet, before a pond file that uses them is loaded.

    If the pond in `folder` has begun, its own values are taken before the given ones. So the types of the parameters,
    and with them the queries, are those that the pond has.
    """
    try:
        _, spec = read_truth(folder)
    except ForeignPondError:  # it has not begun
        known = {}
    else:
        known = {name: plain_of(value) for name, value in spec.effects.parameters.items()}
    for name, value in {**dict(parameters), **known}.items():
        if value is not None:
            pond.param(name, value)


def parameter_notes(known: Mapping[str, Constant | None], given: Iterable[tuple[str, Constant]]) -> Iterator[str]:
    """Notes on values of --param that have no effect, because the pond keeps the values in force, `known`."""
    for name, value in given:
        if name in known and known[name] != value:
            yield (
                f"The parameter {name} stays {known[name]!r}, as it was set before: --param gives the first value only."
                f" Use `millpond param set {name}=…` while the pond is served."
            )


@explaining()
def run_file(settings: Run, *, once: bool, drain: bool) -> int:
    """Run the queries of a file until Ctrl-C, or with `once` until all input is read; reports progress on stderr.

    Returns the exit status: 0, or `INCOMPLETE` if a query was quarantined, too many events are missing, or a run with
    `once` was stopped before its end.

    A step before or after the epochs that takes longer than `stalled_after` ends the process (`MP-STALLED`, status 1).

    Raises:
        MillpondError: see `Pond.load` and `Pond.run`.
    """
    steps = Steps(settings.stalled_after)
    with Watchdog(steps.hangs, lambda: end_process(steps.error())).running():
        return _run(settings, steps, once=once, drain=drain)


def _run(settings: Run, steps: Steps, *, once: bool, drain: bool) -> int:
    console = Console(stderr=True, quiet=is_json())
    write = line_writer(LOGGER, partial(console.print, highlight=False, markup=False, soft_wrap=True))

    def say(what: object) -> None:
        write(str(what))

    def committed(epoch: Epoch) -> None:
        shown[0].epoch(epoch)
        log_epoch(epoch)

    store = checked_store(settings.store)  # before Spark starts, which takes seconds
    if not holds_pond(settings.folder):
        check_sink_folders(settings.text, default_output(settings.folder))
    say(f"The pond is in {settings.folder}")
    shown: list[Progress] = []
    steps.begin("The start of Spark")
    with interrupts(say) as signals, Pond(
        start_spark(settings.master, settings.memory, settings.spark), settings.folder,
        instances=settings.instances, store=store,
        on_epoch=committed,
        stalled_after=settings.stalled_after,
    ) as pond, steps.then("The closing of the pond"), pond_log_to(say):  # fmt: skip
        given_parameters(pond, settings.folder, settings.parameters)
        steps.begin("The analysis of the pond file")
        pond.load(settings.text)
        steps.begin("The check of the input")
        for note in pond.notes():
            say(note)
        steps.begin("The opening of the pond")
        labels = stream_labels(pond.streams, pond.relations)
        shown.append(Progress(pond.plan, pond.status, console, behind=pond.behind, labels=labels))
        pond.open()
        for said in (*parameter_notes(pond.params(), settings.parameters), *unencrypted()):
            say(said)
        freeze_loaded_objects()
        steps.rest()
        try:
            with shown[0] as progress, signals.stopping(pond.stop):
                finished = pond.run(once=once, drain=drain)
        except MillpondError:
            _summarise(pond.problems(), say)
            raise
        if settings.trace is not None:
            settings.trace.write_bytes(msgspec.json.encode(pond.trace()))
            say(f"The timelines of the last epochs are in {settings.trace}: https://ui.perfetto.dev draws them.")
        problems = pond.problems(at_end=once and finished)
        if once and not finished:
            problems = [stopped_early(drain), *problems]
        failed = any(problem.failure for problem in problems)
        head = progress.epoch_n
        rows = "No new input." if head is None else f"All rows are out as of epoch {head}."
        say("The results are incomplete:" if failed else rows)
        _summarise(problems, say)
        for one in pond.status():
            if one.note and not one.name.startswith(QUERY):
                say(f"{one.name}: {one.note}")
        return INCOMPLETE if failed else 0


def _summarise(problems: Sequence[Problem], say: Callable[[object], None]) -> None:
    for problem in problems:
        if is_json():
            logging.getLogger(LOGGER).warning("%s", problem)
        else:
            say(problem)


@contextmanager
def pond_log_to(say: Callable[[object], None]) -> Iterator[None]:
    """In this context, print what a pond logs: each problem when it happens, and the progress of long steps."""
    handler = logging.NullHandler() if is_json() else _Says(say)
    log = logging.getLogger(LOGGER)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _Says(logging.Handler):
    def __init__(self, say: Callable[[object], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@explaining()
def repair_file(settings: Run) -> list[str]:
    """Rewind the sinks of a file's pond that are ahead of its log; returns a sentence for each action.

    Raises:
        MillpondError: see `Pond.load` and `Pond.repair`.
    """
    store = checked_store(settings.store)  # before Spark starts, which takes seconds
    spark = spark_session(settings.master, driver_memory=settings.memory, mllib=False)
    say = partial(Console(stderr=True).print, highlight=False, markup=False, soft_wrap=True)
    with Pond(spark, settings.folder, store=store) as pond, pond_log_to(say):
        given_parameters(pond, settings.folder, settings.parameters)
        pond.load(settings.text)
        return pond.repair() or ["No sink is ahead of the log."]
