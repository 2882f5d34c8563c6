"""Refreshes the lists of files of tables that streams join while the pond runs.

Spark lists the files of a table when its relation is created, and plans each batch from that list. The list is
replaced between two epochs, the only moment when no batch is being planned. So an epoch sees one list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import SparkSession

from millpond.clock import lap_us
from millpond.errors import QueryTypeError, SourceError
from millpond.spark.catalyst.private_names import JavaObject, items, pairs
from millpond.spark.sources.batch_tables import file_relations
from millpond.spark.sources.count_malformed_rows import MalformedRows, MalformedTables

_PATTERN = frozenset("*?[]{}")


class Listing(Protocol):
    """The list of files of one relation."""

    def missing(self) -> str | None:
        """The first of its folders or files that no longer exists; None if all exist."""

    def renew(self) -> None:
        """List the files again."""


class Table(NamedTuple):
    """A table that is refreshed every `every_us`; `listings` are the lists of files of its relations."""

    name: str
    every_us: int
    listings: Sequence[Listing]


class RefreshedTables:
    """Refreshes the lists of files of the tables of one run, also when it begins; `clock` is in microseconds.

    `look` counts malformed rows; it is called when the run begins, and whenever a table was listed.
    """

    def __init__(
        self, tables: Iterable[Table], look: Callable[[], None] = lambda: None, clock: Callable[[], int] = lap_us
    ) -> None:
        self._tables = tuple(tables)
        self._look, self._clock = look, clock
        self._listed: dict[int, int] = {}
        self._began = False

    def renew(self) -> None:
        """Refresh the tables that are due; to be called between two epochs.

        Raises:
            SourceError: a table no longer exists; Spark would treat it as a table without rows.
        """
        new = not self._began
        self._began = True
        for place, table in enumerate(self._tables):
            now = self._clock()
            if now - self._listed.get(place, now - table.every_us) >= table.every_us:
                for listing in table.listings:
                    _renew(table.name, listing)
                self._listed[place] = now
                new = True
        if new:
            self._look()


def _renew(name: str, listing: Listing) -> None:
    missing = listing.missing()
    if missing is not None:
        raise SourceError(
            f"The table {name} no longer exists: there is no {missing}.",
            "Restore it and run again. Change the content of its folder, not the folder.",
        )
    listing.renew()


class Refreshed(NamedTuple):
    """A table that is to be refreshed: its name and its interval."""

    name: str
    every_us: int


Places = tuple[str, ...]
"""The folders or files that a relation was created from, sorted."""


class SparkListing:
    """The list of files of one relation, which all plans with this relation share."""

    def __init__(self, index: JavaObject, configuration: JavaObject) -> None:
        self._index, self._configuration = index, configuration
        self._paths = items(index.rootPaths())

    @property
    def places(self) -> Places:
        return tuple(sorted(str(path.toString()) for path in self._paths))

    def missing(self) -> str | None:
        gone = (path for path in self._paths if not path.getFileSystem(self._configuration).exists(path))
        return next((str(path.toString()) for path in gone), None)

    def renew(self) -> None:
        self._index.refresh()


def refreshed(spark: SparkSession, name: str, plan: JavaObject, every_us: int) -> dict[Places, Refreshed]:
    """The tables of files in a batch plan, by the folders or files of their relations.

    Raises:
        QueryTypeError: the plan has none, the path of one is a pattern, or the interval is not positive.
    """
    if every_us <= 0:
        raise QueryTypeError(f"'refresh' of {name} is no time at all.", "Write '1 minute'.")
    for relation in file_relations(plan):
        options = {key.lower(): value for key, value in pairs(relation.options())}
        if _PATTERN & {*options.get("path", ""), *options.get("paths", "")}:
            raise QueryTypeError(
                f"'refresh' of {name} would not see new folders: its path is a pattern.",
                "Name the folder, and files in it by 'pathGlobFilter'.",
            )
    found = {listing.places: Refreshed(name, every_us) for listing in _listings(spark, [plan])}
    if not found:
        raise QueryTypeError(
            f"{name} has a 'refresh', but no list of files.", "Leave it out: such a table is read in every epoch."
        )
    return found


def refreshed_tables(
    spark: SparkSession, wanted: Mapping[Places, Refreshed], plans: Sequence[JavaObject],
    report: Callable[[MalformedRows], None],
) -> RefreshedTables:  # fmt: skip
    """The tables to be refreshed among the batch plans that a run reads; `report`: see `MalformedTables`."""
    found: dict[Refreshed, list[Listing]] = {}
    for listing in _listings(spark, plans) if wanted else ():
        if listing.places in wanted:
            found.setdefault(wanted[listing.places], []).append(listing)
    tables = [Table(of.name, of.every_us, listings) for of, listings in found.items()]
    return RefreshedTables(tables, MalformedTables(spark, plans, report).look)


def _listings(spark: SparkSession, plans: Iterable[JavaObject]) -> list[SparkListing]:
    """The lists of files in batch plans, each object once: equal lists of one folder may differ in files."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    indexes: dict[int, JavaObject] = {}
    for plan in plans:
        for relation in file_relations(plan):
            index = relation.location()
            indexes.setdefault(int(jvm.System.identityHashCode(index)), index)
    return [SparkListing(index, configuration) for index in indexes.values()]
