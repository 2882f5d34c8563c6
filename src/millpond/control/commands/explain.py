"""`millpond explain`: reports how queries share windows and measures, and what each costs; runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from millpond.control.diagnose.cost_report import Measured, measure, measured_text, price_of_state
from millpond.control.pond.pond import Pond
from millpond.control.wiring.bucket_map import placement_text, read_placement
from millpond.log.locations.address import Given
from millpond.model.expressions import plain_of
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.plan.explain.plan_text import explain
from millpond.plan.groups.plan import Plan
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.change_price import price_by_step
from millpond.reconfigure.inner_reports import labels, relabelled
from millpond.reconfigure.lifecycle import current
from millpond.spark.session.session import spark_session


class Explained(NamedTuple):
    """The parts of a report, each of complete lines, and notes about the report."""

    parts: tuple[str, ...]
    notes: tuple[str, ...] = ()


def explain_file(text: str, add: str | None, more: str | None, master: str, memory: str) -> Explained:
    """Explain the queries of a file, and the price of more queries: `add` (a SELECT) or those of `more` (a file).

    Raises:
        QueryError: a query is wrong.
    """
    pond = Pond(spark_session(master, driver_memory=memory, mllib=False))
    pond.load(text)
    plan = pond.plan
    names = labels(plan.all_queries, pond.streams, pond.relations)
    return Explained((relabelled(explain(plan, pond.streams), names), *_prices(pond, plan, add, more, None)))


def explain_pond(
    folder: Given, text: str | None, store: str | None, add: str | None, more: str | None, master: str, memory: str
) -> Explained:
    """Explain the current queries of the pond in `folder`, what it measured, and with `store` where its buckets are.

    The `text` of a file declares streams for prices; if its queries differ from those of the pond, there is a note.

    Raises:
        ForeignPondError: the folder contains no pond. CorruptError: the pond cannot be read. QueryError: a query is
            wrong. StoreError: the store cannot be read.
    """
    measured = measure(folder)
    plan = plan_of(measured.spec)
    names = labels(plan.all_queries, measured.spec.streams, measured.spec.relations)
    parts = [relabelled(part, names) for part in (explain(plan, measured.spec.streams), measured_text(measured))]
    if store is not None:
        parts.append(placement_text(read_placement(folder, store)))
    if text is None:
        return Explained((*parts,))
    pond = Pond(spark_session(master, driver_memory=memory, mllib=False), folder)
    for name, value in measured.spec.effects.parameters.items():  # the texts of the file may use the parameters
        if (plain := plain_of(value)) is not None:
            pond.param(name, plain)
    pond.load(text)
    notes = _differs(measured.spec, pond.queries)  # computed before the priced queries are added to the pond
    return Explained((*parts, *_prices(pond, plan, add, more, measured)), notes)


def _prices(
    pond: Pond, plan: Plan, add: str | None, more: str | None, measured: Measured | None
) -> Iterator[str]:  # fmt: skip
    if add is None:
        return
    for query in pond.load(more) if more is not None else (pond.add("added", add),):
        yield price_by_step(plan, query, pond.streams, pond.relations, partial(price_of_state, measured=measured))


def _differs(spec: PondSpec, queries: tuple[AnyQuery, ...]) -> tuple[str, ...]:
    """A note that the queries of a file differ from those of the pond, if they do."""
    known, given = ({query.name: replace(query, text="") for query in some} for some in (current(spec), queries))
    other = sorted(name for name in {*known, *given} if known.get(name) != given.get(name))
    if not other:
        return ()
    return (f"The report describes the queries of the pond, from which the file differs in {', '.join(other)}.",)
