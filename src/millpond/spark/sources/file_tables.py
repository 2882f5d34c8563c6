"""Tables of files that streams join; their files are listed again while the pond runs.

Spark lists the files of a table when its relation is created, and plans each batch from that list. The list is
replaced between two epochs, the only moment when no batch is being planned. So an epoch sees one list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import SparkSession

from millpond.clock import lap_us
from millpond.errors import QueryTypeError, SourceError
from millpond.spark.catalyst.private_names import JavaObject, children, items, kind_of, pairs

_PATTERN = frozenset("*?[]{}")


class Listing(Protocol):
    """The list of files of one relation."""

    def missing(self) -> str | None:
        """The first of the places that it was made of which is not there."""

    def renew(self) -> None:
        """List the files again."""


class Table(NamedTuple):
    """A table that is listed again when `every_us` have passed since it was; `listings`: of each relation of it."""

    name: str
    every_us: int
    listings: Sequence[Listing]


class Lookups:
    """The tables that one run reads, each listed when it begins; `clock` tells microseconds."""

    def __init__(self, tables: Iterable[Table], clock: Callable[[], int] = lap_us) -> None:
        self._tables = tuple(tables)
        self._clock = clock
        self._listed: dict[int, int] = {}

    def renew(self) -> None:
        """Between two epochs: list the tables again that are due.

        Raises:
            SourceError: a table is gone; Spark would take it for one without rows.
        """
        for place, table in enumerate(self._tables):
            now = self._clock()
            if now - self._listed.get(place, now - table.every_us) >= table.every_us:
                for listing in table.listings:
                    _renew(table.name, listing)
                self._listed[place] = now


def _renew(name: str, listing: Listing) -> None:
    missing = listing.missing()
    if missing is not None:
        raise SourceError(
            f"The table {name} is gone: there is no {missing}.",
            "Put it back and run again; change what is in its folder, not the folder.",
        )
    listing.renew()


class Refreshed(NamedTuple):
    """A table that is to be listed again: its name and how often."""

    name: str
    every_us: int


Places = tuple[str, ...]
"""The folders or files that a relation was made of, sorted."""


class SparkListing:
    """That of one relation, which all plans that hold it share."""

    def __init__(self, index: JavaObject, configuration: JavaObject) -> None:
        self._index, self._configuration = index, configuration
        self._paths = items(index.rootPaths())

    @property
    def places(self) -> Places:
        """See `Places`."""
        return tuple(sorted(str(path.toString()) for path in self._paths))

    def missing(self) -> str | None:
        """See `Listing`."""
        gone = (path for path in self._paths if not path.getFileSystem(self._configuration).exists(path))
        return next((str(path.toString()) for path in gone), None)

    def renew(self) -> None:
        """See `Listing`."""
        self._index.refresh()


def refreshed(spark: SparkSession, name: str, plan: JavaObject, every_us: int) -> dict[Places, Refreshed]:
    """The tables of files behind a batch plan, by what their relations are made of.

    Raises:
        QueryTypeError: there are none, one has a pattern for its place, or no time lies between two lists.
    """
    if every_us <= 0:
        raise QueryTypeError(f"'refresh' of {name} is no time at all.", "Write '1 minute'.")
    for relation in _relations(plan):
        options = {key.lower(): value for key, value in pairs(relation.options())}
        if _PATTERN & {*options.get("path", ""), *options.get("paths", "")}:
            raise QueryTypeError(
                f"'refresh' of {name} would not see new folders: its path is a pattern.",
                "Name the folder, and files in it by 'pathGlobFilter'.",
            )
    found = {listing.places: Refreshed(name, every_us) for listing in _listings(spark, [plan])}
    if not found:
        raise QueryTypeError(
            f"{name} has a 'refresh', but no list of files.", "Leave it out: such a table is read anew in every epoch."
        )
    return found


def lookups(spark: SparkSession, asked: Mapping[Places, Refreshed], plans: Iterable[JavaObject]) -> Lookups:
    """What is to be listed again of the batch plans that a run reads."""
    found: dict[Refreshed, list[Listing]] = {}
    for listing in _listings(spark, plans) if asked else ():
        if listing.places in asked:
            found.setdefault(asked[listing.places], []).append(listing)
    return Lookups(Table(of.name, of.every_us, listings) for of, listings in found.items())


def _listings(spark: SparkSession, plans: Iterable[JavaObject]) -> list[SparkListing]:
    """The lists of files behind batch plans, each once: two of the same folder are equal, and may differ."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    indexes: dict[int, JavaObject] = {}
    for plan in plans:
        for relation in _relations(plan):
            index = relation.location()
            indexes.setdefault(int(jvm.System.identityHashCode(index)), index)
    return [SparkListing(index, configuration) for index in indexes.values()]


def _relations(plan: JavaObject) -> Iterator[JavaObject]:
    """The relations over files in a batch plan."""
    stack = [plan]
    while stack:
        node = stack.pop()
        stack.extend(children(node))
        if kind_of(node) == "LogicalRelation" and kind_of(node.relation()) == "HadoopFsRelation":
            yield node.relation()
