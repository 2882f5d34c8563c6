"""Builds one streaming frame over all streams, pruned to the columns and expressions that the queries need.

It also makes the derived streams: joins with tables, exploded arrays and functions of batches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.log.protocol import TICK
from millpond.model.stream import DROP, Stream
from millpond.reconfigure.late_functions import owner_in
from millpond.runtime.packets.row_batches import dead_letters_of, timeless_reason
from millpond.runtime.task.column_layout import (
    DEAD,
    LETTER_COLUMN,
    OwnerLookup,
    ReadColumn,
    ReadLayout,
    StreamLayout,
    TextStream,
    column_name,
)
from millpond.spark.analysis.derived_streams import (
    Branch,
    Derived,
    Elements,
    FunctionRows,
    KeyedLookup,
    TableJoin,
    is_harmless,
    limited_names,
    multiplies,
    time_sql,
)
from millpond.spark.catalyst.checked_values import unless_larger
from millpond.spark.catalyst.data_types import sql_type
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    analysed,
    id_of,
    items,
    references,
)
from millpond.spark.catalyst.quiet_errors import without_call_sites
from millpond.spark.catalyst.spark_expressions import Projected, with_guards
from millpond.spark.catalyst.value_bounds import ROWS, accepted
from millpond.spark.reading.event_source import event_source, malformed_policy
from millpond.spark.reading.generated_columns import with_generated
from millpond.spark.sources.arrow_functions import mapped
from millpond.spark.sources.declared_paths import located, notes
from millpond.spark.sources.kafka import DEAD as MALFORMED
from millpond.spark.sources.kafka import RECORD, kafka_frame
from millpond.spark.sources.keyed_tables import ALIVE, met

TOO_MANY = "an event becomes too many rows"
"""The reason for a dead event of which functions such as `explode` would make too many rows."""


class EventTime(NamedTuple):
    """An event-time column and how long its events may be late, in Spark's notation: `10 seconds`."""

    column: str
    delay: str


class WantedStream(NamedTuple):
    """What to read of one stream: columns by name, expressions that only Spark evaluates, and how it is derived.

    No active query reads a stream that is `idle`, so no rows are made from elements of its arrays. `lookup`: the keyed
    table that is not joined while reading, whose key is among the columns.
    """

    stream: Stream
    columns: tuple[str, ...]
    foreigns: tuple[Projected, ...] = ()
    derived: Derived | None = None
    idle: bool = False
    lookup: OwnerLookup | None = None


def with_places(want: WantedStream, homes: Mapping[str, str]) -> WantedStream:
    """The same with absolute paths, which do not depend on the current folder; `homes`: the folder of each query."""
    stream, derived = _with_absolute_path(want.stream, homes), want.derived
    if derived is not None:
        branches = tuple(branch._replace(base=_with_absolute_path(branch.base, homes)) for branch in derived.branches)
        derived = derived._replace(branches=branches)
    return want._replace(stream=stream, derived=derived)


def _with_absolute_path(stream: Stream, homes: Mapping[str, str]) -> Stream:
    return located(stream, homes.get(dead_letters_of(stream.name), os.curdir))


def load(
    spark: SparkSession, stream: Stream, *, named: bool = True, analysed_only: bool = False, limit: int | None = None,
    home: str | None = None,
) -> DataFrame:  # fmt: skip
    """The stream as a streaming DataFrame; `named` gives its source the stream's name in the checkpoint.

    - `home`: the folder to which its relative paths refer, if it has any.
    - `limit`: the most records that an epoch reads of a Kafka stream, unless the stream itself has a limit.
    - `analysed_only`: the frame will not be read. Otherwise a stream that separates malformed records has the column
      `MALFORMED` in addition to its own.

    Raises:
        QueryTypeError: the stream has no source.
        SourceError: Spark cannot open it.
        SetupError: a jar or another requirement for reading it is missing.
    """
    marks = {} if home is None else notes(stream, home)
    source = event_source(stream if home is None else located(stream, home))
    source = source.stand_in() if analysed_only else source
    return source.frame(spark, stream.name if named else None, limit, marks)


