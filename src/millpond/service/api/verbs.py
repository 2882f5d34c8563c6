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

    A change returns when it is in the log; with `dry_run` it is only priced. `who` is the requester.
    NotServingError: this process does not lead.
    """

    def health(self) -> Health:
        """Whether this process leads, stands by, starts or stops."""

    def status(self) -> Status:
        """The state of the pond."""

    def streams(self) -> list[StreamShown]:
        """The streams in force."""

    def queries(self) -> list[QueryShown]:
        """The queries in force."""

    def parameters(self) -> list[Parameter]:
        """The live parameters in force."""

    def functions(self, reload: bool, who: str) -> list[FunctionShown]:
        """The functions that queries may call, or do call; `reload`: load those of the operator's file first."""

    def history(self, limit: int) -> list[Event]:
        """The newest changes, the newest first."""

    def lookup(self, name: str, key: Sequence[str]) -> Found:
        """The latest row of a served query for a key, whose values are given as text."""

    def placement(self) -> Placed:
        """Where the buckets of served rows are."""

    def diff(self, name: str) -> Differs:
        """How a query and its shadow differ."""

    def add(self, asked: Asked, who: str, dry_run: bool) -> Changed | Priced:
        """Add a query."""

    def version(self, kind: str, name: str, version: Version, who: str, dry_run: bool) -> Changed | Priced:
        """Add a new version of a query: as a replacement (`alter`) or beside it (`shadow`)."""

    def move(self, kind: str, name: str, who: str, dry_run: bool) -> Changed | Priced:
        """Make a change that needs no query text: one of `MOVES`."""

    def scale(self, instances: int, who: str, dry_run: bool) -> Changed | Priced:
        """Change the number of instances."""

    def relocate(self, asked: Relocation, who: str, dry_run: bool) -> Changed | Priced:
        """Move the served rows of some buckets to another store; returns when they are there."""

    def set(self, name: str, value: Value, who: str) -> Changed:
        """Set the value of a live parameter."""

    def feed(self, name: str, feeds: Feeds, who: str) -> Changed:
        """Let a live parameter take its values from the rows of a query."""


MOVES = ("drop", "pause", "resume", "promote", "rollback", "discard")
"""The changes that need no query text."""
