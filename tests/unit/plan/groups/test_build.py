"""Plans: equal parts of different queries exist once, for any order of queries; ids never change."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from kit.inputs.cases import EVERYTHING, query_set, random_case
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, Expression, Foreign, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan, needed_columns, needed_foreign, presence_filter

K, V, F, FLAG = Column("k", "string"), Column("v", "int"), Column("f", "double"), Column("flag", "boolean")
MINUTE = Sliding(60_000_000, 60_000_000)
COUNT = Aggregate("count", None, None, "bigint")
OVERFLOWING = Call("add", (V, literal(1, "int")), "int")


def query(
    name: str = "q", aggregates: tuple[Aggregate, ...] = (COUNT,), keys: tuple[Expression, ...] = (K,),
    window: Sliding = MINUTE, delay_us: int = 0, where: Expression | None = None, **more: Any,
) -> Query:  # fmt: skip
    output = tuple(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates))
    return Query(name=name, stream="s", event_time="ts", delay_us=delay_us, window=window, keys=keys,
                 aggregates=aggregates, output=output, where=where, **more)  # fmt: skip


def test_equal_measures_of_different_queries_exist_once() -> None:
    total, mean = Aggregate("sum", F, None, "double"), Aggregate("avg", F, None, "double")
    (group,) = build_plan([query("a", (total, COUNT)), query("b", (mean,), window=Sliding(10, 10))]).groups
    assert [measure.kind for measure in group.measures] == ["count", "sum", "count"]
    a, b = group.queries
    assert a.measures == ((1, 2), (0,))
    assert b.measures == ((1, 2),)
    assert a.presence == b.presence == 0
    assert group.windows == (Sliding(10, 10), MINUTE)


def test_a_filter_or_a_type_apart_makes_another_measure() -> None:
    parts = (
        Aggregate("sum", F, None, "double"),
        Aggregate("sum", F, FLAG, "double"),
        Aggregate("sum", V, None, "bigint"),
    )
    (group,) = build_plan([query("a", parts)]).groups
    assert [measure.kind for measure in group.measures].count("sum") == 3
    assert len({measure.id for measure in group.measures}) == len(group.measures)


def test_queries_share_a_group_with_the_same_stream_time_and_key_only() -> None:
    queries = [query("a"), query("b", keys=()), query("c", keys=(V,)), query("d", delay_us=5, where=FLAG)]
    plan = build_plan(queries)
    assert [[found.query.name for found in group.queries] for group in plan.groups] == [["a", "d"], ["b"], ["c"]]
    assert plan.groups[0].delays_us == (0, 5)
    assert [found.delay for found in plan.groups[0].queries] == [0, 1]
    assert plan.of_query("c")[0] is plan.groups[2]
    with pytest.raises(KeyError):
        plan.of_query("nobody")


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_queries_changes_nothing(seed: int) -> None:
    dice = random.Random(seed)
    queries = query_set(dice, 6, EVERYTHING)
    plan = build_plan(queries)
    for _ in range(5):
        dice.shuffle(queries)
        assert build_plan(queries) == plan
        assert build_plan(queries).id == plan.id


def test_a_name_used_twice_is_refused() -> None:
    with pytest.raises(QueryTypeError, match="'q' is used twice"):
        build_plan([query(), query()])


def test_a_query_is_present_where_it_says_and_nothing_raises() -> None:
    assert presence_filter(query()) is None
    assert presence_filter(query(where=FLAG)) is FLAG
    ran = Call("ran", (OVERFLOWING,), "boolean")
    summed = Aggregate("sum", OVERFLOWING, None, "bigint")
    assert presence_filter(query(aggregates=(summed,))) == ran
    assert presence_filter(query(keys=(OVERFLOWING,), aggregates=(summed,))) == ran  # each once
    assert presence_filter(query(aggregates=(summed,), where=FLAG)) == call("and", (FLAG, ran), "boolean")


def test_what_a_filter_keeps_away_does_not_raise() -> None:
    #   sum(v + 1) FILTER (WHERE flag): v + 1 is only evaluated where flag is true
    guarded = Aggregate("sum", OVERFLOWING, FLAG, "bigint")
    case = Call("case", (FLAG, OVERFLOWING), "int")
    assert presence_filter(query(aggregates=(guarded,))) == Call("ran", (case,), "boolean")
    risky = Call("gt", (OVERFLOWING, literal(0, "int")), "boolean")
    counted = Aggregate("count", None, risky, "bigint")
    assert presence_filter(query(aggregates=(counted,))) == Call("ran", (risky,), "boolean")


def test_a_conjunction_has_each_part_once() -> None:
    assert conjunction([]) is None
    assert conjunction([FLAG, FLAG]) is FLAG
    null = Call("isnull", (V,), "boolean")
    both = call("and", (FLAG, null), "boolean")
    assert conjunction([both, null, FLAG]) == both


def test_columns_and_foreign_expressions_that_the_read_must_keep() -> None:
    foreign = Foreign("abc", "soundex(k)", "string", ("k",))
    plan = build_plan([query("a", (Aggregate("sum", F, None, "double"),), where=FLAG), query("b", keys=(foreign, V))])
    assert needed_columns(plan, "s") == ("f", "flag", "k", "ts", "v", "x_abc")
    assert needed_columns(plan, "other") == ()
    assert needed_foreign(plan, "s") == (foreign,)


def test_ids_are_those_of_every_host_and_version() -> None:
    #   they name columns in stored segments and folders in caches: a change of an id loses what was stored
    plan = build_plan(
        [
            query("a", (Aggregate("avg", F, FLAG, "double"), COUNT)),
            query("b", (Aggregate("min", V, None, "int"),), keys=()),
        ]
    )
    assert [group.id for group in plan.groups] == GROUP_IDS
    assert [[measure.id for measure in group.measures] for group in plan.groups] == MEASURE_IDS
    everything = list(itertools.chain.from_iterable(MEASURE_IDS))
    assert len(set(everything)) == len(everything) - 1  # count(*) is in both


GROUP_IDS: list[str] = ["5e6b10ee6ee4", "e9b7a239e819"]
MEASURE_IDS: list[list[str]] = [
    ["c26f7aea72e0", "0d873a54eab9", "345f2e81efdf"],
    ["c26f7aea72e0", "ab21b95ae233", "40d228d49f29"],
]


def test_one_stream_has_one_event_time() -> None:
    first = random_case(1, 10, 1).queries[0]
    second = msgspec.structs.replace(first, name="other", event_time="somewhen")
    with pytest.raises(UnsupportedQuery, match="as the event time of"):
        build_plan([first, second])
