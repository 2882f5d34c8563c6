"""Trees that are loaded in one call, and the sizes of inlined plans: the same as with a call for each value."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kit.costs.jvm_calls import jvm_calls
from kit.inputs.examples import examples
from millpond.spark.catalyst.inlined_size import parts_of
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    delay_ms,
    expressions,
    id_of,
    items,
    kind_of,
    name_parts,
    nodes_of,
    references,
    span_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import _OMITTED, fields_of
from millpond.spark.driver_classes import catalyst_trees
from millpond.spark.driver_classes.catalyst_trees import TreeLoader, loader_of

TEXTS = [
    "SELECT id, id + 1 AS `a\x01b`, named_struct('x\x02', id) AS s, array(id, 2) AS l FROM range(3) WHERE id > 1",
    "SELECT id % 2 AS k, sum(id) AS s, max(struct(id, 'a')) AS m FROM range(9) GROUP BY ROLLUP (id % 2)",
    "SELECT a.id, (SELECT max(id) FROM range(4)) AS m FROM range(3) AS a LEFT JOIN range(2) AS b ON a.id = b.id",
    "WITH t AS (SELECT explode(sequence(0, id)) AS e FROM range(3)) SELECT e, rank() OVER (ORDER BY e) FROM t",
    "SELECT CAST('x' AS STRING) AS c, NULL AS n, map('a', id) AS m FROM range(1)",
    "SELECT `🜁\x02`, upper('é\x01🜁') AS `u 1` FROM (SELECT id AS `🜁\x02` FROM range(1)) AS `r\x02\x02`",
]

FIELDS = """SELECT transform(array(id, 1), x -> x + id) AS a, regexp_replace('"\\x01\\\\', 'a|é', '🜁') AS r,
  rand(3) AS n, try_divide(id, 0) AS d, CASE WHEN id > 1 THEN 'a' END AS c, shorter(concat(`id`, 'x')) AS p,
  approx_percentile(id, 0.5, 10) AS e, named_struct('a\\n"', id).`a\n"` AS s FROM range(3) GROUP BY id"""  # fmt: skip


@pytest.fixture(scope="module")
def catalyst(spark: SparkSession) -> Catalyst:
    return Catalyst(spark)


def _described(node: JavaObject) -> list[object]:
    """What is known of an expression's tree, with the type where it has one."""
    kind = kind_of(node)
    named = kind in ("Alias", "AttributeReference")
    sql_type = type_of(node) if node.resolved() and "Frame" not in kind and kind != "WindowSpecDefinition" else None
    found = [kind, id_of(node) if named else None, sql_type, span_of(node), str(node.name()) if named else None]
    if kind == "UnresolvedFunction":
        found.append(".".join(name_parts(node)))
    if kind == "AttributeReference":
        found.append(delay_ms(node))
    if kind in ("Add", "EqualTo", "GreaterThan"):
        found.append([kind_of(node.left()), kind_of(node.right())])
    if kind in ("Alias", "Cast"):
        found.append(kind_of(node.child()))
    return [*found, [_described(child) for child in children(node)]]


def _below(plan: JavaObject) -> list[object]:
    kind = kind_of(plan)
    names = name_parts(plan) if kind == "UnresolvedRelation" else []
    shown = [_described(one) for one in expressions(plan)]
    return [kind, span_of(plan), names, bool(plan.isStreaming()), shown, [_below(child) for child in children(plan)]]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("analysed", [False, True])
