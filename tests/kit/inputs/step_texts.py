"""Random texts that keep state several times, over the stream `tx` with the columns `v INT, k STRING, t TIMESTAMP`."""

from __future__ import annotations

import random
from typing import NamedTuple

_SIZES = (2, 3, 5, 6, 10, 15)


class Step(NamedTuple):
    """A SELECT with the columns w (a window), k, n and v, and the size of its windows if they are tumbling."""

    text: str
    tumbling: int | None


def step_text(dice: random.Random, read: str, depth: int) -> str:
    """A text of at most `depth` levels of steps; `read` is the stream with its watermark."""
    return _step(dice, read, depth).text


def _step(dice: random.Random, read: str, depth: int) -> Step:
    if depth <= 1:
        return _leaf(dice, read, dice.choice(_SIZES))
    return dice.choice([_coarser, _coarser, _by_window, _joined, _united])(dice, read, depth)


def _leaf(dice: random.Random, read: str, size: int, *, tumbling: bool = False) -> Step:
    hops = not tumbling and dice.random() < 0.25
    slide = f", '{max(size // 2, 1)} seconds'" if hops else ""
    window = f"window(t, '{size} seconds'{slide})"
    where = f" WHERE v > {dice.randint(0, 3)}" if dice.random() < 0.5 else ""
    having = " HAVING count(*) > 1" if dice.random() < 0.3 else ""
    if dice.random() < 0.25:
        read = _first(dice, read)
    return Step(
        f"SELECT {window} AS w, k, count(*) AS n, CAST({_aggregate(dice)} AS BIGINT) AS v FROM {read}{where} "
        f"GROUP BY {window}, k{having}", None if hops else size,
    )  # fmt: skip


def _first(dice: random.Random, read: str) -> str:
    """The first events of each key, or one of them; events of equal time are equal."""
    number = dice.choice(["= 1", "<= 2", "= 2"])
    ranked = f"SELECT *, row_number() OVER (PARTITION BY k, v ORDER BY t) AS r FROM {read}"
    return f"(SELECT k, v, t FROM ({ranked}) WHERE r {number})"


def _aggregate(dice: random.Random) -> str:
    plain = ["sum(v)", "max(v)", "min(v)", "count(v)", "count(DISTINCT v)"]
    by_spark = ["sum(pmod(v, 5))", "sum(6 DIV (v - 2)) FILTER (WHERE v > 2)", "max(levenshtein(k, 'b') + v)"]
    return dice.choice(plain if dice.random() < 0.7 else by_spark)


def _coarser(dice: random.Random, read: str, depth: int) -> Step:
    """Longer or shorter windows over the windows of the step below, of all keys or of each."""
    below, size = _step(dice, read, depth - 1), dice.choice(_SIZES)
    key, where = dice.choice(["k", "'all'"]), dice.choice(["", "", " WHERE n > 1"])
    window = f"window(w, '{size} seconds')"
    return Step(
        f"SELECT {window} AS w, {key} AS k, sum(n) AS n, CAST({_aggregate(dice)} AS BIGINT) AS v "
        f"FROM ({below.text}){where} GROUP BY {window}{', k' if key == 'k' else ''}", size,
    )  # fmt: skip


def _by_window(dice: random.Random, read: str, depth: int) -> Step:
    """The windows of the step below, without its keys."""
    below = _step(dice, read, depth - 1)
    if below.tumbling is None:
        return _coarser(dice, read, depth)
    return Step(
        f"SELECT w, 'any' AS k, count(*) AS n, CAST({_aggregate(dice)} AS BIGINT) AS v FROM ({below.text}) GROUP BY w",
        below.tumbling,
    )


def _joined(dice: random.Random, read: str, depth: int) -> Step:
    """The rows of a step and of an aggregation that have the same window and key."""
    left = _step(dice, read, depth - 1)
    if left.tumbling is None:
        return _coarser(dice, read, depth)
    right, how = _leaf(dice, read, left.tumbling, tumbling=True), dice.choice(["", "LEFT "])
    return Step(
        f"SELECT a.w AS w, a.k AS k, a.n + coalesce(b.n, 0L) AS n, b.v AS v FROM ({left.text}) AS a "
        f"{how}JOIN ({right.text}) AS b ON a.w = b.w AND a.k = b.k", left.tumbling,
    )  # fmt: skip


def _united(dice: random.Random, read: str, depth: int) -> Step:
    """Windows over the rows of two steps."""
    one, other = _step(dice, read, depth - 1), _leaf(dice, read, dice.choice(_SIZES))
    size = dice.choice(_SIZES)
    return Step(
        f"SELECT window(w, '{size} seconds') AS w, k, sum(n) AS n, CAST({_aggregate(dice)} AS BIGINT) AS v "
        f"FROM ({one.text} UNION ALL {other.text}) GROUP BY window(w, '{size} seconds'), k", size,
    )  # fmt: skip
