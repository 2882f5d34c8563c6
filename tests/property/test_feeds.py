"""Live parameters that are fed by a query's rows: all rows are those of the naive twin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.property.test_changes import MEMORY, SLICED, Changing, change_at_random

from kit.inputs.cases import SECOND, STREAM, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import dealt
from millpond.errors import ChangeRefused
from millpond.model.expressions import Call, Column, Parameter, call, literal
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.options.live_parameters import constant_of
from millpond.plan.upstream.parameter_feeds import merged
from millpond.reconfigure import validate
from millpond.reconfigure.changes import SetParameter
from millpond.runtime.inputs.parameter_feeds import fed_values

K, V = Column("k", "string"), Column("v", "int")
COUNT = aggregate_of("count", None)


def spoken(name: str, window: Sliding) -> Query:
    """The keys of a window that came twice, and how often: what feeds."""
    named = {"k": Column("key:0", "string"), "n": Column("agg:0", "bigint")}
    outputs = (Named("w", Column("window", WINDOW)), *(Named(*item) for item in named.items()))
    having = call("ge", (Column("agg:0", "bigint"), literal(2, "bigint")), "boolean")
    return Query(name, STREAM.name, "ts", SECOND, window, (K,), (COUNT,), outputs, having=having, sink=MEMORY)


def filtered(name: str, window: Sliding) -> Query:
    """Events whose key is fed, and whose value is at least what is fed."""
    named = Call("in", (K, Parameter("names", "array<string>")), "boolean")
    large = call("ge", (Call("cast", (V,), "bigint"), Parameter("least", "bigint")), "boolean")
    outputs = Named("w", Column("window.end", "timestamp")), Named("n", Column("agg:0", "bigint"))
    having = call("ge", (Column("agg:0", "bigint"), Parameter("most", "bigint")), "boolean")
    where = named if name.endswith("0") else call("or", (named, large), "boolean")
    return Query(
        name, STREAM.name, "ts", SECOND, window, (), (COUNT,), outputs, where=where, having=having, sink=MEMORY
    )


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_parameters_are_fed_as_the_naive_twin_says(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    case = random_case(200 + seed, 160, 1, epochs=14, menu=SLICED)
    tumbling = Sliding(*[dice.choice((5, 10)) * SECOND] * 2)
    queries = [spoken("top", tumbling), *case.queries]
    run, deal = Changing(tmp_path, queries, 1 + seed % 3), dealt(seed)
    run.change(SetParameter("names", constant_of("names", ["a", "it's"])))
    run.change(SetParameter("most", literal(1, "bigint")))
    for name in ("f0", "f1"):
        run.change(validate.add(run.between(), filtered(name, Sliding(10 * SECOND, 5 * SECOND))))
    feeds = [("names", "k"), ("least", "n"), ("most", "n")]
    given = False
    for batch in case.epochs:
        if feeds and dice.random() < 0.6:
            name, column = feeds.pop(0)
            run.change(validate.feed(run.between(), name, "top", column))
        elif dice.random() < 0.1:
            value: int | Sequence[str] = ["zz", "b"] if dice.random() < 0.5 else 2
            run.change(validate.param(run.between(), "least" if value == 2 else "names", value))
        if dice.random() < 0.3:
            change_at_random(dice, run, SLICED)
        if dice.random() < 0.2:
            run.restart()
        elif dice.random() < 0.2:
            run.move(dice)
        run.epoch(deal(batch))
        given |= bool(fed_values(run.pond.setting.feeds, run.pond.manifest))
    assert given
    run.check(case.epochs, seed)


def test_a_feed_is_refused_that_would_give_no_value_of_the_type(tmp_path: Path) -> None:
    running = filtered("f0", Sliding(10 * SECOND, 10 * SECOND))
    outputs = (Named("n", Column("agg:0", "bigint")),)
    blind = msgspec.structs.replace(running, name="blind", output=outputs, where=None, having=None)
    run = Changing(tmp_path, [spoken("top", Sliding(10 * SECOND, 10 * SECOND)), blind], 1)
    pond = run.between()
    for name, query, column, why in (
        ("limit", "top", "n", "limit has no value"), ("least", "no", "n", "no query 'no'"),
        ("least", "top", "k", "top has type string in the column k, and the parameter least is bigint"),
        ("least", "blind", "n", "do not show which of them are the newest"),
    ):  # fmt: skip
        with pytest.raises(ChangeRefused, match=why):
            validate.feed(pond, name, query, column)
    run.change(validate.feed(pond, "least", "top", "n"))
    with pytest.raises(ChangeRefused, match="rows of top feed :least"):
        validate.drop(run.between(), "top")
    run.change(SetParameter("least", literal(1, "bigint")))
    validate.drop(run.between(), "top")


def test_shares_of_one_window_are_put_together() -> None:
    assert merged(None, (1, ["a"])) == (1, ["a"])
    assert merged((1, ["a"]), (1, ["b"])) == (1, ["a", "b"])
    assert merged((1, ["a"]), (2, ["b"])) == merged((2, ["b"]), (1, ["a"])) == (2, ["b"])
    assert merged((1, ["a"]), (1, None)) == (1, None)
