"""The allowed changes, their effect on the catalog, and their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, aggregate_of
from kit.judges.answers import table_of
from kit.simulator.changing_pond import ChangingPond
from millpond.clock import utc
from millpond.errors import ChangeRefused, CorruptError
from millpond.log.manifest import Fed, Manifest
from millpond.model.change_history import ALWAYS, StoredQuery
from millpond.model.expressions import Column, Foreign, Literal, Parameter, call, literal
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.model.stream import Derivation
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Session, Sliding, Window
from millpond.plan.upstream.parameter_feeds import feeds_of
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.reconfigure import validate
from millpond.reconfigure.apply import lifts_quarantine
from millpond.reconfigure.catalog import applied, complete_from, history, in_force
from millpond.reconfigure.changes import (
    Add,
    Alter,
    Drop,
    End,
    Feed,
    Pause,
    Promote,
    SetParameter,
    Shadow,
    change_of,
    change_text,
    kind_name,
)
from millpond.reconfigure.hand_over import hand_over_text
from millpond.reconfigure.lifecycle import MOVES, check_compared, current, query_of, state_of
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.inputs.parameter_feeds import fed_values

COUNT = Query(
    "count", STREAM.name, "ts", 0, Sliding(10 * SECOND, 10 * SECOND), (Column("g", "bigint"),),
    (aggregate_of("count", None),), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip
EACH = Selection("each", STREAM.name, (Named("k", Column("k", "string")),))
SIDE = Side(STREAM.name, "ts", 0, (Column("k", "string"),), (Column("k", "string"),))
BOTH = Join("both", SIDE, SIDE, "inner", Within(0, SECOND), (Named("k", Column("left:0", "string")),))


def pond_of(*queries: Any, **left: Any) -> KnownPond:
    streams = [STREAM, *(chained_stream(COUNT) for query in queries if query.name == "reader")]
    return KnownPond(PondSpec.of(tuple(streams), queries, 2), Manifest())


def after(pond: KnownPond, *changes: Any) -> KnownPond:
    for n, change in enumerate(changes, 1):
        pond = pond._replace(spec=applied(pond.spec, n, change(pond)))
    return pond


def test_the_table_of_moves_is_what_is_allowed() -> None:
    make = {
        "add": lambda pond: validate.add(pond, COUNT),
        "alter": lambda pond: validate.alter(pond, replace(COUNT, text="other")),
        "shadow": lambda pond: validate.shadow(pond, replace(COUNT, text="other")),
        **{
            kind: (lambda pond, kind=kind: getattr(validate, kind)(pond, "count"))
            for kind in ("drop", "pause", "resume", "promote", "rollback", "discard")
        },
    }  # fmt: skip
    states = {"absent": (), "running": (make["add"],)}
    states |= {"paused": (make["add"], make["pause"]), "shadowed": (make["add"], make["shadow"])}
    states |= {"promoted": (make["add"], make["shadow"], make["promote"])}
    for state, way in states.items():
        pond = after(pond_of(EACH), *way)
        assert state_of(pond.spec, "count") == state
        for kind, change in make.items():
            if (state, kind) in MOVES:
                assert state_of(after(pond, change).spec, "count") == MOVES[state, kind]
                continue
            with pytest.raises(ChangeRefused) as refused:
                change(pond)
            assert refused.value.cure, (state, kind)


def tried(*changes: str) -> KnownPond:
    """A pond whose query has a shadow, after more changes."""
    other = replace(COUNT, text="other")
    more = [lambda pond, kind=kind: getattr(validate, kind)(pond, "count") for kind in changes]
    return after(pond_of(COUNT, EACH), lambda pond: validate.shadow(pond, other), *more)


def test_a_rollback_takes_a_promote_back_and_does_nothing_else() -> None:
    for changes in ((), ("promote", "rollback")):
        with pytest.raises(ChangeRefused, match="shadowed: it cannot be rolled back") as refused:
            validate.rollback(tried(*changes), "count")
        assert "Promote its shadow first" in refused.value.cure
    promoted = tried("promote")
    assert query_of(promoted.spec, "count").text == "other"
    with pytest.raises(ChangeRefused, match="promoted") as refused:
        validate.promote(promoted, "count")
    assert "Roll back" in refused.value.cure
    assert from_json(to_json(promoted.spec)) == promoted.spec
    again = tried("promote", "rollback")
    assert query_of(again.spec, "count").text == COUNT.text
    assert state_of(tried("promote", "rollback", "promote").spec, "count") == "promoted"
    for kind in ("discard", "drop"):
        assert not tried("promote", kind).spec.effects.promoted
    with pytest.raises(ChangeRefused, match="running: it cannot be rolled back"):
        validate.rollback(tried("promote", "discard"), "count")


def test_a_rollback_is_listed_as_one_and_older_records_keep_their_meaning() -> None:
    back = validate.rollback(tried("promote"), "count", "ann")
    assert change_text(back) == '{"kind":"promote","name":"count","who":"ann","back":true}'
    assert change_of(change_text(back)) == back
    assert (kind_name(back), kind_name(Promote("count")), kind_name(Drop("count"))) == ("rollback", "promote", "drop")
    stored = change_of('{"kind":"promote","name":"count"}')
    assert stored == Promote("count")
    twice = after(tried("promote"), lambda _: stored)
    assert state_of(twice.spec, "count") == "shadowed" and query_of(twice.spec, "count").text == COUNT.text


def test_only_a_query_with_a_shadow_is_compared() -> None:
    for changes in ((), ("promote",)):
        check_compared(tried(*changes).spec, "count")
    for pond, cure in ((tried("discard"), "Give it a shadow first."), (after(pond_of(COUNT), _paused), "Resume it")):
        with pytest.raises(ChangeRefused, match="'count' has no shadow") as refused:
            check_compared(pond.spec, "count")
        assert refused.value.cure.startswith(cure)
    with pytest.raises(ChangeRefused, match="There is no query 'cuont'") as refused:
        check_compared(tried().spec, "cuont")
    assert refused.value.cure.startswith("Did you mean count? Use one of count")


@pytest.mark.parametrize(
    ("kind", "comparable"),
    [("map<string,int>", False), ("struct<a:int,b:map<string,int>>", False), ("array<binary>", False),
     ("binary", False), ("struct<binary:int,map:array<string>>", True), ("bigint", True)],
)  # fmt: skip
def test_rows_that_json_has_no_text_for_are_not_compared(kind: str, comparable: bool) -> None:
    each = replace(EACH, output=(*EACH.output, Named("m", Foreign("m", "m", kind))))
    pond = pond_of(each)
    if comparable:
        assert validate.shadow(pond, each).name == "each"
        return
    with pytest.raises(ChangeRefused, match="cannot represent m of each") as refused:
        validate.shadow(pond, each)
    assert "base64" in refused.value.cure


def _paused(pond: KnownPond) -> Pause:
    return validate.pause(pond, "count")


def _added(**fields: int) -> PondSpec:
    change = Add(StoredQuery.of(COUNT), since_us=90 * SECOND, **fields)
    return applied(pond_of(EACH).spec, 1, change)


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"backfill_us": ALWAYS}, None),
        ({"backfill_us": 30 * SECOND}, 30 * SECOND),
        ({"recall_us": 40 * SECOND}, 40 * SECOND),
        ({"incomplete_us": 50 * SECOND}, 90 * SECOND),
        ({"recall_us": 40 * SECOND, "incomplete_us": 30 * SECOND}, 40 * SECOND),
    ],
)
def test_a_query_stays_whole_from_where_it_was_when_its_early_version_has_ended(
    fields: dict[str, int], whole: int | None
) -> None:
    early = _added(**fields)
    ended = applied(early, 2, End("count@0"))
    other = StoredQuery.of(replace(COUNT, keys=(), text="other"))
    until = {"since_us": 120 * SECOND, "until_us": 120 * SECOND}
    handed = applied(ended, 3, Alter(other, **until))
    split = applied(ended, 3, Shadow(other, since_us=120 * SECOND))
    specs = early, ended, handed, applied(handed, 4, End("count@1")), split, applied(split, 4, End("count@1"))
    assert [complete_from(spec, "count") for spec in specs] == [whole] * len(specs)
    cut = applied(ended, 3, Alter(other, since_us=120 * SECOND))
    assert complete_from(cut, "count") == 120 * SECOND
    again = applied(applied(ended, 3, Drop("count")), 4, Add(StoredQuery.of(COUNT), since_us=200 * SECOND))
    assert complete_from(again, "count") == 200 * SECOND
    assert from_json(to_json(ended)) == ended


@pytest.mark.parametrize("window", [Sliding(20 * SECOND, 10 * SECOND), Session(5 * SECOND)])
def test_an_altered_query_stays_complete_from_where_it_was(window: Window) -> None:
    spec = applied(pond_of(EACH).spec, 1, Add(StoredQuery.of(COUNT), since_us=90 * SECOND))
    closed = replace(Manifest(), max_time={STREAM.name: {"*": 300 * SECOND}}, epoch_n=2)  # all windows before 300 s
    alter = validate.alter(KnownPond(spec, closed), replace(COUNT, window=window))
    assert isinstance(alter.since_us, int) and alter.until_us == alter.since_us
    altered = applied(spec, 3, alter)
    later = replace(closed, max_time={STREAM.name: {"*": 400 * SECOND}})
    assert validate.ends(altered, later) == [End("count@1")]
    ended = applied(altered, 4, End("count@1"))
    assert [complete_from(spec, "count") for spec in (spec, altered, ended)] == [90 * SECOND] * 3
    text = f"windows that start before {utc(alter.since_us)} are emitted as before the change"
    assert hand_over_text(alter).startswith(text)
    assert ("each event is in a session of one version" in hand_over_text(alter)) == isinstance(window, Session)
    assert hand_over_text(validate.alter(KnownPond(spec, closed), replace(COUNT, text="other"))) == ""


@pytest.mark.parametrize("fields", [{"backfill_us": ALWAYS}, {"recall_us": 40 * SECOND}])
def test_an_early_version_does_not_end_before_its_events_were_recalled(fields: dict[str, int]) -> None:
    spec = applied(pond_of(EACH).spec, 5, Add(StoredQuery.of(COUNT), since_us=90 * SECOND, **fields))
    closed = replace(Manifest(), max_time={STREAM.name: {"*": 300 * SECOND}}, epoch_n=4)
    assert validate.ends(spec, closed) == []
    assert validate.ends(spec, replace(closed, epoch_n=6)) == [End("count@0")]


def test_a_spec_with_changes_is_stored_whole() -> None:
    pond = after(
        pond_of(COUNT), lambda pond: validate.add(pond, EACH), lambda pond: validate.pause(pond, "count"),
        lambda pond: validate.param(pond, "limit", 5), lambda pond: validate.drop(pond, "each"),
    )  # fmt: skip
    assert from_json(to_json(pond.spec)) == pond.spec
    assert pond.spec.effects.paused == ("count",) and pond.spec.effects.parameters == {"limit": literal(5, "bigint")}
    assert [one.stored.query.name for one in pond.spec.effects.leaving] == ["each"]
    assert "changed" not in to_json(PondSpec.of((STREAM,), [COUNT], 2))


def test_the_wire_form_of_changes_is_pinned() -> None:
    pond = pond_of(COUNT)
    assert change_text(validate.drop(pond, "count", who="ann")) == '{"kind":"drop","name":"count","who":"ann"}'
    text = change_text(validate.param(pond, "limit", 5))
    assert text == '{"kind":"param","name":"limit","value":{"node":"literal","text":"5","type":"bigint"}}'
    pond = after(pond, lambda pond: validate.param(pond, "limit", 5))
    assert change_text(validate.unset(pond, "limit", "ann")) == '{"kind":"unset","name":"limit","who":"ann"}'
    added = validate.add(pond, EACH)
    assert change_text(added).startswith('{"kind":"add","asked":{"stateless":{"name":"each",')
    assert change_of(change_text(added)) == added
    assert change_of('{"kind":"map","of":"others"}') is None
    with pytest.raises(CorruptError):
        change_of('{"kind":"nothing"}')


def test_what_others_read_cannot_go() -> None:
    rows = chained_stream(COUNT)
    reader = Query("reader", rows.name, "w", 0, COUNT.window, (), COUNT.aggregates, COUNT.output)
    pond = pond_of(COUNT, reader)
    for kind in ("drop", "pause"):
        with pytest.raises(ChangeRefused, match="read by reader"):
            getattr(validate, kind)(pond, "count")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (COUNT, replace(EACH, name="count"), "another kind"),
        (COUNT, replace(COUNT, output=(Named("m", Column("agg:0", "bigint")),)), "other columns"),
        (COUNT, replace(COUNT, emit="update"), "updating results"),
        (replace(COUNT, serve=True), replace(COUNT, keys=()), "another key"),
        (BOTH, replace(BOTH, left=replace(BOTH.left, delay_us=9)), "match other events"),
    ],
)
def test_a_version_that_cannot_replace_the_query_is_refused(old: Any, new: Any, why: str) -> None:
    with pytest.raises(ChangeRefused, match=why):
        validate.alter(pond_of(old), new)


def test_what_does_not_leave_or_may_soon_be_of_another_version_has_no_readers() -> None:
    rows = chained_stream(COUNT)
    reader = Query("reader", rows.name, "w", 0, COUNT.window, (), COUNT.aggregates, COUNT.output)
    ways = {"paused": ("pause",), "shadowed": (), "promoted": ("promote",)}
    for state, changes in ways.items():
        pond = tried(*changes) if state != "paused" else after(pond_of(COUNT, EACH), _paused)
        with pytest.raises(ChangeRefused, match=f"the rows of count, which is {state}") as refused:
            validate.add(pond, reader, (rows,))
        assert "first" in refused.value.cure
    assert validate.add(pond_of(COUNT, EACH), reader, (rows,))


def test_a_version_whose_rows_do_not_say_which_are_the_newest_feeds_nothing() -> None:
    at = Named("at", Column("window.end", "timestamp"))
    timed = replace(COUNT, output=(*COUNT.output, at))
    newest = Column("agg:1", "timestamp")
    other = replace(
        timed, aggregates=(*COUNT.aggregates, aggregate_of("max", Column("ts", "timestamp"))),
        output=(*COUNT.output, Named("at", newest)),
    )  # fmt: skip
    pond = after(
        pond_of(timed, EACH), lambda pond: validate.param(pond, "most", 5),
        lambda pond: validate.shadow(pond, other), lambda pond: validate.feed(pond, "most", "count", "n"),
    )  # fmt: skip
    with pytest.raises(ChangeRefused, match="feed :most: it cannot be promoted"):
        validate.promote(pond, "count")


def judged(name: str, kind: str = "double") -> Selection:
    where = call("ge", (Column("x", kind), Parameter("limit", kind)), "boolean")
    return replace(EACH, name=name, where=where)


def test_parameters_keep_their_type_while_they_are_used_and_must_have_a_value() -> None:
    pond = after(pond_of(COUNT, judged("b"), judged("a")), lambda pond: validate.param(pond, "limit", 1.5))
    assert validate.param(pond, "limit", 2).value == literal(2.0, "double")
    for value, kind in (("two", "string"), (True, "boolean"), ([1.5], "array<double>")):
        with pytest.raises(ChangeRefused, match=f"of type {kind}, not of type double.* used by a, b") as refused:
            validate.param(pond, "limit", value)
        assert "drop what uses it" in refused.value.cure
    with pytest.raises(ChangeRefused, match="not a number"):
        validate.param(pond, "other", None)  # type: ignore[arg-type]
    with pytest.raises(ChangeRefused, match="not a number"):
        validate.param(pond, "other", 1 << 63)


def test_a_parameter_that_nothing_uses_takes_a_value_of_another_type() -> None:
    pond = after(pond_of(COUNT, EACH), lambda pond: validate.param(pond, "limit", "abc"))
    assert validate.param(pond, "limit", "5").value == literal("5", "string")
    pond = after(pond, lambda pond: validate.param(pond, "limit", 0.5))
    assert pond.spec.effects.parameters["limit"] == literal(0.5, "double")
    assert validate.param(pond, "limit", 2).value == literal(2.0, "double"), "its type, where the value fits"
    with pytest.raises(ChangeRefused, match="list of 0 values"):
        validate.param(pond, "limit", [])

    fed = applied(pond.spec, 3, Feed("limit", "count", "n"))
    with pytest.raises(ChangeRefused, match=r"used by the feed from count\.n"):
        validate.param(pond._replace(spec=fed), "limit", "abc")
    removed = applied(fed, 4, validate.unset(pond._replace(spec=fed), "limit"))
    assert (removed.effects.parameters, removed.effects.feeds) == ({}, {})
    with pytest.raises(ChangeRefused, match="There is no parameter limt") as refused:
        validate.unset(pond, "limt")
    assert "limit" in refused.value.cure
    hidden = after(pond, lambda pond: validate.shadow(pond, judged("each")))
    with pytest.raises(ChangeRefused, match="used by each@shadow"):
        validate.param(hidden, "limit", "abc")
    with pytest.raises(ChangeRefused, match="each@shadow uses the parameter limit"):
        validate.unset(hidden, "limit")


def test_a_feed_that_is_changed_keeps_the_value_in_force() -> None:
    timed = replace(COUNT, output=(Named("w", Column("window", WINDOW)), *COUNT.output))
    pond = after(pond_of(timed, EACH), lambda pond: validate.param(pond, "limit", 5))
    spec = applied(pond.spec, 3, Feed("limit", "count", "n"))
    by_rows = replace(pond.manifest, fed={"limit": Fed(4, msgspec.json.encode(literal(7, "bigint")).decode())})

    def value(spec: PondSpec) -> Literal:
        effects = spec.effects
        feeds = feeds_of(effects.feeds, effects.parameters, spec.all_queries)
        return (effects.parameters | fed_values(feeds, by_rows))["limit"]

    assert value(spec) == literal(7, "bigint")
    spec = applied(spec, 5, Feed("limit", "count", "n"))
    assert value(spec) == literal(7, "bigint"), "until rows say otherwise"
    spec = applied(spec, 6, SetParameter("limit", literal(9, "bigint")))
    assert value(spec) == literal(9, "bigint")
    assert value(applied(spec, 8, Feed("limit", "count", "n"))) == literal(9, "bigint"), "an earlier feed is past"


def test_a_query_that_was_analysed_with_another_type_of_a_parameter_is_refused() -> None:
    pond = after(pond_of(COUNT, EACH), lambda pond: validate.param(pond, "limit", 5))
    for change in (lambda: validate.add(pond, judged("new")), lambda: validate.shadow(pond, judged("each"))):
        with pytest.raises(ChangeRefused, match="limit is now of type bigint") as refused:
            change()
        assert "again" in refused.value.cure
    validate.add(pond, judged("new", "bigint"))


def row(second: float, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(field.name for field in STREAM.columns) | {"ts": int(second * SECOND), **more}


def test_a_stream_is_observed_while_its_times_are_not_requested(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [STREAM], [COUNT, EACH])
    pond.epoch({STREAM.name: [table_of([row(1, g=1)])]})
    pond.change(validate.drop(KnownPond(pond.spec, pond.manifest), "count"))
    assert not [one for one in pond.manifest.sections.values() if one.kind in ("segment", "keys")]
    pond.epoch({STREAM.name: [table_of([row(25, g=1)])]})
    pond = ChangingPond(tmp_path, [STREAM], None, token="next")
    change = validate.add(KnownPond(pond.spec, pond.manifest), COUNT)
    assert change.since_us == 25 * SECOND + 1
    pond.change(change)
    changes = list(history(pond.log, pond.manifest))
    assert [type(one.change).__name__ for one in changes] == ["Add", "Drop"]
    assert in_force(pond.manifest) == pond.spec and {one.name for one in current(pond.spec)} == {"count", "each"}


def test_windows_over_events_with_unknown_times_are_refused(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [STREAM], [EACH])
    pond.epoch({STREAM.name: [table_of([row(1)])]})
    with pytest.raises(ChangeRefused, match="before any query needed their times"):
        validate.add(KnownPond(pond.spec, pond.manifest), COUNT)


def test_unknown_times_are_limited_by_the_clock(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [STREAM], [COUNT])
    pond.epoch({STREAM.name: [table_of([row(7)])]})
    other = replace(STREAM, name="other", made_of=Derivation("other", (STREAM.name,), "digest"))
    query = replace(COUNT, name="later", stream="other", event_time="ts")
    sources = {"other": {STREAM.name: "another"}}
    for ahead, now, refused in ((9, 15, False), (9, 17, True), (None, 9, True), (9, None, True)):
        stream = replace(other, max_ahead_us=ahead and ahead * SECOND)
        known = KnownPond(pond.spec, pond.manifest, now and now * SECOND)
        if refused:
            with pytest.raises(ChangeRefused, match="before any query needed their times"):
                validate.add(known, query, [stream], time_sources=sources)
        else:
            assert validate.add(known, query, [stream], time_sources=sources).since_us == (now + ahead) * SECOND + 1
            with pytest.raises(ChangeRefused, match="before any query needed their times"):
                validate.add(known, query, [stream], time_sources=sources, backfill_us=0)


def test_joins_and_counts_begin_after_what_was_seen(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [STREAM], [COUNT])
    pond.epoch({STREAM.name: [table_of([row(7, g=1)])]})
    last = replace(COUNT, name="last", window=Counted(2, 1))
    for query in (BOTH, last):
        change = validate.add(KnownPond(pond.spec, pond.manifest), query)
        assert isinstance(change, Add) and change.since_us == 7 * SECOND + 1
        pond.change(change)
    pond.epoch({STREAM.name: [table_of([row(9, k="a"), row(9.5, k="a")])]})
    pond.change(validate.drop(KnownPond(pond.spec, pond.manifest), "both"))
    assert {one.group for one in pond.manifest.sections.values() if one.kind == "events"} <= {
        group.id for group in pond.plan.groups
    }


def test_what_raised_under_a_name_is_lifted_with_the_version_that_had_it() -> None:
    assert [name for name in ("a", "a@0", "a@1", "a@shadow", "ab") if lifts_quarantine(Drop("a"), name)] == [
        "a", "a@0", "a@1", "a@shadow",
    ]  # fmt: skip
    assert lifts_quarantine(Promote("a"), "a@shadow") and not lifts_quarantine(Pause("a"), "a")
