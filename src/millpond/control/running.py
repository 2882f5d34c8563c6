"""Runs and repairs the pond of a file, for `millpond run` and `millpond repair`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from millpond.control.interrupts import interrupts
from millpond.control.pond import Pond
from millpond.control.progress import Progress
from millpond.garbage import pass_by_what_is_loaded
from millpond.plan.parameters import Constant
from millpond.runtime.connections import unencrypted
from millpond.spark.session import explaining, spark_session


class Run(NamedTuple):
    """The `text` of a pond file, the pond's folder, and how it runs."""

    text: str
    folder: Path
    master: str
    store: str
    instances: int | None
    memory: str
    parameters: tuple[tuple[str, Constant], ...] = ()


def given_parameters(pond: Pond, parameters: Iterable[tuple[str, Constant]]) -> None:
    """Give live parameters of a pond that is not opened yet their first values."""
    for name, value in parameters:
        pond.param(name, value)


def parameter_notes(known: Mapping[str, Constant | None], given: Iterable[tuple[str, Constant]]) -> Iterator[str]:
    """What --param could not do: an open pond goes on with the values in force, `known`."""
    for name, value in given:
        if name in known and known[name] != value:
            yield (
                f"The parameter {name} stays {known[name]!r}, as it was set before: --param gives the first value only."
                f" Use `millpond param set {name}=…` while the pond is served."
            )


@explaining()
def run_file(asked: Run, *, once: bool, drain: bool) -> None:
    """Run the queries of a file until Ctrl-C, or with `once` until all input is taken; what it does goes to stderr.

    Raises:
        MillpondError: see `Pond.load` and `Pond.run`.
    """
    console = Console(stderr=True)
    console.print(f"The pond is in {asked.folder}", highlight=False, markup=False, soft_wrap=True)
    told: list[Progress] = []
    with interrupts(lambda what: console.print(what, soft_wrap=True)) as signals, Pond(
        spark_session(asked.master, driver_memory=asked.memory), asked.folder, instances=asked.instances,
        store=asked.store, on_epoch=lambda epoch: told[0].epoch(epoch),
    ) as pond:  # fmt: skip
        given_parameters(pond, asked.parameters)
        pond.load(asked.text)
        for note in pond.notes():
            console.print(str(note), highlight=False, markup=False, soft_wrap=True)
        told.append(Progress(pond.plan, pond.status, console))
        pond.open()
        for said in (*parameter_notes(pond.params(), asked.parameters), *unencrypted()):
            console.print(said, highlight=False, markup=False, soft_wrap=True)
        pass_by_what_is_loaded()
        with told[0] as progress, signals.stopping(pond.stop):
            pond.run(once=once, drain=drain)
        head = progress.epoch_n
        done = "No new input." if head is None else f"All rows are out as of epoch {head}."
        console.print(done, highlight=False)
        for one in pond.status():
            if one.note:
                console.print(f"{one.name}: {one.note}", highlight=False, markup=False, soft_wrap=True)


@explaining()
def repair_file(asked: Run) -> None:
    """Set Spark's checkpoint of a file's pond to its log.

    Raises:
        MillpondError: see `Pond.load` and `Pond.repair`.
    """
    with Pond(spark_session(asked.master, driver_memory=asked.memory), asked.folder, store=asked.store) as pond:
        pond.load(asked.text)
        pond.repair()