def test_a_loaded_tree_is_as_read_with_a_call_for_each_value(
    catalyst: Catalyst, text: str, analysed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = catalyst.spark.sql(text) if analysed else None

    def plan() -> JavaObject:
        return catalyst.parse(text) if frame is None else frame._jdf.queryExecution().analyzed()

    found = plan()
    client = found._gateway_client
    assert isinstance(loader_of(found), TreeLoader)
    loaded = _below(found)
    monkeypatch.setitem(client.__dict__, catalyst_trees._KEY, None)
    described = _below(plan())
    assert loaded == described or (not analysed and _without_ids(loaded) == _without_ids(described)), "new aliases"


def _without_ids(described: object) -> object:
    if not isinstance(described, list):
        return None if isinstance(described, int) else described
    return [_without_ids(one) for one in described]


def test_parts_of_loaded_nodes_and_what_they_read_need_no_call(catalyst: Catalyst) -> None:
    text = """SELECT id + 1 AS k, count(DISTINCT id + 1, n) FILTER (WHERE n > 1) AS c, max(n + id) AS m
      FROM (SELECT id, id % 3 AS n FROM range(9) WHERE id > 2) GROUP BY id + 1 HAVING max(n + id) < 5"""
    plan = catalyst.spark.sql(text)._jdf.queryExecution().analyzed()
    plans = [*nodes_of(plan)]
    nodes = [part for one in plans for expression in expressions(one) for part in nodes_of(expression)]
    theirs = [[id_of(one) for one in items(node.references().toSeq())] for node in nodes]
    filters = [(node.condition(), items(node.expressions())[0]) for node in plans if kind_of(node) == "Filter"]
    assert len(filters) == 2 and all(mine.semanticEquals(one) for mine, one in filters)
    calls = [node for node in nodes if kind_of(node) == "AggregateExpression"]
    with jvm_calls() as sent:
        mine = [[id_of(one) for one in references(node)] for node in nodes]
        parts = [(kind_of(one.aggregateFunction()), one.filter().isDefined()) for one in calls]
        kinds = [kind_of(one.filter().get()) for one in calls if one.filter().isDefined()]
        assert all(node.foldable() for node in nodes if kind_of(node) == "Literal")
    assert mine == theirs
    assert {*parts} >= {("Count", True), ("Max", False)} and kinds == ["GreaterThan"]
    assert not sent


def test_fields_of_an_expression_are_as_read_with_a_call_for_each(catalyst: Catalyst) -> None:
    catalyst.spark.udf.register("shorter", lambda text: text[1:], "string")
    known = set()
    for text in (*TEXTS, FIELDS):
        for plan in nodes_of(catalyst.spark.sql(text)._jdf.queryExecution().analyzed()):
            for expression in expressions(plan):
                if not expression.resolved() or "WindowExpression" in map(kind_of, nodes_of(expression)):
                    continue  # the frame of a window has no type
                loader = loader_of(expression)
                assert loader is not None
                found, read = loader.fields(expression, _OMITTED), fields_of(catalyst, expression)
                assert _without_nodes(found) == _without_nodes(read)
                theirs = items(expression.references().toSeq())
                assert [*map(id_of, references(expression))] == [*map(id_of, theirs)]
                known |= {*re.findall(r"'kind': '(\w+)'", str(found))}
    assert {"PythonUDF", "LambdaFunction", "NamedLambdaVariable", "RegExpReplace", "CaseWhen", "Literal"} <= known
    assert references(plan) == []
    assert [kind_of(one) for one in items(catalyst.seq([plan, plan]))] == [kind_of(plan)] * 2


def test_columns_are_substituted_as_with_calls_of_sparks_methods(
    catalyst: Catalyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = catalyst.spark.sql("SELECT a + b AS c, a FROM (SELECT id + 1 AS a, id AS b FROM range(3))")
    upper = plan._jdf.queryExecution().analyzed()
    sums, definitions = expressions(upper)[0].child(), expressions(children(children(upper)[0])[0])
    found = catalyst.substitute(sums, definitions)
    monkeypatch.setitem(upper._gateway_client.__dict__, catalyst_trees._KEY, None)
    assert found.sql() == catalyst.substitute(sums, definitions).sql() != sums.sql()


def _without_nodes(fields: object) -> object:
    """The fields, with the ids of columns in place of the columns, and without functions."""
    if isinstance(fields, dict):
        node = fields.pop("node", None)
        place = None if node is None or fields["kind"] == "PythonUDF" else (id_of(node), str(node.name()))
        return {**{name: _without_nodes(value) for name, value in fields.items()}, "node": place}
    return [_without_nodes(one) for one in fields] if isinstance(fields, list) else (type(fields), fields)


def test_a_tree_of_too_many_nodes_is_not_loaded_whole(catalyst: Catalyst) -> None:
    # Spark's parser gives each branch the same object, so the tree has 2^40 nodes
    text = f"SELECT {'CASE ' * 40}x{' WHEN 1 THEN 2 WHEN 3 THEN 4 END' * 40} FROM t"
    plan = catalyst.parse(text)
    loader = loader_of(plan)
    assert loader is not None
    held = loader._gateway.getBindings().size()
    assert loader.items(plan.expressions()) is None
    assert loader._gateway.getBindings().size() < held + 20
    array = catalyst.spark.sql(f"SELECT array({'0, ' * 16384} 0)")._jdf.queryExecution().analyzed().expressions()
    held = loader._gateway.getBindings().size()
    assert loader.fields(array.apply(0), _OMITTED) is None
    assert loader._gateway.getBindings().size() < held + 20


def test_what_is_no_tree_is_read_one_by_one(catalyst: Catalyst) -> None:
    assert items(catalyst.seq(["a", "b"])) == ["a", "b"]


def test_nodes_are_released_with_the_next_call(catalyst: Catalyst) -> None:
    loader = loader_of(catalyst.parse("SELECT 1"))
    assert loader is not None
    plan = catalyst.spark.sql(TEXTS[0])._jdf.queryExecution().analyzed()
    sequence = plan.children()
    items(sequence)
    held = loader._gateway.getBindings().size()
    for _ in range(50):
        items(sequence)
    assert loader._gateway.getBindings().size() < held + 50


def test_objects_are_released_in_few_calls(catalyst: Catalyst) -> None:
    loader = loader_of(catalyst.parse("SELECT 1"))
    assert loader is not None
    objects = [catalyst.seq(["a", str(number)]) for number in range(400)]
    held = loader._gateway.getBindings().size()
    with jvm_calls(releases=True) as sent:
        objects.clear()
        deadline = time.monotonic() + 60
        while loader._gateway.getBindings().size() > held - 300:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert len(sent) < 100


def test_a_root_that_several_threads_read_is_complete_when_its_kind_is_known(
    catalyst: Catalyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = catalyst.parse("SELECT a + 1, b FROM t")
    read = catalyst_trees._describe

    def slow(known: dict[str, JavaObject], *rest: list[str]) -> None:
        read(known, *rest)
        assert "_kind" not in root.__dict__ and "_children" not in root.__dict__

    monkeypatch.setattr(catalyst_trees, "_describe", slow)
    assert (kind_of(root), len(children(root)), len(expressions(root))) == ("Project", 1, 2)


def test_releases_of_a_jvm_that_has_ended_raise_nothing(catalyst: Catalyst, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(catalyst.parse("SELECT 1"))
    assert loader is not None

    def refused(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(loader, "_release", refused)
    loader._collect("o1", enqueue=False)


@settings(max_examples=examples(25))
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4), max_size=5),
       st.sampled_from(["", " GROUP BY 1", " WHERE c0 > 1"]))  # fmt: skip
def test_sizes_are_those_of_the_plan_as_json(
    catalyst: Catalyst, layers: list[list[tuple[int, int]]], last: str
) -> None:
    text, width = "SELECT id AS c0 FROM range(3)", 1
    for layer in layers:
        columns = ", ".join(f"c{a % width} + c{b % width} AS c{i}" for i, (a, b) in enumerate(layer))
        text, width = f"SELECT {columns} FROM ({text})", len(layer)
    text = f"SELECT c0{', count(*) AS n' if 'GROUP' in last else ''} FROM ({text}){last}"
    plan = catalyst.spark.sql(text)._jdf.queryExecution().analyzed()
    loader = loader_of(plan)
    assert loader is not None
    assert loader.inlined(plan) == parts_of(json.loads(plan.toJSON()))
