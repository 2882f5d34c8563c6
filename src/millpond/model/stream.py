"""Streams: named, typed sources of events; and what else query texts name: views and batch tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import gcd

import msgspec

from millpond.errors import QueryRefused, QueryTypeError
from millpond.local_path import local_path
from millpond.model.change_history import StoredQuery
from millpond.model.endpoints import REDIS, Sink, Source, source_kind
from millpond.model.selection import AnyQuery
from millpond.model.types import is_integer


class Field(msgspec.Struct, frozen=True):
    """A column of a stream and its SQL type.

    `default`: the value of the column, as an SQL constant, if a record lacks it. `char`: the declared type, if it
    contains a CHAR(n), whose values are strings that are padded with blanks to the length.
    """

    name: str
    type: str
    default: str | msgspec.UnsetType = msgspec.UNSET
    char: str | msgspec.UnsetType = msgspec.UNSET


class Generated(msgspec.Struct, frozen=True):
    """A column that queries can name, but that no record has: `sql` computes it from the stream's columns.

    `position` is its position among all columns, `type` its SQL type. `zone` is the time zone in which it is computed,
    if it is not that of the session.
    """

    name: str
    type: str
    sql: str
    position: int
    zone: str | msgspec.UnsetType = msgspec.UNSET


class Order(msgspec.Struct, frozen=True):
    """Declares that events are in order within source partitions, by columns with the partition and the offset.

    `partitions` are the names of all source partitions, if they are known; the watermark waits for each of them.
    `idle_after_us`: the watermark no longer waits for a partition without events for this time (by the driver's
    clock). `offset` None: the watermark waits for each partition, but there is no order within a partition.
    """

    partition: str
    offset: str | None
    partitions: tuple[str, ...] = ()
    idle_after_us: int = 60_000_000

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that give the order: partition and, if there is one, offset."""
        return (self.partition,) if self.offset is None else (self.partition, self.offset)


_JOINED_TABLE = re.compile(r" (?:LEFT|EXISTENCE) JOIN (.+?)(?: \([0-9a-f]{16}\))? (?:ON|BY) ")
_MARKER = re.compile("join[0-9]+")
_FUNCTION = re.compile(r" through (\S+) \([0-9a-f]+\)")
_ELEMENTS, _WITH_TIME = " LATERAL VIEW OUTER ", " WITH "
_COMPUTED_TIME = re.compile(r" AS (\S+?)(?= WHERE | UNION ALL |$)")
"""Parts of the text of a derivation."""

LABELLED_PARTITION = "order.partition"
"""The column of a derived stream of several inputs that orders its events: a source, a colon and its partition.

A stream that is computed from one source alone has the partitions of the source.
"""

TAKEN = "taken"
"""The column of a derived stream that says whether an event passed the filters below; it raises for a dead event."""


class Derivation(msgspec.Struct, frozen=True):
    """The origin of a derived stream: a description, the streams that it reads, and a digest of its definition."""

    text: str
    reads: tuple[str, ...]
    digest: str


FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead-letter"