def register(
    spark: SparkSession, stream: Stream, watermark: EventTime | None = None, home: str | None = None
) -> DataFrame:
    """Load the stream and register it as a temporary view, so that texts can be analysed; `home` is as in `load`.

    Raises:
        QueryTypeError, SourceError: as `load`; QueryError: as `with_generated`.
    """
    evolves = spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution") == "true"
    frame = with_generated(spark, load(spark, stream, named=evolves, analysed_only=True, home=home), stream)
    if watermark is not None:
        frame = frame.withWatermark(*watermark)
    frame.createOrReplaceTempView(stream.name)
    return frame


@without_call_sites()
def read(
    spark: SparkSession, wanted: Sequence[WantedStream], *, tick: bool = True, limits: Mapping[str, int] | None = None,
    given: Mapping[str, DataFrame] | None = None, texts: Mapping[str, TextStream] | None = None,
) -> tuple[DataFrame, ReadLayout]:  # fmt: skip
    """One streaming frame over all streams; its columns are those of `ReadLayout`.

    With `tick`, a batch also begins each second if there is no input; the tick has no rows.

    Frames in `given` are used instead of loading their streams. `texts`: the streams that are read as texts, see
    `reading.text_streams`; their frames are not in `given`. `spark` is a session only for
    reading, see `session.reading_session`. Each source is read once: if a stream is needed in several forms, as itself
    or as part of derived streams, its rows are copied after the read.

    Raises:
        QueryTypeError: there is nothing to read, a column is unknown, or as `load`.
        SourceError: as `load`.
    """
    layouts: list[StreamLayout] = []
    copies: dict[str, list[_Copy]] = {}
    bases: dict[str, Stream] = {}
    position = 1
    for index, want in enumerate(wanted):
        columns = _columns(want, position)
        position += len(columns)
        reads = () if want.stream.derived is None else want.stream.derived.reads
        layouts.append(StreamLayout(want.stream.name, columns, *_order(want.stream), reads, lookup=want.lookup))
        for base, branch in bases_of(want):
            bases[base.name] = base
            copies.setdefault(base.name, []).append(_Copy(index, want, branch))
    counted = {min(of, key=_rows_per_record).place for of in copies.values()}
    layouts = [layout._replace(counted=place in counted) for place, layout in enumerate(layouts)]
    most, known, unparsed = limits or {}, given or {}, texts or {}
    every = [
        _Base(spark, bases[name], of, most.get(name), known.get(name), texts=name in unparsed)
        for name, of in copies.items()
    ]
    parts = [base.frame() for base in every]
    separated = tuple((base.name, *base.policy) for base in every if base.policy is not None)
    if tick:
        rate = spark.readStream.name(TICK).format("rate").option("rowsPerSecond", 1).option("numPartitions", 1)
        # The session lets Spark remove a source without rows from each batch's plan, so no task reads the tick.
        # `limit(0)` would make the query stateful, and Spark would need its state in the checkpoint after a restart.
        parts.append(rate.load().where(F.lit(False)).select(F.lit(0).alias("stream")))
    if not parts:
        raise QueryTypeError("There is nothing to read: no stream and no tick.", "Declare a stream.")
    kinds = {field.name: field.dataType for part in parts for field in part.schema.fields}
    names = [column_name(i, n) for i, layout in enumerate(layouts) for n in range(len(layout.columns))]
    names = [name for name in names if name in kinds]  # those that texts contain are missing
    names += [LETTER_COLUMN] if LETTER_COLUMN in kinds else []
    frame = _padded(parts[0], names, kinds)
    for other in parts[1:]:
        frame = frame.union(_padded(other, names, kinds))
    return frame, ReadLayout(tuple(layouts), separated, tuple(unparsed.values()))


