"""Where events come from and rows go: `Source` and `Sink`, and the table of the kinds of sources.

Statements, reads, backfills and checks of files are derived from the table. Packages register further kinds as entry
points in the group `millpond.sources`, under the name that follows USING.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.errors import SetupError
from millpond.plugins import Registry, misnamed

REDIS = "redis"
"""The format of a sink that writes each row under its own key in Redis."""

FOREACH = "foreach"
"""The format of a sink that passes rows to a function of this process."""

READ = "read:"
"""The beginning of the name under which the status of a pond lists the reader or parser of a stream."""

NOWHERE = "noop"
"""The format of a sink that writes no rows."""


GROUP = "millpond.sources"
"""The group of entry points in which packages register sources."""


class SourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """What Millpond must know about a kind of source; Spark reads it."""

    name: str
    """The name after USING, and the `format` of a `Source`."""

    format: str = ""
    """The name of Spark's data source; the name of the kind if empty."""

    options: tuple[str, ...] = ()
    """The options of a stream, as Spark spells them."""

    table_options: tuple[str, ...] = ()
    """The options of a batch table (`CREATE TEMPORARY VIEW … USING`); empty: the source has no batch tables."""

    stream: bool = True
    """Whether a pond file may declare streams of this kind."""

    files: bool = False
    """Whether the source is a folder of files, so that it needs a `path`."""

    appends: bool = False
    """Whether the source is a versioned table, and its events are the rows that are appended to it."""

    topics: bool = False
    """Whether Spark's Kafka connector reads it: events are records of topics, with keys, partitions and offsets."""

    again: bool = False
    """Whether a backfill can read the events again; only for folders of files and topics."""

    marks_malformed: bool = False
    """Whether records that do not parse are marked in the column `columnNameOfCorruptRecord` if the option `mode` is
    PERMISSIVE, as Spark does in JSON and CSV."""

    paths: tuple[str, ...] = ("path", "sourcearchivedir")
    """The options that are paths, in lower case; a relative one refers to the current folder."""

    manners: tuple[str, ...] = ()
    """The options that do not change the events: how the source is reached and how fast it is read."""

    switches: tuple[str, ...] = ()
    """The options that must be `true` or `false`; a source may take any other text for `false`."""

    local: bool = False
    """Whether the `path` must be on this machine or a mounted file system, because the source is not read by Spark."""

    pads: bool = True
    """Whether values of CHAR columns are padded with blanks, as Spark does."""

    columns: tuple[tuple[str, str], ...] = ()
    """Names and types of the columns, if they are always the same; otherwise a stream declares its columns."""

    prepare: str | None = None
    """`module:attribute` of a function that takes the Spark session before the source is read: it adds the source's
    jars, or registers its data source. While queries of files are analysed, it is not called."""

    look: str | None = None
    """`module:attribute` of a function that takes a `Reading`, the path of a file and the options, and reports columns
    of the file that Spark would read as NULL (see `spark.reading.file_schemas`)."""

    extra: str | None = None
    """The optional dependencies to install: `pip install 'millpond[extra]'`."""

    @property
    def spark_format(self) -> str:
        """The name of Spark's data source."""
        return self.format or self.name


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FILES = _words(
    "path maxFilesPerTrigger maxBytesPerTrigger latestFirst fileNameOnly maxFileAge cleanSource sourceArchiveDir "
    "pathGlobFilter recursiveFileLookup maxCachedFiles"
)
_TABLES = _words("path pathGlobFilter recursiveFileLookup mergeSchema")
_REBASE = _words("datetimeRebaseMode int96RebaseMode")
_TEXTS = _words(
    "mode columnNameOfCorruptRecord dateFormat timestampFormat timestampNTZFormat multiLine encoding lineSep locale "
    "timeZone"
)
_JSON = (*_FILES, *_TEXTS, *_words(
    "primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes "
    "allowNumericLeadingZeros allowBackslashEscapingAnyCharacter allowUnquotedControlChars allowNonNumericNumbers"
))  # fmt: skip
_CSV = (*_FILES, *_TEXTS, *_words(
    "sep delimiter quote escape comment header enforceSchema ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace "
    "nullValue nanValue positiveInf negativeInf maxColumns maxCharsPerColumn charToEscapeQuoteEscaping emptyValue "
    "unescapedQuoteHandling"
))  # fmt: skip
_KAFKA = _words(
    "connection format subscribe subscribePattern startingOffsets startingTimestamp startingOffsetsByTimestamp "
    "maxOffsetsPerTrigger failOnDataLoss epochTarget mode registry schema message dateFormat timestampFormat locale "
    "timeZone allowComments allowUnquotedFieldNames allowSingleQuotes allowNumericLeadingZeros "
    "allowBackslashEscapingAnyCharacter allowUnquotedControlChars allowNonNumericNumbers primitivesAsString sep "
    "delimiter quote escape comment ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace nullValue nanValue positiveInf "
    "negativeInf maxColumns maxCharsPerColumn emptyValue charToEscapeQuoteEscaping unescapedQuoteHandling"
)
_TABLE_MANNERS = _words("skipChangeCommits maxFilesPerTrigger maxBytesPerTrigger")
_RATE = (("timestamp", "timestamp"), ("value", "bigint"))
_LOOK = "millpond.spark.reading.file_schemas"
_TABLE_STREAMS = "millpond.spark.sources.tables"

