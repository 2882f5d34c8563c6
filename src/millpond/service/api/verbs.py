"""The interface that the HTTP service expects of a pond: one method per verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millpond.service.api.messages import (
    Asked,
    Changed,
    Differs,
    Event,
    Feeds,
    Found,
    FunctionShown,
    Health,
    Parameter,
    Placed,
    Priced,
    QueryShown,
    Relocation,
    Status,
    StreamShown,
    Value,
    Version,
)


class Verbs(Protocol):
    """Every method may be called from any thread, and raises MillpondError.

    A change returns when it is in the log; with `dry_run` it is only priced. `who` is whoever asks.
    NotServingError: this process does not lead.
    """

    def health(self) -> Health:
        """What this process is."""

    def status(self) -> Status:
        """How the pond fares."""

    def streams(self) -> list[StreamShown]:
        """The streams in force."""

    def queries(self) -> list[QueryShown]:
        """The queries in force."""

    def parameters(self) -> list[Parameter]:
        """The live parameters in force."""

    def functions(self, reload: bool, who: str) -> list[FunctionShown]:
        """The functions that queries may call or do; with `reload`, after those of the operator's file were loaded."""

    def history(self, limit: int) -> list[Event]:
        """The newest changes, the newest first."""

    def lookup(self, name: str, key: Sequence[str]) -> Found:
        """The latest row of a served query for a key, whose values are given as text."""

    def placement(self) -> Placed:
        """Where the buckets of served rows are."""

    def diff(self, name: str) -> Differs:
        """How a query and its shadow differ."""

    def add(self, asked: Asked, who: str, dry_run: bool) -> Changed | Priced:
        """A query more."""

    def version(self, kind: str, name: str, version: Version, who: str, dry_run: bool) -> Changed | Priced:
        """Another version of a query: in its place (`alter`) or beside it (`shadow`)."""

    def move(self, kind: str, name: str, who: str, dry_run: bool) -> Changed | Priced:
        """A change that needs no query: one of `MOVES`."""

    def scale(self, instances: int, who: str, dry_run: bool) -> Changed | Priced:
        """Another number of instances."""

    def relocate(self, asked: Relocation, who: str, dry_run: bool) -> Changed | Priced:
        """Another store for the served rows of some buckets; returns when they are there."""

    def set(self, name: str, value: Value, who: str) -> Changed:
        """Another value of a live parameter."""

    def feed(self, name: str, feeds: Feeds, who: str) -> Changed:
        """Let a live parameter take its values from rows."""


MOVES = ("drop", "pause", "resume", "promote", "rollback", "discard")
"""Changes that need no query."""
