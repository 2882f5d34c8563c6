"""Reads the input of a query: a stream, or a stream derived by joins with batch relations, UNION ALL or `explode`.

A derived stream is a list of branches. A branch reads one stream, joins each of its batch relations by a LEFT OUTER
join, and computes the columns of the derived stream. An inner join is the same with a condition: a column of the join
is TRUE if the event found a partner. So events without a partner, like events that a filter below a union drops,
still move the watermark, as in Spark, and inner and left joins share one source. Elements of an array or map are
joined in the same way, with a column that is TRUE where there is an element.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyspark

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Source
from millpond.model.expressions import Column
from millpond.model.selection import AnyQuery
from millpond.model.stream import LABELLED_PARTITION, TAKEN, Derivation, Field, Order, Stream, inheriting
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.spark.analysis.aggregation_input import InputPlan, Step, read_input_plan
from millpond.spark.analysis.branch_paths import (
    BranchPath,
    GeneratedRows,
    JoinedRows,
    MappedRows,
    Partner,
    conditions_of,
    named,
    names_of,
    probe_of,
    resolved,
    unique_names,
)
from millpond.spark.analysis.derived_streams import (
    PLAIN,
    AnySide,
    Branch,
    Derived,
    Elements,
    FunctionRows,
    KeyedLookup,
    TableJoin,
    branch_text,
    is_harmless,
    keyed_columns,
    side_tree,
)
from millpond.spark.analysis.steps.step_boundaries import unseen_rows_error
from millpond.spark.catalyst.data_types import field_of
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    attributes_of,
    children,
    id_of,
    kind_of,
    outputs,
    references,
    text_of,
    timed_column,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import check_rows, check_stable, tree_of
from millpond.spark.sources.arrow_functions import MAPPED, batches_in
from millpond.spark.sources.declared_paths import DECLARED, STREAMS, as_written, reader_of, rows_path
from millpond.spark.sources.kafka import stand_in_path
from millpond.spark.sources.keyed_tables import ALIVE, KeyedPartner, keyed_in, lookup_keys

_OFFSET = "order.offset"
_NEVER_US = 1 << 62
_FIELDS = ("start", "end")


@dataclass(frozen=True)
class QueryInput:
    """The input of a query.

    - `names`: the stream's columns by the expression ids of this plan.
    - `computed`: columns that are an expression in some branch, so only Spark evaluates them.
    - `passes_filters`: the attribute that is TRUE for events that pass the filters, if there are filters below a union.
    - `markers`: for each join among the steps, the name of the column that is TRUE if there is a partner.
    - `probes`: for each join, the stream's side of its keys; for elements, an expression that raises if they do.
    - `times`: the column with the event time by the expression id of the attribute that has the watermark, if the
      event time is an expression.
    - `upstreams`: the queries whose rows the stream contains; `grids`: the tumbling windows of these rows, by column;
      `nullable_times`: their times that may be NULL.
    """

    stream: Stream
    names: dict[int, str]
    derived: Derived | None = None
    computed: frozenset[str] = frozenset()
    passes_filters: JavaObject | None = None
    markers: dict[int, str] = field(default_factory=dict)
    probes: dict[int, list[JavaObject]] = field(default_factory=dict)
    times: dict[int, str] = field(default_factory=dict)
    upstreams: tuple[AnyQuery, ...] = ()
    grids: Mapping[str, Sliding] = field(default_factory=dict)
    nullable_times: frozenset[str] = frozenset()

    def bound(self, plan: InputPlan, node: JavaObject) -> Column | None:
        """Translate a bound of a window in the rows of another query; None for other nodes."""
        if not self.stream.upstreams:
            return None
        if kind_of(node) == "PreciseTimestampConversion":  # window_time: see `extract.Reader._field`
            end = self.bound(plan, children(children(node.child())[0])[0]) if children(node.child()) else None
            return Column(f"{end.name[:-4]}.time", "timestamp") if end and end.name.endswith(".end") else None
        if kind_of(node) != "GetStructField":
            return None
        whole = plan.unaliased(node.child())
        name = self.names.get(id_of(whole), "") if kind_of(whole) == "AttributeReference" else ""
        found = f"{name}.{_FIELDS[node.ordinal()]}" if type_of(whole) == WINDOW else ""
        return Column(found, "timestamp") if any(one.name == found for one in self.stream.columns) else None


def find_source(
    catalyst: Catalyst, plan: InputPlan, streams: Sequence[Stream], relation: str | None, *, timed: bool = True
) -> QueryInput:
    """The input stream of a plan, or a stream derived from such streams.

    A stream gets the name `relation`, or the name of the equal stream in `streams`, or else a name with its digest.
    `timed`: the query needs event times, so an event time that is an expression becomes a column of a derived stream.

    Raises:
        UnsupportedQuery: a batch relation, or a condition, has no identity that survives a restart.
        QueryTypeError: two columns of a union have the same name, or an input is not a stream.
    """
    time = _event_time(catalyst, plan) if timed else None
    if kind_of(plan.leaf) in STREAMS and not any(step.makes_rows for step in plan.steps):
        known = next((stream for stream in streams if stream.name == relation), None)
        stream = known or named_stream(plan.leaf, streams)
        if time is None or kind_of(time) == "AttributeReference" or stream.upstreams:
            return QueryInput(stream, {column.id: column.name for column in attributes_of(plan.leaf)})
    return _Deriver(catalyst, plan, streams, time).query_input()


def _event_time(catalyst: Catalyst, plan: InputPlan) -> JavaObject | None:
    """The event time, over the columns of the plan's leaf and of its joins; None without a watermark."""
    if plan.watermark is None:
        return timed_column(outputs(plan.leaf))
    return resolved(catalyst, plan.watermark.time, plan.layers[plan.watermark.depth :])