def bases_of(want: WantedStream) -> list[tuple[Stream, Branch | None]]:
    """The sources from which a stream is read; the union of all sources is in the order of their first appearance."""
    if want.derived is None:
        return [(want.stream, None)]
    return [(branch.base, branch) for branch in want.derived.branches]


def _order(stream: Stream) -> tuple[str | None, str | None]:
    return (None, None) if stream.order is None else (stream.order.partition, stream.order.offset)


def _columns(want: WantedStream, position: int) -> tuple[ReadColumn, ...]:
    """The columns that are read of one stream, starting at a position."""
    types = {field.name: field.type for field in want.stream.columns}
    for name in want.columns:
        if name not in types:
            raise QueryTypeError(f"The stream {want.stream.name} has no column {name}.", "Check its declaration.")
    limited = limited_names(want.derived)
    plain = [
        ReadColumn(name, position + n, types[name], foreign=name in limited) for n, name in enumerate(want.columns)
    ]
    first = position + len(plain)
    values = [foreign.value for foreign in want.foreigns]
    return (*plain, *(ReadColumn(value.name, first + n, value.type, foreign=True) for n, value in enumerate(values)))


class _Copy(NamedTuple):
    """A form in which a source is needed: as itself (`branch` is None), or as a branch of the stream at `place`."""

    place: int
    want: WantedStream
    branch: Branch | None


def _rows_per_record(copy: _Copy) -> tuple[bool, int, int]:
    """Sorts the forms of a source by how surely they have one row for each of its records, the surest first."""
    branches = () if copy.want.derived is None else copy.want.derived.branches
    sides = () if copy.branch is None else copy.branch.sides
    joined = sum(isinstance(side, TableJoin) and not side.existence for side in sides)
    multiplied = sum(isinstance(side, Elements | FunctionRows) for side in sides)
    return len(branches) > 1, multiplied, joined


