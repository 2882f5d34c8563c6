"""A pond whose latest rows are kept in LMDB, and its PostgreSQL endpoint in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kit.simulator.changing_pond import ChangingPond
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.view.view import ViewFollower
from millpond.log.manifest import load
from millpond.model.expressions import Column
from millpond.model.query import Aggregate, Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.service.postgres.endpoint import Endpoint
from millpond.service.server.serve_process import Web
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.ports.files import Files

SECOND = 1_000_000
STREAM = Stream("clicks", (Field("ts", "timestamp"), Field("page", "string"), Field("v", "bigint")))
TOKEN = "a-token-of-some-length"


def counted(name: str) -> Query:
    keys = (Column("page", "string"),)
    output = (
        Named("page", Column("key:0", "string")), Named("w", Column("window", WINDOW)),
        Named("n", Column("agg:0", "bigint")),
    )  # fmt: skip
    count = Aggregate("count", None, None, "bigint")
    window = Sliding(10 * SECOND, 10 * SECOND)
    return Query(name, "clicks", "ts", 0, window, keys, (count,), output, serve=True, text=f"SELECT -- {name}")


class ServedPond:
    """A pond without Spark with some equal queries, and how clients connect to its endpoint."""

    def __init__(self, folder: Path, names: Sequence[str] = ("visits", "again")) -> None:
        (folder / "pond.id").write_text("p")
        (folder / "view").mkdir()
        self.folder, self.store = folder, LmdbStore(folder / "view" / "rows.lmdb", owner="p")
        self.pond = ChangingPond(folder, [STREAM], [*map(counted, names)])
        head = lambda: load(self.pond.log, self.pond.manifests)  # noqa: E731
        served = dict.fromkeys(names, 10 * SECOND)
        view = ViewFollower(
            self.store, RowsReader(section_reader(Files(folder))), 64, lambda: served, head, self.pond.log.read
        )  # fmt: skip
        self.pond.follow(view)
        self.seconds, self.port, self.token = 0, 0, TOKEN

    def epoch(self, *pages: str) -> None:
        """An event of each page; the windows of the previous call are closed."""
        times = [self.seconds * SECOND] * len(pages)
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "page": [*pages], "v": [1] * len(pages)}
        self.pond.epoch({"clicks": [pa.table(columns)]})
        self.seconds += 10

    def connect(self, **how: Any) -> psycopg.Connection[Any]:
        """A connection of psycopg; each statement is a transaction of its own unless `autocommit` is false."""
        words = {"host": "127.0.0.1", "port": self.port, "user": "ann", "password": self.token, "dbname": "pond"}
        return psycopg.connect(**{**words, "autocommit": True, **how})


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPond]:
    """One pond with its endpoint for all tests; they may add epochs, and rely on none."""
    made = ServedPond(tmp_path_factory.mktemp("served"))
    endpoint = Endpoint(made.folder, "lmdb", Web())
    made.port = endpoint.port
    made.epoch("/home", "/home", "it's")
    made.epoch("/end")
    with endpoint.running(TOKEN):
        yield made
    made.store.close()