def stream_of(leaf: JavaObject) -> Stream:
    """The stream that a streaming relation reads, without a name and with its path as the user wrote it."""
    format_, given = reader_of(leaf)
    options = as_written(given)
    columns = (column for column in attributes_of(leaf) if not column.hidden)
    fields = tuple(field_of(column.name, column.type, column.metadata) for column in columns)
    return Stream("", fields, Source(format_.lower(), tuple(sorted(options.items()))))


def same_source(left: Stream, right: Stream) -> bool:
    """Whether two streams are equal except for their names; the case of option names is ignored, as in Spark."""
    if left.source is None or right.source is None or left.columns != right.columns:
        return False
    return left.source.format == right.source.format and _options(left.source) == _options(right.source)


def _options(source: Source) -> dict[str, str]:
    return {key.lower(): value for key, value in source.options}


def named_stream(leaf: JavaObject, streams: Sequence[Stream]) -> Stream:
    """The stream in `streams` that a streaming relation reads, or else a stream with a name made from its digest.

    Of several streams with the same source, it is the one whose frame it is, otherwise the first.

    Raises:
        UnsupportedQuery: it is read from Kafka, and equals none of them.
    """
    stream, name = stream_of(leaf), reader_of(leaf)[1].get(DECLARED)
    path = _options(stream.source).get("path", "") if stream.source else ""
    known = next((other for other in streams if other.upstreams and path == rows_path(other.name)), None)
    known = known or next((other for other in streams if path and path == stand_in_path(other)), None)
    equal = [other for other in streams if same_source(other, stream)]
    known = known or next((other for other in equal if other.name == name), None) or next(iter(equal), None)
    if known is not None:
        return known
    if stream.source is not None and stream.source.has_topics:
        raise UnsupportedQuery(
            "A DataFrame of readStream with the format kafka cannot be a query, because it does not declare how values "
            "are parsed, and names its broker.",
            """Declare it with pond.load("CREATE TABLE tx (…) USING kafka OPTIONS (subscribe '…', format 'json')"), """
            """and query the DataFrame pond.stream("tx").""",
        )
    digest = hashlib.sha256(msgspec.json.encode([stream.source, stream.columns])).hexdigest()[:8]
    return msgspec.structs.replace(stream, name=f"stream_{digest}")


