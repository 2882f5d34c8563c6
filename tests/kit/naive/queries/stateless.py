"""The naive twin of stateless queries: one plain loop over the events, and random queries to compare with it."""

from __future__ import annotations

from collections.abc import Sequence

from kit.inputs.cases import EVERYTHING, STREAM, Dice, Menu, condition, number
from kit.naive.expressions import Raised, Row, Value, evaluate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Call, Column, Expression, literal
from millpond.model.query import Named
from millpond.model.selection import Selection

FATES = ("applied", "late", "dead", "filtered")


def rows(selection: Selection, epochs: Sequence[Sequence[Row]]) -> list[list[dict[str, Value]]]:
    """The rows that are emitted in each epoch, in the order of their events."""
    found: list[list[dict[str, Value]]] = []
    for batch in epochs:
        found.append([row for event in batch if (row := _answered(selection, event)[1]) is not None])
    return found


def counts(selection: Selection, epochs: Sequence[Sequence[Row]]) -> dict[str, int]:
    """The number of events that were read, and of each fate; none is late."""
    result = dict.fromkeys(("read", *FATES), 0)
    for batch in epochs:
        for event in batch:
            result["read"] += 1
            result[_answered(selection, event)[0]] += 1
    return result


def _answered(selection: Selection, event: Row) -> tuple[str, dict[str, Value] | None]:
    try:
        if selection.where is not None and evaluate(selection.where, event) is not True:
            return "filtered", None
        return "applied", {item.name: evaluate(item.expression, event) for item in selection.output}
    except Raised:
        return "dead", None


def selections(dice: Dice, size: int, menu: Menu = EVERYTHING) -> list[Selection]:
    """`size` stateless queries over `STREAM`, often with equal filters and outputs."""
    made: list[Selection] = []
    for i in range(size):
        output = tuple(Named(f"c{n}", _output(dice, menu)) for n in range(dice.randint(1, 4)))
        where = condition(dice, menu) if dice.randint(0, 3) else None
        if made and not dice.randint(0, 2):
            where = dice.choice(made).where
        if made and not dice.randint(0, 2):
            output = dice.choice(made).output
        made.append(Selection(f"s{i}", STREAM.name, output, where, Sink("memory")))
    return made


def _output(dice: Dice, menu: Menu) -> Expression:
    columns = {field.name: Column(field.name, field.type) for field in STREAM.columns}
    shape = dice.randint(0, 7)
    if shape < 3:
        return columns[dice.choice(sorted(columns))]
    if shape == 3:
        return literal(dice.choice((7, None)), "bigint")
    if shape == 4:
        return condition(dice, menu, 1)
    if shape == 5:
        return Call(dice.choice(("upper", "lower")), (columns["k"],), "string")
    return number(dice, menu, columns[dice.choice(("g", "f", "v", "amount", "p", "d"))])