class _Base:
    """One source, and all forms in which it is needed; `policy`: see `EventSource.malformed_policy`."""

    def __init__(
        self, spark: SparkSession, base: Stream, copies: list[_Copy], limit: int | None, given: DataFrame | None, *,
        texts: bool = False,
    ) -> None:  # fmt: skip
        self._catalyst = Catalyst(spark)
        self._copies = copies
        if texts:
            self._frame = kafka_frame(spark, base, base.name, limit, texts=True)
        else:
            self._frame = load(spark, base, limit=limit) if given is None else given
        self._texts = texts
        sides = [side for copy in copies if copy.branch is not None for side in copy.branch.sides]
        self.name, self.policy = base.name, malformed_policy(base)
        if self.policy is not None and any(isinstance(side, FunctionRows) for side in sides):
            self._frame = _without_dead(self._frame, base.name, self.policy[0])
        self._attributes = self._named(self._frame)
        names = list(self._attributes)
        has_dead = self.policy is not None and MALFORMED in names and not texts
        self._dead: Column | None = self._catalyst.column(self._attributes[MALFORMED]) if has_dead else None
        self._ordered = base.order is not None
        self._which: Column | None = None
        if len(copies) > 1:
            # The source is scanned once, and each row is copied for each form.
            every = [self._catalyst.column(column) for column in self._attributes.values()]
            numbers = F.array(*(F.lit(number) for number in range(len(copies))))
            self._frame = self._frame.select(*every, F.explode(numbers).alias("which"))
            self._which = self._catalyst.column(items(analysed(self._frame).output())[-1])
        self._made: dict[int, list[JavaObject]] = {}
        self._map(names)

    def _map(self, names: list[str]) -> None:
        """Run functions of batches first, because Spark returns new columns, which are identified by their position."""
        places = {}
        for number, copy in enumerate(self._copies):
            for side in () if copy.branch is None else copy.branch.sides:
                if isinstance(side, FunctionRows):
                    places[number] = len(self._frame.columns), len(side.names) + 1
                    self._frame = mapped(self._frame, side.batches, None if self._which is None else number)
        if places:
            made = items(analysed(self._frame).output())
            self._attributes = dict(zip(names, made, strict=False))
            self._which = None if self._which is None else self._catalyst.column(made[len(names)])
            self._made = {number: made[first : first + count] for number, (first, count) in places.items()}

    def frame(self) -> DataFrame:
        """The column `stream` and the columns of every stream that this source is part of."""
        made: dict[str, list[tuple[int, Column]]] = {"stream": []}
        letters: dict[int, Column] = {}
        for number, copy in enumerate(self._copies):
            values = self._joined(number, copy)
            mine = F.lit(copy.place)
            made["stream"].append((number, mine if self._dead is None else F.when(self._dead.isNull(), mine)))
            limited = limited_names(copy.want.derived)
            for place, name in enumerate(copy.want.columns):
                if name not in values and self._texts:
                    continue
                value = self._catalyst.attempt(values[name]) if name in limited else values[name]
                made.setdefault(column_name(copy.place, place), []).append((number, self._catalyst.column(value)))
            for place, foreign in enumerate(copy.want.foreigns, len(copy.want.columns)):
                attempt = self._catalyst.column(self._catalyst.attempt(self._placed(foreign.expression, values)))
                made.setdefault(column_name(copy.place, place), []).append((number, attempt))
            letter = self._timeless(copy, values)
            letters |= {} if letter is None else {number: letter}
        if self._dead is not None:
            # a malformed record is reported once, however many copies there are
            letters[0] = F.coalesce(self._dead, letters[0]) if 0 in letters else self._dead
            made[LETTER_COLUMN] = sorted(letters.items(), key=lambda letter: letter[0])
        if self._texts:
            made[LETTER_COLUMN] = [(0, self._catalyst.column(self._attributes[MALFORMED]))]
        chosen = {name: self._chosen(of) for name, of in made.items()}
        if self._dead is not None:
            chosen["stream"] = F.coalesce(chosen["stream"], F.lit(DEAD))
        return self._frame.select(*(value.alias(name) for name, value in chosen.items()))

    def _timeless(self, copy: _Copy, values: dict[str, JavaObject]) -> Column | None:
        """The dead letter of an event whose time is computed from its own columns and is NULL, if they are kept."""
        branch = copy.branch
        if branch is None or branch.time is None or copy.want.idle or RECORD not in self._attributes:
            return None
        own = {column.name for column in branch.base.columns}
        if not {str(column.name()) for column in references(branch.columns[branch.time])} <= own:
            return None  # the time may be NULL because a join has no partner, or an array no elements
        reason = timeless_reason(branch.time, time_sql(branch, branch.time))
        record = self._catalyst.column(self._attributes[RECORD]).withField("reason", F.lit(reason))
        missing = self._catalyst.column(values[branch.time]).isNull()
        return F.when(missing if self._dead is None else missing & self._dead.isNull(), record)

    def _chosen(self, values: list[tuple[int, Column]]) -> Column:
        """The value for the stream to which the row's copy belongs."""
        if self._which is None:
            return values[0][1]
        chosen = F.when(self._which == values[0][0], values[0][1])
        for number, value in values[1:]:
            chosen = chosen.when(self._which == number, value)
        return chosen

    def _joined(self, number: int, copy: _Copy) -> dict[str, JavaObject]:
        """Join a copy with its batch relations; return the columns of its stream by name."""
        values = dict(self._attributes)
        if copy.branch is None:
            return values
        one = self._catalyst.make("Literal", 1.0, self._catalyst.types.DoubleType)
        rows: JavaObject | None = one if multiplies(copy.branch) else None
        for side in copy.branch.sides:
            if isinstance(side, FunctionRows):
                values |= zip([*side.names, side.name], self._made[number], strict=True)
                continue
            if isinstance(side, Elements):
                more, rows = self._elements(number, copy, side, values, rows)
                values |= more
                continue
            if isinstance(side, KeyedLookup):
                values |= self._met(number, copy, side, values)
                continue
            if side.existence:
                values[side.name] = self._exists(copy.want.stream.name, side, values)
                continue
            right = self._catalyst.frame(side.plan).select(*self._columns(side), F.lit(True).alias(side.name))
            values |= self._named(right)
            condition = self._catalyst.column(self._safe(side.condition, values, copy.want.stream.name))
            if self._which is not None:
                condition = (self._which == number) & condition
            if self._dead is not None:
                condition = self._dead.isNull() & condition
            # A shuffle would mix the source partitions and so destroy the order of events.
            self._frame = self._frame.join(F.broadcast(right) if self._ordered else right, condition, "left")
        for side in copy.branch.sides if rows is not None else ():
            if isinstance(side, Elements):
                values[side.name] = unless_larger(self._catalyst, rows, ROWS, values[side.name], TOO_MANY)
        stream = copy.want.stream.name
        return {
            name: self._safe(column, values, owner_in(stream, name)) for name, column in copy.branch.columns.items()
        }

    def _columns(self, side: TableJoin) -> list[Column]:
        """The columns of a relation with new ids, because it may be joined twice."""
        columns = zip(items(side.plan.output()), side.names, strict=True)
        return [self._catalyst.column(column).alias(name) for column, name in columns]

    def _exists(self, stream: str, side: TableJoin, values: dict[str, JavaObject]) -> JavaObject:
        """Add the column that says whether a row has a partner in a batch relation.

        Spark makes an existence join of the expression, so each row stays one row.
        """
        right = self._catalyst.frame(side.plan).select(*self._columns(side))
        own = self._named(right)
        condition = self._safe(side.condition, values | own, stream)
        given = {id_of(column) for column in own.values()}
        outer = [column for column in references(condition) if id_of(column) not in given]
        layer = [
            self._catalyst.alias(self._catalyst.make("OuterReference", column), str(column.name()), column)
            for column in outer
        ]
        right = right.where(self._catalyst.column(self._catalyst.substitute(condition, layer)))
        # Without conditions on the row, Spark reads one row of the relation per epoch.
        relation = analysed(F.broadcast(right) if self._ordered and outer else right)
        identity = self._catalyst.boolean(side.name).exprId()
        exists = self._catalyst.make("Exists", relation, outer, identity, [], self._catalyst.none)
        self._frame = self._frame.select("*", self._catalyst.column(exists).alias(side.name))
        return items(analysed(self._frame).output())[-1]

    def _met(self, number: int, copy: _Copy, side: KeyedLookup, values: dict[str, JavaObject]) -> dict[str, JavaObject]:
        """Join each row with its row of a keyed table; return the columns of the table by name."""
        keys = [self._catalyst.column(self._safe(key, values, copy.want.stream.name)) for key in side.keys]
        if self._which is not None:
            keys = [F.when(self._which == number, key) for key in keys]
        before = len(self._frame.columns)
        self._frame = self._frame.select("*", met(side.keyed, keys))
        *kept, row = items(analysed(self._frame).output())
        own = dict(zip((side.name, ALIVE, *side.keyed.schema.names), map("c{}".format, range(1 << 16)), strict=False))
        made = {side.name: side.name} | dict(zip(side.names, side.columns, strict=True))
        columns = [self._catalyst.column(row).getField(own[of]).alias(name) for name, of in made.items()]
        self._frame = self._frame.select(*map(self._catalyst.column, kept), *columns)
        return {str(column.name()): column for column in items(analysed(self._frame).output())[before:]}

    def _elements(
        self, number: int, copy: _Copy, side: Elements, values: dict[str, JavaObject], rows: JavaObject | None
    ) -> tuple[dict[str, JavaObject], JavaObject | None]:
        """Make a row for each element, or one row if there are no elements; return the columns by name.

        The second value is the number of rows that an event has become, if this is counted; `rows` is this number
        before the step.
        """
        array = self._safe(side.array, values, copy.want.stream.name)
        if not is_harmless(array):
            array = self._catalyst.tried(array)  # an array that raises has no elements
        if copy.want.idle:
            array = self._catalyst.make("Literal", None, array.dataType())
        given = self._catalyst.column(array)
        if self._which is not None:
            given = F.when(self._which == number, given)
        if self._dead is not None:
            given = F.when(self._dead.isNull(), given)
        if rows is not None:
            given, rows = self._counted(given, rows)
        before = len(self._frame.columns)
        self._frame = self._frame.select("*", F.posexplode_outer(given))
        place, *rest = map(self._catalyst.column, items(analysed(self._frame).output())[before:])
        element = self._frame.schema.fields[-1].dataType
        if side.kind == "Inline" and isinstance(element, StructType):
            made = [rest[0].getField(field.name) for field in element.fields]
        else:
            made = rest if side.kind == "Explode" else [place, *rest]
        columns = [column.alias(name) for column, name in zip(made, side.names, strict=True)]
        every = [self._catalyst.column(column) for column in items(analysed(self._frame).output())[:before]]
        self._frame = self._frame.select(*every, *columns, F.when(place.isNotNull(), True).alias(side.name))
        added = {str(column.name()): column for column in items(analysed(self._frame).output())[before:]}
        return added, rows

    def _counted(self, given: Column, rows: JavaObject) -> tuple[Column, JavaObject]:
        """The array, which is NULL if its elements would make too many rows, and the number of these rows."""
        before = len(self._frame.columns)
        self._frame = self._frame.select("*", given.alias("given"))
        *every, array = map(self._catalyst.column, items(analysed(self._frame).output()))
        count = F.greatest(F.coalesce(F.size(array), F.lit(0)), F.lit(1)).cast("double")
        total = self._catalyst.column(rows) * count
        held = F.when(total <= ROWS, array)
        self._frame = self._frame.select(*every, held.alias("held"), total.alias("rows"))
        held_array, total_rows = items(analysed(self._frame).output())[before:]
        return self._catalyst.column(held_array), total_rows

    def _named(self, frame: DataFrame) -> dict[str, JavaObject]:
        return {str(column.name()): column for column in items(analysed(frame).output())}

    def _placed(self, expression: JavaObject, values: dict[str, JavaObject]) -> JavaObject:
        """The expression with its columns replaced by those of the same name, as it was analysed over another load."""
        names = [self._catalyst.alias(values[str(old.name())], str(old.name()), old) for old in references(expression)]
        return self._catalyst.substitute(expression, names)

    def _safe(self, expression: JavaObject, values: dict[str, JavaObject], owner: str) -> JavaObject:
        """The same for an expression that was analysed without `with_guards`, which explains `owner`."""
        placed = self._placed(expression, values)
        with accepted():
            return placed if is_harmless(placed) else with_guards(self._catalyst, placed, owner)


def _without_dead(frame: DataFrame, stream: str, action: str) -> DataFrame:
    """The records of a stream that parse, which are the only ones that a function of batches may see.

    Raises:
        UnsupportedQuery: malformed records are to be kept, which the rows of a function have no column for.
    """
    if action != DROP:
        raise UnsupportedQuery(
            f"A function of batches over {stream} would see records that do not parse.",
            "Leave these out: TBLPROPERTIES ('malformed' = 'drop').",
        )
    return frame.where(F.col(MALFORMED).isNull()).drop(MALFORMED)


def _padded(frame: DataFrame, names: list[str], kinds: dict[str, DataType]) -> DataFrame:
    """The frame with all columns; those that it does not have are NULL."""
    own = set(frame.columns)
    return frame.selectExpr(  # texts, because a column takes PySpark many calls to the JVM
        "stream", *(name if name in own else f"CAST(NULL AS {sql_type(kinds[name])}) AS {name}" for name in names)
    )
