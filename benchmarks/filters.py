"""Many filters: a hundred queries that all differ in theirs, and a thousand that differ in one constant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from engines import MakeQuery, aggregation
from pyspark.sql import DataFrame
from workload import windows

COLUMNS = ("ts", "customer", "amount", "card", "country", "kind")
"""What the mixed filters read."""


def mixed(source: Path, count: int = 100) -> list[MakeQuery]:
    """Windows of the canonical eight in turn, each query under one to three conditions drawn at random (seed 1)."""
    dice = np.random.default_rng(1)
    amounts = _amounts(source)
    queries = []
    for size, slide in (windows(8) * count)[:count]:
        limit = float(np.quantile(amounts, dice.random()))
        parts = [f"amount {dice.choice(['>', '<='])} {limit!r}D"]
        for name, values in (("country", ["gr", "de", "fr", "es"]), ("kind", ["pos", "web", "atm", "transfer"])):
            if dice.random() < 0.5:
                parts.append(f"{name} = '{dice.choice(values)}'")
        queries.append(_where(" AND ".join(parts), size, slide))
    return queries


def family(source: Path, count: int = 1000) -> list[MakeQuery]:
    """One tumbling minute, amount above each of `count` limits, evenly spread over the amounts that occur."""
    limits = np.quantile(_amounts(source), (np.arange(count) + 0.5) / count)
    return [_where(f"amount > {float(limit)!r}D", 60, 60) for limit in limits]


def _amounts(source: Path) -> Sequence[float]:
    column: Sequence[float] = pq.read_table(min(source.glob("*.parquet")), columns=["amount"])["amount"].to_numpy()
    return column


def _where(condition: str, size: int, slide: int) -> MakeQuery:
    def make(stream: DataFrame) -> DataFrame:
        return aggregation(stream.where(condition), size, slide)

    return make
