"""Serves a pond with many queries for benchmarks, in a process of its own, while files of events arrive."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kit.servers.servers import until
from millpond.errors import MillpondError
from millpond.service.api.client import Client

MANY, FEW = 1000, 50
SETTLE_SECONDS = 6.0
_TICK = os.sysconf("SC_CLK_TCK")


class ServedQueries:
    """A served pond with `count` queries; a file of `events` events arrives every second.

    `backlog`: the number of files that exist when the service starts. Then no further file arrives, and an epoch reads
    one file.
    """

    def __init__(self, folder: Path, count: int, events: int = 1_000, backlog: int = 0) -> None:
        self._folder, self._count, self._events, self._backlog = folder, count, events, backlog
        self.pond = folder / "many.pond"
        self._ended = threading.Event()
        self._feeding = threading.Thread(target=self._feed)

    def __enter__(self) -> ServedQueries:
        (self._folder / "in").mkdir()
        for number in range(max(1, self._backlog)):
            self._write(number)
        (self._folder / "many.sql").write_text("\n".join(self._statements()))
        words = [sys.executable, "-m", "millpond", "serve", "many.sql", "--memory", "2g"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, cwd=self._folder, stdout=log, stderr=log)
        try:
            until(self._has_epochs, f"the pond in {self._folder} has an epoch", 600)
        except BaseException:
            self._process.kill()
            raise
        if not self._backlog:
            self._feeding.start()
        time.sleep(SETTLE_SECONDS)
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._process.terminate()
        self._process.wait(60)

    def client(self) -> Client:
        """A client of the service."""
        return Client.of(self.pond)

    def cpu_s(self) -> float:
        """The CPU seconds that the service's Python process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def _statements(self) -> Iterator[str]:
        each = ", maxFilesPerTrigger '1'" if self._backlog else ""
        yield f"CREATE TABLE s (ts TIMESTAMP, k BIGINT, v BIGINT) USING parquet OPTIONS (path 'in'{each});"
        for number in range(self._count):
            yield (
                f"CREATE STREAMING TABLE q{number:04} USING noop AS SELECT k, "
                "window(ts, '60 seconds', '10 seconds') AS w, "
                "count(*) AS n, sum(v) AS t FROM STREAM s WATERMARK ts DELAY OF INTERVAL 0 SECONDS "
                f"WHERE v > {number} GROUP BY ALL;"
            )

    def _has_epochs(self) -> bool:
        try:
            with self.client() as client:
                return client.status().epoch >= 0
        except MillpondError:
            return False

    def _feed(self) -> None:
        number = 1
        while not self._ended.wait(1.0):
            self._write(number)
            number += 1

    def _write(self, number: int) -> None:
        dice, folder = np.random.default_rng(number), self._folder / "in"
        times = np.sort(dice.integers(0, 1_000_000, self._events)) + (1_700_000_000 + number) * 1_000_000
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": dice.integers(0, 50, self._events)}
        pq.write_table(pa.table(columns | {"v": dice.integers(0, 1000, self._events)}), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number:05}.parquet")