BUILT_IN: tuple[SourceKind, ...] = (
    SourceKind(
        name="parquet", options=(*_FILES, "mergeSchema", *_REBASE), table_options=(*_TABLES, *_REBASE), files=True,
        again=True, look=f"{_LOOK}:parquet_columns",
    ),
    SourceKind(
        name="json", options=_JSON, table_options=_JSON, files=True, again=True, marks_malformed=True,
        look=f"{_LOOK}:json_columns",
    ),
    SourceKind(
        name="csv", options=_CSV, table_options=_CSV, files=True, again=True, marks_malformed=True,
        look=f"{_LOOK}:csv_columns",
    ),
    SourceKind(
        name="orc", options=(*_FILES, "mergeSchema"), table_options=_TABLES, files=True, again=True,
        look=f"{_LOOK}:orc_columns",
    ),
    SourceKind(
        name="avro", options=(*_FILES, "mode", "avroSchema", "datetimeRebaseMode"), files=True, again=True,
        prepare="millpond.spark.session.add_jars:provide_avro",
    ),
    SourceKind(name="text", stream=False, files=True, again=True),
    SourceKind(name="rate", options=_words("rowsPerSecond rampUpTime numPartitions"), columns=_RATE),
    SourceKind(name="rate-micro-batch", stream=False, columns=_RATE),
    SourceKind(
        name="delta", format="millpond_delta", prepare=f"{_TABLE_STREAMS}.delta_tables:provide_delta", extra="delta",
        appends=True,
        options=(*_words("path startingVersion startingTimestamp"), *_TABLE_MANNERS), manners=_TABLE_MANNERS,
        switches=("skipChangeCommits",), local=True, pads=False,
    ),
    SourceKind(
        name="iceberg", format="millpond_iceberg", prepare=f"{_TABLE_STREAMS}.iceberg_tables:provide_iceberg",
        extra="iceberg", appends=True,
        options=(*_words("path catalog table startingVersion startingTimestamp"), *_TABLE_MANNERS),
        manners=_TABLE_MANNERS,
        switches=("skipChangeCommits",), local=True, pads=False,
    ),
    SourceKind(
        name="kafka", options=_KAFKA, topics=True, again=True, paths=("schema",),
        manners=_words("connection maxOffsetsPerTrigger epochTarget failOnDataLoss"),
    ),
    SourceKind(
        name="jdbc", stream=False, table_options=_words(
            "url dbtable query user password driver partitionColumn lowerBound upperBound numPartitions queryTimeout "
            "fetchsize pushDownPredicate customSchema"
        ),
    ),
    SourceKind(name="millpond", stream=False, table_options=_words("path query store numPartitions")),
    SourceKind(
        name=REDIS, stream=False, table_options=_words("key address type missing wrong.type vanished defaults")
    ),
)  # fmt: skip
"""The kinds of sources that Millpond has."""

KINDS = Registry(GROUP, "source", SourceKind, {kind.name: kind for kind in BUILT_IN})
"""All kinds of sources by name."""


def source_kind(name: str) -> SourceKind:
    """The kind of a source; one that is not listed has nothing special, and only a DataFrame can declare it.

    Raises:
        SetupError: the package that registers the source is not usable.
    """
    kind = KINDS.get(name)
    if kind is not None and name not in KINDS.built_in:
        for wrong in _mistakes(name, kind):
            raise SetupError(f"The source {name} of a package {wrong}.", "Correct its SourceKind.")
    return kind or SourceKind(name=name, stream=False)


def _mistakes(name: str, kind: SourceKind) -> Iterator[str]:
    """What does not fit in the kind of a package, as the end of a sentence about it."""
    yield from misnamed(name, kind)
    if kind.topics:
        yield "reads topics, which only a source of Millpond can"
    if kind.again and not kind.files:
        yield "cannot be read again, because it is not a folder of files"
    if kind.marks_malformed and not kind.files:
        yield "marks malformed records, but is not a folder of files"


def stream_names() -> tuple[str, ...]:
    """The kinds that a pond file may declare as streams."""
    own = (kind.name for kind in BUILT_IN if kind.stream)
    return (*own, *KINDS.added())


def table_names() -> tuple[str, ...]:
    """The kinds of Millpond that a pond file may declare as batch tables."""
    return tuple(kind.name for kind in BUILT_IN if kind.table_options)


class Source(msgspec.Struct, frozen=True):
    """A Spark streaming source: `format` and reader options, sorted by name."""

    format: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def has_topics(self) -> bool:
        """Whether the events are records of Kafka topics."""
        return source_kind(self.format).topics

    def option(self, name: str) -> str | None:
        """The value of an option, whose case is ignored as in Spark; None: it is not given."""
        return next((value for option, value in self.options if option.lower() == name.lower()), None)

    @property
    def meaning(self) -> Source:
        """The source without options that do not change its events: how it is reached and how fast it is read."""
        manners = source_kind(self.format).manners
        kept = tuple(option for option in self.options if option[0] not in manners)
        return Source(self.format, kept)


class Sink(msgspec.Struct, frozen=True):
    """Where a query's rows are written: `format`, and `path` if the format is a folder. No option may be a secret.

    >>> Sink("kafka", options=(("topic", "alerts"),)).path is None
    True
    """

    format: str = NOWHERE
    path: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def goes_nowhere(self) -> bool:
        """Whether rows are computed and counted, but not written."""
        return self.format == NOWHERE