class _Deriver:
    """Builds the `Derived` for the input of an aggregation."""

    def __init__(
        self, catalyst: Catalyst, input_plan: InputPlan, streams: Sequence[Stream], time: JavaObject | None
    ) -> None:
        self._catalyst = catalyst
        self._time = time
        self._input_plan = input_plan
        self._streams = streams

    def query_input(self) -> QueryInput:
        input_plan = self._input_plan
        partners = self._partners(input_plan)
        lower = self._ways(input_plan.leaf)
        paths = [self._extended(path, input_plan, partners, filtered=False) for path in lower]
        read = zip(attributes_of(input_plan.leaf), outputs(input_plan.leaf), strict=True)
        columns = [(column.name, attribute) for column, attribute in read if not column.hidden]
        markers = {index: f"{partner.prefix}{number}" for number, (index, partner) in enumerate(partners.items(), 1)}
        for index, partner in partners.items():
            if not (isinstance(partner, Partner) and partner.existence):
                columns += [(f"{markers[index]}.{name}", column) for name, column in named(partner)]
            columns.append((markers[index], partner.marker))
        time, times = self._time_column(columns)
        columns += [(name, self._time) for name in times.values()]
        names = [name for name, _ in columns]
        twice = sorted({name for name in [*names, TAKEN] if [*names, TAKEN].count(name) > 1})
        if twice:
            raise QueryTypeError(f"Two columns of a union are called {twice[0]}.", "Give one another name with AS.")
        column_maps: list[dict[str, JavaObject]] = []
        for path, way in zip(paths, lower, strict=True):
            column_maps.append(
                {name: self._over_names(path, resolved(self._catalyst, column, way.layers)) for name, column in columns}
            )
        for branch in column_maps:
            if time is not None and not is_harmless(branch[time]):
                branch[time] = self._catalyst.tried(branch[time])
        passes_filters = None
        if any(path.filters for path in paths):
            passes_filters = self._catalyst.boolean(TAKEN)
            columns.append((TAKEN, passes_filters))
            for path, branch in zip(paths, column_maps, strict=True):
                branch[TAKEN] = self._over_names(path, self._catalyst.every(path.filters))
        bases = [self._base(path) for path in paths]
        fields = [Field(name, type_of(column)) for name, column in columns]
        order = self._order(bases, paths, column_maps, fields)
        sides = [self._sides(path) for path in paths]
        computed_times = (time if time is not None and kind_of(own[time]) not in PLAIN else None for own in column_maps)
        branches = tuple(map(Branch, bases, sides, column_maps, computed_times))
        stream = self._stream(branches, tuple(fields), order)
        computed = {name for branch in column_maps for name, column in branch.items() if kind_of(column) not in PLAIN}
        probes = {index: self._probes(input_plan.steps[index], partner) for index, partner in partners.items()}
        names_by_id = {id_of(column): name for name, column in columns if name not in times.values()}
        derived = Derived(stream, branches)
        return QueryInput(
            stream, names_by_id, derived, frozenset(computed - {time}), passes_filters, markers, probes, times
        )

    def _time_column(self, columns: list[tuple[str, JavaObject]]) -> tuple[str | None, dict[int, str]]:
        """The name of the column with the event time, and `QueryInput.times` if it is not one of `columns` yet."""
        if self._time is None:
            return None, {}
        if kind_of(self._time) == "AttributeReference":
            return next((name for name, column in columns if id_of(column) == id_of(self._time)), None), {}
        assert self._input_plan.watermark is not None  # because the time is an expression
        attribute = self._input_plan.watermark.time
        name, taken = str(attribute.name()), {name for name, _ in columns}
        name = f"time.{name}" if name in taken else name
        return name, {id_of(attribute): name}

    def _ways(self, leaf: JavaObject) -> list[BranchPath]:
        """The paths from a stream, a function's rows or a union down to each stream."""
        if kind_of(leaf) in STREAMS:
            return [BranchPath(leaf, [], [], [], names_of(leaf, []))]
        if kind_of(leaf) == MAPPED:
            batches, attributes = batches_in(leaf), outputs(leaf)
            mapped = MappedRows(batches, attributes, unique_names(attributes), self._catalyst.boolean("ran"))
            joins: list[tuple[JoinedRows, JavaObject]] = [(mapped, None)]
            # This raises if the function raised, so such a row is dead.
            ran = self._catalyst.present(mapped.marker)
            return [BranchPath(leaf.child(), [], joins, [ran], names_of(leaf.child(), joins))]
        if kind_of(leaf) != "Union":
            raise unseen_rows_error("united")
        ways = []
        for child in children(leaf):
            if not child.isStreaming():
                raise QueryTypeError("A branch of the union is no stream.", "Write its rows where the stream is read.")
            pairs = zip(outputs(leaf), outputs(child), strict=True)
            layer = [self._catalyst.alias(source, str(column.name()), column) for column, source in pairs]
            ways += [path._replace(layers=[layer, *path.layers]) for path in self._branches(child)]
        return ways

    def _branches(self, node: JavaObject) -> list[BranchPath]:
        input_plan = read_input_plan(self._catalyst, node, emitted=self._input_plan.emitted)
        if input_plan.windows:
            raise UnsupportedQuery("A window below a union is not supported.", "Group the union by the window.")
        partners = self._partners(input_plan)
        return [self._extended(path, input_plan, partners, filtered=True) for path in self._ways(input_plan.leaf)]

    def _base(self, path: BranchPath) -> Stream:
        """The base stream of a branch."""
        first = path.joins[0][0] if path.joins else None
        if isinstance(first, MappedRows):
            return next(stream for stream in self._streams if stream.name == first.batches.stream)
        return named_stream(path.leaf, self._streams)

    def _extended(
        self, path: BranchPath, input_plan: InputPlan, partners: dict[int, JoinedRows], *, filtered: bool
    ) -> BranchPath:
        """The path extended by the steps above it; `filtered`: the conditions of these steps are included."""
        joins, filters = list(path.joins), list(path.filters)
        for index, step in enumerate(input_plan.steps):
            layers = input_plan.layers[step.depth :] + path.layers
            if index in partners:
                partner = partners[index]
                assert not isinstance(partner, MappedRows)
                if isinstance(partner, GeneratedRows):
                    joins.append((partner, resolved(self._catalyst, partner.generator.child(), layers)))
                elif isinstance(partner, KeyedPartner):
                    joins.append((partner, self._lookup_keys(step, partner, layers)))
                    # if this raises, the event is dead
                    filters += [self._catalyst.present(partner.attributes[-1])] if partner.can_dead_letter else []
                else:
                    parts = [self._met(part, partner, layers) for part in conditions_of(step)]
                    joins.append((partner, self._catalyst.every(parts)))
                if filtered:
                    probes = self._probes(step, partner)
                    attempts = [self._catalyst.attempt(resolved(self._catalyst, probe, layers)) for probe in probes]
                    filters += [self._catalyst.not_null(attempt) for attempt in attempts]
                    filters += [self._catalyst.not_null(partner.marker)] if step.inner else []
            elif filtered:
                filters.append(resolved(self._catalyst, step.condition, layers))
        return BranchPath(path.leaf, input_plan.layers + path.layers, joins, filters, names_of(path.leaf, joins))

    def _partners(self, input_plan: InputPlan) -> dict[int, JoinedRows]:
        partners: dict[int, JoinedRows] = {}
        for index, step in enumerate(input_plan.steps):
            if step.side is not None:
                for part in conditions_of(step):
                    check_stable(self._catalyst, part)
                attributes, marker = outputs(step.side), step.exists or self._catalyst.boolean("partner")
                if (keyed := keyed_in(step.side)) is None:
                    existence = step.exists is not None
                    partners[index] = Partner(step.side, attributes, unique_names(attributes), marker, existence)
                else:
                    columns = [*attributes, self._catalyst.boolean(ALIVE)]
                    partners[index] = KeyedPartner(keyed[0], (*keyed[1], ALIVE), columns, unique_names(columns), marker)
            elif step.generate is not None:
                (generator, attributes, text), marker = step.generate, self._catalyst.boolean("element")
                names = unique_names(attributes)
                partners[index] = GeneratedRows(generator, attributes, names, marker, text=text)
        return partners

    def _probes(self, step: Step, met: JoinedRows) -> list[JavaObject]:
        """The expressions that decide whether an event has a partner or elements, and that may raise."""
        if isinstance(met, MappedRows):
            return []
        if isinstance(met, GeneratedRows):
            array = met.generator.child()
            return [] if is_harmless(array) else [self._catalyst.make("Size", array, False)]
        return [probe for part in conditions_of(step) if (probe := probe_of(part, met))]

    def _lookup_keys(self, step: Step, met: KeyedPartner, layers: list[list[JavaObject]]) -> list[JavaObject]:
        """The key by which an event looks up a row of a keyed table; if it raises, the event has no partner."""
        columns = dict(zip(map(id_of, met.attributes), met.columns, strict=True))
        equal: dict[str, list[JavaObject]] = {}
        parts = conditions_of(step)
        for part in parts:
            probe = probe_of(part, met) if kind_of(part) == "EqualTo" else None
            own = next((side for side in children(part) if probe is not None and not side.equals(probe)), None)
            if own is not None and kind_of(own) == "AttributeReference":
                key = resolved(self._catalyst, probe, layers)
                key = key if kind_of(key) in PLAIN else self._catalyst.tried(key)
                equal.setdefault(columns[id_of(own)], []).append(key)
        return lookup_keys(met.keyed, equal, len(parts) > sum(map(len, equal.values())))

    def _met(self, part: JavaObject, partner: Partner, layers: list[list[JavaObject]]) -> JavaObject:
        """A part of a join's condition, changed so that an event for which it raises has no partner."""
        own = {id_of(column) for column in partner.attributes}
        if {id_of(column) for column in references(part)} <= own:
            return part
        probe = probe_of(part, partner)
        if probe is None:
            return self._catalyst.tried(resolved(self._catalyst, part, layers))
        # Spark runs only a bare equality as a hash join. The stream's side comes first, so that equal joins become one.
        key = resolved(self._catalyst, probe, layers)
        key = key if kind_of(key) in PLAIN else self._catalyst.tried(key)
        return self._catalyst.rebuilt(part, [key, *(side for side in children(part) if not side.equals(probe))])

    def _over_names(self, path: BranchPath, expression: JavaObject) -> JavaObject:
        """The expression over attributes that have the names of `Branch.columns`."""
        check_stable(self._catalyst, expression)
        names, used = path.names, {id_of(column): column for column in references(expression)}
        if used.keys() - names.keys() or not expression.deterministic():
            raise UnsupportedQuery(
                f"`{text_of(expression)}` reads a hidden column of its source, or is not deterministic.",
                "Use the columns of the stream.",
            )
        if kind_of(expression) == "AttributeReference":
            return self._catalyst.named(expression, names[id_of(expression)])
        layer = [
            self._catalyst.alias(self._catalyst.named(column, names[identity]), names[identity], column)
            for identity, column in used.items()
        ]
        return self._catalyst.substitute(expression, layer)

    def _sides(self, path: BranchPath) -> tuple[AnySide, ...]:
        sides: list[AnySide] = []
        for number, (met, expression) in enumerate(path.joins, 1):
            name = f"{met.prefix}{number}"
            names = tuple(f"{name}.{own}" for own in met.names)
            if isinstance(met, MappedRows):
                sides.append(FunctionRows(name, names, met.batches))
                continue
            if isinstance(met, KeyedPartner):
                keys = tuple(self._over_names(path, key) for key in expression)
                sides.append(KeyedLookup(name, met.keyed, names, met.columns, keys))
                continue
            over = self._over_names(path, expression)
            if isinstance(met, GeneratedRows):
                sides.append(Elements(name, kind_of(met.generator), names, over, met.text))
            else:
                sides.append(TableJoin(name, met.plan, names, over, met.existence))
        check_rows(self._catalyst, [side.array for side in sides if isinstance(side, Elements)])
        return tuple(sides)

    def _order(
        self, bases: list[Stream], paths: list[BranchPath], made: list[dict[str, JavaObject]], fields: list[Field]
    ) -> Order | None:
        """The order of the derived stream's events; the columns of this order are added to `made` and `fields`."""
        orders = [base.order for base in bases]
        known = {base.name: base for base in bases}
        if len(known) == 1 and orders[0] is None:
            return None
        if len(paths) == 1 and not paths[0].joins:
            return orders[0]  # the events of one stream as they are, with a column for their time
        if self._input_plan.watermark is not None and not any(orders):
            return None  # there is one watermark over the output of the union
        ordered = all(orders)
        fields.append(Field(LABELLED_PARTITION, "string"))
        if ordered:
            fields.append(Field(_OFFSET, "bigint"))
        for base, path, branch in zip(bases, paths, made, strict=True):
            first = path.joins[0][0] if path.joins else None
            given = first.attributes if isinstance(first, MappedRows) else outputs(path.leaf)
            own = {str(column.name()): column for column in given}
            lost = set() if base.order is None else {*base.order.columns} - own.keys()
            if lost:
                lacking = ", ".join(sorted(lost))
                raise UnsupportedQuery(f"The function's rows lack {lacking}, the order of {base.name}.", "Keep them.")
            branch[LABELLED_PARTITION] = self._catalyst.literal(base.name)
            if base.order is not None:
                text = own[base.order.partition]
                label = [self._catalyst.literal(":"), self._catalyst.literal(base.name), text]
                branch[LABELLED_PARTITION] = self._over_names(path, self._catalyst.make("ConcatWs", label))
                if ordered and base.order.offset is not None:
                    branch[_OFFSET] = self._over_names(path, own[base.order.offset])
        expected = [
            name
            for base in known.values()
            for name in (
                [f"{base.name}:{partition}" for partition in base.order.partitions] if base.order else [base.name]
            )
        ]
        patience = max(order.idle_after_us if order else _NEVER_US for order in orders)
        return Order(LABELLED_PARTITION, _OFFSET if ordered else None, tuple(expected), patience)

    def _stream(self, branches: tuple[Branch, ...], fields: tuple[Field, ...], order: Order | None) -> Stream:
        def label(column: JavaObject) -> object:
            return str(column.name())

        trees = [
            [
                json.loads(msgspec.json.encode(branch.base.identity)),
                [side_tree(self._catalyst, side) for side in branch.sides],
                [[name, tree_of(self._catalyst, column, label)] for name, column in branch.columns.items()],
            ]
            for branch in branches
        ]
        zone = self._catalyst.spark.conf.get("spark.sql.session.timeZone")
        digest = hashlib.sha256(json.dumps([trees, zone, pyspark.__version__]).encode()).hexdigest()[:16]
        reads = tuple(dict.fromkeys(branch.base.name for branch in branches))
        ahead = [base.max_ahead_us for branch in branches if (base := branch.base).max_ahead_us is not None]
        text = " UNION ALL ".join(branch_text(branch) for branch in branches)
        plain = [
            {
                name for name, column in branch.columns.items()
                if kind_of(column) == "AttributeReference" and str(column.name()) == name
            }
            for branch in branches
        ]
        return inheriting(
            Stream(
                f"{'_'.join(reads)}_{digest[:8]}", fields, None, order, min(ahead, default=None),
                Derivation(text, reads, digest), keyed=keyed_columns(branches) or msgspec.UNSET,
            ),
            [branch.base for branch in branches], frozenset.intersection(*map(frozenset, plain)),
        )  # fmt: skip
