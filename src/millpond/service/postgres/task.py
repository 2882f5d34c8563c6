"""What `endpoint.py` passes to the process of the PostgreSQL endpoint; it needs no DuckDB, as `program.py` does."""

from __future__ import annotations

import msgspec


class Task(msgspec.Struct, frozen=True):
    """The parameters of the process, as JSON in the first line of its standard input.

    `listener`: the number of the open socket. `loopback`: whether only this host reaches it.
    `json_log`: whether it logs as JSON.
    """

    folder: str
    store: str
    token: str
    listener: int
    loopback: bool
    certificate: str | None = None
    key: str | None = None
    json_log: bool = False
