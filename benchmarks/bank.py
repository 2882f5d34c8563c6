"""Bank transactions as texts, and patterns over windows of them that need every event: shared window state's workload.

A transaction is a text of about 300 bytes (kind, date, merchant, value, card, customer, place, device), its words drawn
at random; each step of the generator has one of each of the twelve kinds, and times are even. One in twenty is sent
twice. Pattern i answers, per customer and window, which text that is not of kind i mod 12 came most often (of several
the least): a payment that was taken more than once. Windows are common to all patterns.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = (
    "pos", "web", "atm", "transfer", "debit", "refund", "salary", "fee", "interest", "exchange", "cheque", "top-up",
)  # fmt: skip
SCHEMA = "ts timestamp, customer string, kind string, event string"
SPAN_US = 600_000_000
SIZE_US, SLIDE_US = 300_000_000, 100_000_000
START_US = 1_700_000_100_000_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", "S1")


class Size(NamedTuple):
    """Events, files (one per step), customers."""

    events: int
    files: int
    customers: int


def excluded(pattern: int) -> str:
    """The kind that a pattern leaves out."""
    return KINDS[pattern % len(KINDS)]


def most_often(texts: Sequence[bytes]) -> bytes:
    """The text that occurs most often, of several the least.

    >>> most_often([b"b", b"a", b"b", b"c", b"c"])
    b'b'
    """
    counts = Counter(texts)
    most = max(counts.values())
    return min(text for text, count in counts.items() if count == most)


def transactions(folder: Path, size: Size) -> Path:
    """Parquet files in order of time, drawn with seed 1."""
    dice = np.random.default_rng(1)
    folder.mkdir(parents=True)
    per = size.events // size.files
    for number in range(size.files):
        position = number * per + np.arange(per)
        kinds = np.array(KINDS)[position % len(KINDS)]
        customers = dice.integers(0, size.customers, per)
        words = [_words(dice, per, length) for length in (24, 24, 60, 110)]
        cents = dice.integers(100, 1_000_000, per)
        texts = [
            f"{kind},2023-11-14,{merchant},{cent / 100:.2f},card-{name},customer-{customer:06},{place},{device}"
            for kind, cent, customer, merchant, name, place, device in zip(
                kinds.tolist(), cents.tolist(), customers.tolist(), *words, strict=True
            )
        ]
        for again in range(len(KINDS), per, 20):
            before = again - len(KINDS)
            texts[again], customers[again] = texts[before], customers[before]
        table = {
            "ts": pa.array(START_US + position * SPAN_US // size.events, pa.timestamp("us", "UTC")),
            "customer": pa.array([f"customer-{customer:06}" for customer in customers.tolist()]),
            "kind": pa.array(kinds),
            "event": pa.array(texts),
        }
        part = folder / f"part-{number:04}.parquet"
        pq.write_table(pa.table(table), part)
        os.utime(part, (START_US // 1_000_000 + number,) * 2)  # Spark takes files in the order of their times
    return folder


def _words(dice: np.random.Generator, count: int, length: int) -> list[str]:
    drawn: list[bytes] = _LETTERS[dice.integers(0, 26, (count, length))].view(f"S{length}").ravel().tolist()
    return [word.decode() for word in drawn]
