"""Random queries with row patterns, and events for them; no two events of a case have the same time."""

from __future__ import annotations

import random
from typing import Any

from kit.inputs.cases import SECOND, Case
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, conjunction, literal
from millpond.model.patterns.grammar import parse, variables_of
from millpond.model.patterns.variables import FIRST, PREVIOUS, Variable, matched
from millpond.model.query import Named, Query
from millpond.model.windows import Pattern

K, V, AMOUNT, FLAG = Column("k", "string"), Column("v", "int"), Column("amount", "double"), Column("flag", "boolean")
RISES = call("gt", (AMOUNT, Column(f"{PREVIOUS}0", "double")), "boolean")
EXCEEDS = call("gt", (AMOUNT, Column(f"{FIRST}0", "double")), "boolean")
TEXTS = (
    "A B", "A B+ C", "A B* C", "A+? B", "(A | B) C", "A (B | C){1,3}", "A B{2,}", "B B", "A C? B??", "C+ A", "(A B)+",
)  # fmt: skip


def pattern_case(seed: int, events: int, queries: int, epochs: int) -> Case:
    """Queries of one group, and events that are up to some seconds out of order, of which some are late."""
    dice = random.Random(seed)
    return Case(random_events(dice, events, epochs), [random_query(dice, f"q{i}") for i in range(queries)])


def random_events(dice: random.Random, count: int, epochs: int) -> list[list[dict[str, Any]]]:
    """Events of three keys, cut into epochs."""
    events = [
        {"k": dice.choice("aaabbc"), "v": dice.randrange(5), "amount": float(dice.randrange(8)), "ts": time * SECOND,
         "flag": dice.choice((True, False, None))}
        for time in sorted(range(count), key=lambda time: time + 4 * dice.random())
    ]  # fmt: skip
    cuts = sorted(dice.randrange(count + 1) for _ in range(epochs - 1))
    return [events[low:high] for low, high in zip([0, *cuts], [*cuts, count], strict=True)]


def random_query(dice: random.Random, name: str) -> Query:
    """A query with one of `TEXTS`, some of whose conditions read the previous event."""
    text = dice.choice(TEXTS)
    conditions = {"A": FLAG, "B": more_than(V, dice.choice((1, 3))), "C": more_than(AMOUNT, 4.0)}
    if dice.random() < 0.5:
        conditions[dice.choice("ABC")] = RISES
    if dice.random() < 0.4:
        conditions[dice.choice("BC")] = EXCEEDS
    if dice.random() < 0.3:
        del conditions[dice.choice("ABC")]  # it then matches every event
    variables = tuple(Variable(one, condition) for one, condition in conditions.items() if one in text)
    previous = (AMOUNT,) if any(one.condition == RISES for one in variables) else ()
    first = (AMOUNT,) if any(one.condition == EXCEEDS for one in variables) else ()
    window = Pattern(text, dice.choice((3, 10, 40)) * SECOND, variables, dice.random() < 0.4, previous, first)
    where = more_than(AMOUNT, 1.0) if dice.random() < 0.3 else None
    return pattern_query(name, window, dice.choice((0, 5)) * SECOND, where)


def more_than(column: Column, number: float) -> Expression:
    """Whether a column is more than a number."""
    return call("gt", (column, literal(int(number) if column.type == "int" else number, column.type)), "boolean")


def pattern_query(name: str, window: Pattern, delay_us: int = 0, where: Expression | None = None) -> Query:
    """The number of events of each match, some values of all of them, and some of those of its first variable."""
    first = matched(variables_of(parse(window.text))[0])
    aggregates = (
        Aggregate("count", None, None, "bigint"), Aggregate("count", None, first, "bigint"),
        Aggregate("sum", AMOUNT, conjunction([first, more_than(V, 1)]), "double"),
        Aggregate("first", AMOUNT, None, "double"), Aggregate("last", AMOUNT, first, "double"),
        Aggregate("max", V, first, "int"), Aggregate("avg", V, None, "double"), Aggregate("max", K, None, "string"),
    )  # fmt: skip
    output = (
        Named("k", Column("key:0", "string")),
        Named("start", Column("window.start", "timestamp")), Named("end", Column("window.end", "timestamp")),
        *(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates)),
    )  # fmt: skip
    return Query(name, "events", "ts", delay_us, window, (K,), aggregates, output, where)