class Malformed(msgspec.Struct, frozen=True):
    """The policy for malformed records: the run fails, they are dropped, or they are written to `sink` as dead letters.

    `ratio`: the run ends when a greater part of the newest records is malformed.
    """

    policy: str = FAIL
    sink: Sink | None = None
    ratio: float | None = None


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long a stream keeps slices and events for queries that are added later; durations of event time.

    `slices_us`: how long cells of slices are kept. `grain_us`: slices are also cut at multiples of it (0: only at edges
    of windows). `events_us`: how long events are kept, with `columns` and the columns that present queries read.
    """

    slices_us: int = 0
    events_us: int = 0
    grain_us: int = 0
    columns: tuple[str, ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """A named source of events with its columns.

    `order` None: the source has no order (files, rate), and which events are late depends on how the input was cut
    into epochs. `max_ahead_us`: an event that is ahead of the driver's clock by more than this is dead (None: no event
    is). `made_of`: for a derived stream, which Spark computes from other streams while it reads them; it has no source
    of its own. `rows_of`: the query of the same pond whose rows are the events, an epoch later; see
    `plan.upstream.rows_as_stream`. `malformed`: the policy for malformed records, if the source can recognize them.
    `retain`: the data that is kept for queries that are added later. `partitioned`: the column that is the key of
    the topic's records. `computed`: the columns that are GENERATED; they are not among `columns`, which are read.
    `inner`: the query whose rows are the events, if it is a step of other queries and not a query of its own.
    `united`: several such queries, the branches of a UNION ALL, whose rows together are the events. `keyed`: the
    columns of a derived stream that are the row of its only keyed table, if the rest of an event does not depend on
    them. `first_malformed`: the `malformed` (None: unset) that the stream had when the pond was new, if it has changed
    since; names of derived streams depend on it.
    """

    name: str
    columns: tuple[Field, ...]
    source: Source | None = None
    order: Order | None = None
    max_ahead_us: int | None = 3_600_000_000
    made_of: Derivation | msgspec.UnsetType = msgspec.UNSET
    rows_of: str | msgspec.UnsetType = msgspec.UNSET
    malformed: Malformed | msgspec.UnsetType = msgspec.UNSET
    retain: Retention | msgspec.UnsetType = msgspec.UNSET
    partitioned: str | msgspec.UnsetType = msgspec.UNSET
    computed: tuple[Generated, ...] | msgspec.UnsetType = msgspec.UNSET
    inner: StoredQuery | msgspec.UnsetType = msgspec.UNSET
    united: tuple[StoredQuery, ...] | msgspec.UnsetType = msgspec.UNSET
    keyed: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    first_malformed: Malformed | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def keyed_columns(self) -> tuple[str, ...]:
        """The columns of the row that is looked up by key; empty if the reading tasks have to look it up."""
        return () if isinstance(self.keyed, msgspec.UnsetType) else self.keyed

    @property
    def generated(self) -> tuple[Generated, ...]:
        """The columns that are computed from those that are read, by their positions."""
        return () if isinstance(self.computed, msgspec.UnsetType) else self.computed

    @property
    def partitioned_by(self) -> str | None:
        """The column whose text is the key of each record, by which producers choose partitions; None: unknown."""
        return None if isinstance(self.partitioned, msgspec.UnsetType) else self.partitioned

    @property
    def retention(self) -> Retention:
        """The data that is kept for queries that are added later."""
        return Retention() if isinstance(self.retain, msgspec.UnsetType) else self.retain

    @property
    def on_malformed(self) -> Malformed:
        """The policy for malformed records."""
        return Malformed() if isinstance(self.malformed, msgspec.UnsetType) else self.malformed

    @property
    def meaning(self) -> Stream:
        """The stream without what may change at a restart: how it is read, and the policy for malformed records.

        A derived stream is without what it inherits: those of older ponds inherit nothing, and have no `keyed`.
        """
        if self.derived is not None:
            return msgspec.structs.replace(self, retain=msgspec.UNSET, partitioned=msgspec.UNSET, keyed=msgspec.UNSET)
        source = None if self.source is None else self.source.meaning
        return msgspec.structs.replace(self, source=source, malformed=msgspec.UNSET, first_malformed=msgspec.UNSET)

    @property
    def identity(self) -> Stream:
        """The stream with what names of derived streams depend on; it never changes while a pond exists."""
        first = self.malformed if isinstance(self.first_malformed, msgspec.UnsetType) else self.first_malformed
        return msgspec.structs.replace(self.meaning, malformed=msgspec.UNSET if first is None else first)

    def continuing(self, recorded: Stream) -> Stream:
        """This declaration of a recorded stream, with the same identity."""
        first = recorded.identity.malformed
        if first == self.malformed:
            return msgspec.structs.replace(self, first_malformed=msgspec.UNSET)
        return msgspec.structs.replace(self, first_malformed=None if isinstance(first, msgspec.UnsetType) else first)

    @property
    def derived(self) -> Derivation | None:
        """The origin of a derived stream; None for other streams."""
        return None if isinstance(self.made_of, msgspec.UnsetType) else self.made_of

    @property
    def declared_names(self) -> tuple[str, ...]:
        """The names by which texts read its events: a derived stream has those of the streams that it is made of."""
        return (self.name,) if self.derived is None else self.derived.reads

    @property
    def label(self) -> str:
        """As `labelled`, where the declared tables are not known."""
        return self.labelled(DeclaredTables(()))

    def labelled(self, tables: DeclaredTables) -> str:
        """What users call the stream: its name, or the declared streams it is made of and what is added to them.

        A joined table is called as it is declared, or after its location.

        >>> made = Derivation("pay LEFT JOIN csv file:/in/shops ON (a = b) WITH f(x) AS t WHERE (t > 1)", ("pay",), "")
        >>> stream = Stream("pay_1a2b3c4d", (), made_of=made)
        >>> merchants = Relation("merchants", table=Source("csv", (("path", "in/shops"),)))
        >>> stream.label, stream.labelled(DeclaredTables([merchants]))
        ('pay joined with shops, with t', 'pay joined with merchants, with t')
        """
        made = self.derived
        if made is None:
            return self.name
        names = dict.fromkeys(tables.name_of(table) for table in _JOINED_TABLE.findall(made.text))
        joined = f" joined with {' and '.join(names)}" if names else ""
        through = "".join(f" through {name}" for name in dict.fromkeys(_FUNCTION.findall(made.text)))
        added = ["a row for each element"] if _ELEMENTS in made.text else []
        added += dict.fromkeys(_COMPUTED_TIME.findall(made.text) if _WITH_TIME in made.text else [])
        return " and ".join(made.reads) + joined + through + (f", with {' and '.join(added)}" if added else "")

    def joined(self, tables: DeclaredTables) -> dict[str, str]:
        """What users call each joined table, by the name that precedes its columns in the stream.

        >>> stream = Stream("pay_1a", (Field("join1", "boolean"), Field("join1.c", "int")),
        ...     made_of=Derivation("pay LEFT JOIN csv file:/in/shops ON (a = join1.b)", ("pay",), ""))
        >>> stream.joined(DeclaredTables(()))
        {'join1': 'shops'}
        """
        text = "" if self.derived is None else self.derived.text
        found = [field.name for field in self.columns if _MARKER.fullmatch(field.name)]
        named = [tables.name_of(table) for table in _JOINED_TABLE.findall(text)]
        if len(found) != len(named) or " UNION ALL " in text:  # the order of the branches is not known here
            return {}
        return dict(zip(sorted(found, key=lambda name: int(name.removeprefix("join"))), named, strict=True))

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The queries whose rows are the events; empty: the stream is read or derived."""
        of_one = () if isinstance(self.rows_of, msgspec.UnsetType) else (self.rows_of,)
        return of_one or tuple(step.name for step in self.steps)

    @property
    def steps(self) -> tuple[AnyQuery, ...]:
        """The inner queries whose rows are the events; empty for all other streams."""
        if not isinstance(self.united, msgspec.UnsetType):
            return tuple(stored.query for stored in self.united)
        return () if isinstance(self.inner, msgspec.UnsetType) else (self.inner.query,)


