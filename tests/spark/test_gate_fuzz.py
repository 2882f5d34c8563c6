"""The gate under mutation: no disguise of an attack gets through, none takes long, and nothing is run on the way.

Passing is judged without the gate: every object that hangs on the parsed plan is visited by reflection, wherever
the gate might not look, and may neither call a function nor name a relation that queries may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from kit.costs.thread_cpu import ThreadCpu
from kit.inputs.attacks import ATTACKS, GOOD, RELATIONS
from millpond.errors import MillpondError, QueryError
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.spark.catalyst.allow_list import FUNCTIONS, GENERATORS
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.frontend.gate import check_size, judge, parse
from millpond.spark.reading.read_frame import EventTime

CPU_SECONDS = 5.0
"""A text may keep the gate this long, on a busy machine; most need a hundredth."""

MARK = "millpond.fuzz"
SPY = f"java_method('java.lang.System', 'setProperty', '{MARK}', 'reached')"
CALLS = [
    SPY,
    SPY.replace("java_method", "reflect"),
    SPY.replace("java_method", "try_reflect"),
    SPY.replace("java_method", "`java_method`"),
    SPY.replace("java_method", "system.builtin.java_method"),
    SPY.replace("java_method", "IDENTIFIER('java_' || 'method')"),
    f"schema_of_json({SPY})",
    f"(SELECT {SPY})",
    "input_file_name()",
    "current_user()",
    "repeat('x', 1000000000)",
]
RELATIONS_REFUSED = [
    "text.`{canary}`",
    "`text`.`{canary}`",
    "json.`{canary}`",
    "STREAM text.`{canary}`",
    "IDENTIFIER('text.`{canary}`')",
    "range(1000000000)",
    "VALUES (now())",
    "spark_catalog.default.secret",
    "(SELECT * FROM text.`{canary}`)",
]
PLACES = [
    "SELECT {call} AS z, count(*) FROM {relation} GROUP BY 1, window(ts, '1 hour')",
    "SELECT count(*) FILTER (WHERE {call} IS NULL) FROM {relation} GROUP BY window(ts, '1 hour')",
    "SELECT count(*) FROM {relation} WHERE {call} = 'a' GROUP BY window(ts, '1 hour')",
    "SELECT count(*) FROM {relation} GROUP BY window(ts, '1 hour') HAVING {call} = 'a'",
    "SELECT count(*) FROM {relation} GROUP BY window({call}, '1 hour')",
    "SELECT count(*) FROM {relation} GROUP BY window(ts, {call}, '1 minute')",
    "WITH tx AS (SELECT *, {call} AS z FROM {relation}) SELECT count(*) FROM tx GROUP BY window(ts, '1 hour')",
    "FROM {relation} |> WHERE {call} = 'a' |> AGGREGATE count(*) AS n GROUP BY window(ts, '1 hour')",
    "SELECT count(*) FROM (SELECT * FROM {relation} WHERE {call} = 'a') GROUP BY window(ts, '1 hour')",
]
WRAPPERS = [
    "({})", "coalesce({}, 'a')", "CASE WHEN {} = 'a' THEN 1 END", "cast({} AS STRING)", "named_struct('a', {}).a",
]  # fmt: skip
BLANKS = [" ", "\n", "\t", "\r\n", "/* a */", "/* /* b */ */", "-- c\n", "\u00a0", "\u2003", "\u200b", "/**/"]
ALIKE = str.maketrans({"a": "\u0430", "e": "\u0435", "i": "\u0131", "k": "\u212a", "s": "\u017f", "j": "\uff4a"})
WORD = re.compile(r"'[^']*'|`[^`]*`|\w+|\s+|[^\w\s]")


@st.composite
def attacks(draw: st.DrawFn) -> str:
    """An attack in a place, or one of the list, nested and then disguised word by word."""
    if draw(st.booleans()):
        text = draw(st.sampled_from([text for text in ATTACKS if len(text) < 2_000]))
    else:
        call, relation = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
        inner = draw(st.sampled_from(CALLS)) if call else "customer"
        for wrapper in draw(st.lists(st.sampled_from(WRAPPERS), max_size=12)):
            inner = wrapper.format(inner)
        source = draw(st.sampled_from(RELATIONS_REFUSED)) if relation else "tx"
        text = draw(st.sampled_from(PLACES)).replace("{call}", inner).replace("{relation}", source)
    words = WORD.findall(text)
    for index in draw(st.lists(st.integers(0, len(words) - 1), max_size=6)):
        words[index] = draw(st.sampled_from(_disguises(words[index])))
    return "".join(words)


def _disguises(word: str) -> list[str]:
    blanked = [word + blank for blank in BLANKS] + [blank + word for blank in BLANKS]
    if not word.isidentifier():
        return [*blanked, word + word, ""]
    quoted = [f"`{word}`", f"`{word.upper()}`", f"a.{word}"]
    return [*blanked, *quoted, word.upper(), word.swapcase(), word.translate(ALIKE)]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("canary") / "secret.txt"
    path.write_text("hunter2")
    return path


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    front = FrontEnd(spark)
    columns = (("ts", "timestamp"), ("customer", "string"), ("kind", "string"), ("amount", "double"), ("id", "int"))
    fields = tuple(Field(name, kind) for name, kind in columns)
    for name in RELATIONS:
        source = Source("parquet", (("path", str(tmp_path_factory.mktemp(name))),))
        front.declare(Stream(name, fields, source), EventTime("ts", "1 second"))
    return front

SUBQUERIES = (
    "SubqueryAlias", "UnresolvedSubqueryColumnAliases", "InSubquery", "ScalarSubquery", "LateralSubquery",
)  # fmt: skip
"""Nodes whose plans are walked like any other part."""


def _parts(catalyst: Catalyst, root: Any) -> Iterator[Any]:
    """Everything that hangs on a plan: nodes, and whatever they hold in sequences, options and pairs."""
    gateway = catalyst.spark.sparkContext._gateway
    stack = [root]
    while stack:
        part = stack.pop()
        if part is None or isinstance(part, bool | int | float | str):
            continue
        if is_instance_of(gateway, part, "org.apache.spark.sql.catalyst.trees.TreeNode"):
            yield part
        elif not is_instance_of(gateway, part, "scala.Tuple2") and not catalyst.is_iterable(part):
            continue
        held = part.iterator() if catalyst.is_iterable(part) else part.productIterator()
        while held.hasNext():
            stack.append(held.next())


def _check_harmless(catalyst: Catalyst, plan: Any, text: str) -> None:
    defined = {"tx", "other"}
    relations = set()
    for part in _parts(catalyst, plan):
        kind = part.getClass().getSimpleName()
        if kind == "UnresolvedFunction":
            names = [str(part.nameParts().apply(i)) for i in range(part.nameParts().size())]
            assert len(names) == 1 and names[0].lower() in FUNCTIONS, text
        if kind == "UnresolvedRelation":
            assert part.multipartIdentifier().size() == 1, text
            relations.add(str(part.multipartIdentifier().apply(0)).lower())
        if kind == "UnresolvedWith":
            entries = part.cteRelations()
            defined |= {str(entries.apply(i)._1()).lower() for i in range(entries.size())}
        assert "Subquery" not in kind or kind in SUBQUERIES, text
        if kind == "UnresolvedTableValuedFunction":
            assert str(part.name().apply(0)).lower() in GENERATORS, text
        assert kind != "ScriptTransformation", text
        assert not kind.endswith("Command"), text
    assert relations <= defined, text


@seed(20240229)
@settings(
    max_examples=300, deadline=None, database=None, print_blob=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(text=attacks())
def test_no_disguise_gets_an_attack_through(spark: SparkSession, front: FrontEnd, canary: Path, text: str) -> None:
    text = text.replace("{canary}", str(canary))
    system = spark.sparkContext._jvm.java.lang.System
    catalyst = front._catalyst
    cpu = ThreadCpu(spark)
    try:
        check_size(text)
        plan = parse(catalyst, text)
        judge(plan, RELATIONS)
    except MillpondError as error:
        assert isinstance(error, QueryError)
        assert error.cure, text
        assert "hunter2" not in str(error)
    else:
        _check_harmless(catalyst, plan, text)
        _analysed_or_refused(front, text)
    assert cpu.seconds() < CPU_SECONDS, text
    assert system.getProperty(MARK) is None, text


def _analysed_or_refused(front: FrontEnd, text: str) -> None:
    """What the gate let through is analysed too: it becomes a query, or a refusal with a code."""
    try:
        front.query_from_sql("q", text)
    except MillpondError as error:
        assert isinstance(error, QueryError), text


@seed(20240301)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.sampled_from(GOOD), blank=st.sampled_from([b for b in BLANKS if b != "\u200b"]), upper=st.booleans())
def test_honest_queries_pass_however_they_are_spaced(front: FrontEnd, text: str, blank: str, upper: bool) -> None:
    found = WORD.findall(text.split("--")[0])
    words = [blank if word.isspace() else word for word in found]
    for i, word in enumerate(found[1:], 1):
        if word.isspace() and found[i - 1] in "*-":  # with which a comment after it would make another
            words[i] = f" {blank}"
    spelled = "".join(word if word[:1] in "'`" or not upper else word.upper() for word in words)
    judge(parse(front._catalyst, spelled), RELATIONS)


@pytest.mark.parametrize("text", [
    "SELECT " + "(" * 90 + "1",
    "SELECT " + "abs(" * 99 + "x" + ")" * 99 + " FROM tx",
    "SELECT * FROM " + "(SELECT * FROM " * 99 + "tx" + ")" * 99,
    "SELECT " + ".".join(["a"] * 5_000) + " FROM tx",
    "SELECT cast(x AS " + "ARRAY<" * 300 + "INT" + ">" * 300 + ") FROM tx",
    "SELECT " + "||".join(["x"] * 3_000) + " FROM tx",
    "SELECT * FROM tx WHERE " + " AND ".join(["x"] * 2_500),
    "SELECT * FROM tx WHERE " + "x BETWEEN 1 AND " * 1_000 + "1",
    "SELECT * FROM tx" + " JOIN tx" * 700,
    "SELECT x" + "::INT" * 3_000 + " FROM tx",
    "SELECT " + "'" * 19_001,
    "SELECT " + "`" * 19_001,
    "SELECT " + "/*" * 8 + "a" * 9_000,
    "SELECT " + "," * 19_000,
    "SELECT INTERVAL " + "1 DAY " * 2_000 + "FROM tx",
], ids=lambda text: text[:40])  # fmt: skip
def test_no_text_within_the_caps_takes_long(spark: SparkSession, front: FrontEnd, text: str) -> None:
    cpu = ThreadCpu(spark)
    try:
        check_size(text)
        judge(parse(front._catalyst, text), RELATIONS)
    except MillpondError as error:
        assert isinstance(error, QueryError)
        assert len(str(error)) < 1_000
    assert cpu.seconds() < 2 * CPU_SECONDS