class DeclaredTables:
    """The tables that a pond declares, by which joined tables are called."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        self._found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for relation in relations:
            if isinstance(relation.table, Source):
                form, path = _location(relation.table)
                self._found.setdefault((form, path.rpartition("/")[2]), []).append((path, relation.name))

    def name_of(self, table: str) -> str:
        """The declared name of a joined table, or the last part of its location without the ending of a file.

        `table` is the part of a derivation's text. Its path is not relative, but that of a declaration may be, so of
        the declared paths with which it ends the longest counts.

        >>> def table(name, form, **options):
        ...     return Relation(name, table=Source(form, tuple(options.items())))
        >>> tables = DeclaredTables([
        ...     table("shops", "csv", path="./shops.csv"), table("test", "csv", path="test/shops.csv"),
        ...     table("cards", REDIS, key="card:{id}"), table("eu", "delta", path="../eu"),
        ... ])
        >>> tables.name_of("csv file:/in/shops.csv"), tables.name_of("csv file:/in/test/shops.csv")
        ('shops', 'test')
        >>> tables.name_of("json file:/in/shops.json"), tables.name_of("csv file:/in/my_shops.csv")
        ('shops', 'my_shops')
        >>> tables.name_of("hash card:{id}"), tables.name_of("hash user:{id}"), tables.name_of("delta s3://in/eu")
        ('cards', 'user:{id}', 'eu')
        >>> tables.name_of("rows of this program")
        'rows of this program'
        """
        form, _, place = table.partition(" ")
        place = place.rstrip("/)")
        name = place.rpartition("/")[2]
        whole = "/" + place.rpartition(":/")[2].strip("/")
        found = [one for one in self._found.get((form, name), ()) if whole.endswith(one[0])]
        if found:
            return max(found, key=lambda one: len(one[0]))[1]
        return table if form in ("rows", "range") else name.removesuffix(f".{form}")


def _location(table: Source) -> tuple[str, str]:
    """Format and path of a table, or type and key; the path begins with a slash, and has no parts such as `..`."""
    options = {name.lower(): value for name, value in table.options}
    if table.format == REDIS:
        return options.get("type", "hash").lower(), "/" + options.get("key", "")
    parts = options.get("path", "").rpartition(":/")[2].split("/")
    return table.format.lower(), "/" + "/".join(part for part in parts if part not in ("", ".", ".."))


def source_names(streams: Iterable[Stream]) -> tuple[str, ...]:
    """The streams that are read from a source, each once: on their own, or as parts of derived streams."""
    streams = tuple(streams)
    rows = {stream.name for stream in streams if stream.upstreams}
    names = (name for stream in streams for name in stream.declared_names)
    return tuple(dict.fromkeys(name for name in names if name not in rows))


def inner_queries(streams: Iterable[Stream]) -> tuple[AnyQuery, ...]:
    """The inner queries whose rows are among the streams."""
    return tuple(step for stream in streams for step in stream.steps)


def inheriting(derived: Stream, bases: Sequence[Stream], plain: Collection[str]) -> Stream:
    """A derived stream with the retention of its bases, and with their key if all its events are of one topic.

    `plain` are the columns that it has from every base as they are. Of different bases the longest retention applies.
    """
    kept = [base.retention for base in bases]
    columns = {name for one in kept for name in one.columns} & {field.name for field in derived.columns}
    retain = Retention(
        max(one.slices_us for one in kept), max(one.events_us for one in kept), gcd(*(one.grain_us for one in kept)),
        tuple(sorted(columns)),
    )  # fmt: skip
    key = bases[0].partitioned_by
    one_topic = all(base == bases[0] for base in bases) and key in plain
    return msgspec.structs.replace(
        derived, retain=retain if retain != Retention() else msgspec.UNSET,
        partitioned=key if one_topic and key is not None else msgspec.UNSET,
    )  # fmt: skip


def check_retention(stream: Stream) -> None:
    """Refuses an invalid retention.

    Raises:
        QueryTypeError: a duration is negative or too long, a column does not exist, or columns have no `events_us`.
    """
    kept = stream.retention
    for name, value in (("slices", kept.slices_us), ("events", kept.events_us), ("grain", kept.grain_us)):
        if not 0 <= value < _LONGEST_US:
            raise QueryTypeError(f"{name} of the stream {stream.name} cannot be retained so.", "Write '1 hour'.")
    missing = sorted({*kept.columns} - {field.name for field in stream.columns})
    if missing or (kept.columns and not kept.events_us):
        raise QueryTypeError(
            f"The stream {stream.name} cannot retain {', '.join(missing or kept.columns)}.",
            "Name columns that it has, and how long events are kept ('retain.events').",
        )


def check_partitioned(stream: Stream) -> None:
    """Refuses a column that cannot be the key of a topic.

    Raises:
        QueryTypeError: the stream does not have the column, or it is neither a string nor an integer.
        QueryRefused: the stream is not read from Kafka.
    """
    if stream.partitioned_by is None:
        return
    kind = {field.name: field.type for field in stream.columns}.get(stream.partitioned_by)
    if stream.source is None or not stream.source.has_topics:
        raise QueryRefused(
            f"The stream {stream.name} has PARTITIONED BY, which is for topics of Kafka.",
            "Leave it out. (Of a folder of files, it lists the columns in the names of the folders; the log of a Delta "
            "table has its own.)",
        )
    if kind is None or not (kind == "string" or is_integer(kind)):
        raise QueryTypeError(
            f"The stream {stream.name} cannot be partitioned by {stream.partitioned_by}.",
            "Name the one column, a text or a whole number, whose text is the key of the topic's records.",
        )


def check_source(stream: Stream) -> None:
    """Refuses a column or an option that the source of a stream cannot have.

    Raises:
        QueryRefused: a column has a CHAR, which Spark would pad. QueryTypeError: an option must be `true` or `false`.
        PlaceError: the source is not local.
    """
    if stream.source is None:
        return
    source, kind = stream.source, source_kind(stream.source.format)
    for field in () if kind.pads else stream.columns:
        if not isinstance(field.char, msgspec.UnsetType):
            raise QueryRefused(
                f"The column {field.name} of the stream {stream.name} is {field.char}, and values of a stream "
                f"USING {kind.name} are not padded.",
                "Declare STRING, and write rpad(c, 4, ' ') in the query.",
            )
    for switch in kind.switches:
        if (given := source.option(switch)) is not None and given.lower() not in ("true", "false"):
            raise QueryTypeError(f"'{switch}' is {given!r}.", "Write 'true' or 'false'.")
    if kind.local:
        local_path(source.option("path") or "", f"The table of the stream {stream.name}")


_LONGEST_US = 1 << 60


def check_order(stream: Stream) -> None:
    """Refuses an order that the stream's columns cannot provide, and invalid durations.

    Raises:
        QueryTypeError: a column is missing or has an unsupported type, or a duration is not positive.
    """
    if stream.max_ahead_us is not None and stream.max_ahead_us < 0:
        raise QueryTypeError(f"max_ahead of the stream {stream.name} is negative.", "Give a duration, or none at all.")
    if stream.order is None:
        return
    if stream.order.idle_after_us <= 0:
        raise QueryTypeError(f"idle_after of the stream {stream.name} is not above zero.", "Write '1 minute'.")
    types = {field.name: field.type for field in stream.columns}
    for what, name in zip(("partition", "offset"), stream.order.columns, strict=False):
        if name not in types:
            raise QueryTypeError(
                f"The stream {stream.name} has no column {name} for the {what}.",
                f"Name one of {', '.join(types)}, with the same spelling.",
            )
        fits = is_integer(types[name]) or (what == "partition" and types[name] == "string")
        if not fits:
            raise QueryTypeError(
                f"The column {name} of {stream.name} is {types[name]}, which cannot be the {what}.",
                f"Use a column of whole numbers{' or strings' if what == 'partition' else ''}.",
            )


class Relation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream that is read as a part of derived streams, a view or a batch table, so that texts can be analysed again.

    Exactly one of `stream`, `text` (the SELECT of a view) and `table` is set. `schema` are the columns of a table in
    SQL, if they are listed, and `refresh` is how often its list of files is read. `zone` is the time zone of a view.
    """

    name: str
    stream: Stream | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    table: Source | msgspec.UnsetType = msgspec.UNSET
    schema: str | msgspec.UnsetType = msgspec.UNSET
    refresh: str | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType = msgspec.UNSET


def can_be_stored(table: Source) -> bool:
    """Whether no option of a table may be a secret, as addresses and passwords are."""
    if table.format == REDIS:
        return not any(name.lower() == "address" for name, _ in table.options)
    return source_kind(table.format).files or table.format == "millpond"


def named_relations(texts: Iterable[str], relations: Mapping[str, Relation]) -> tuple[Relation, ...]:
    """The relations that texts may name, also through views; a word that is the name of a relation counts.

    >>> found = {"a": Relation("a", text="SELECT 1 FROM b"), "b": Relation("b"), "c": Relation("c")}
    >>> [one.name for one in named_relations(["SELECT x FROM STREAM A"], found)]
    ['a', 'b']
    """
    found: set[str] = set()
    unread = [text for text in texts if text]
    words = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE) for name in relations}
    while unread:
        text = unread.pop()
        new = [name for name, word in words.items() if name not in found and word.search(text)]
        found.update(new)
        unread += [made for name in new if isinstance(made := relations[name].text, str)]
    return tuple(relation for name, relation in relations.items() if name in found)
