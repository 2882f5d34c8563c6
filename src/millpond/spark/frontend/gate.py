"""The allow-list check of query text: every node of the parsed text is checked before analysis.

Spark SQL can read files, settings and static Java methods from inside a SELECT. Parsing resolves and runs nothing, so
the unresolved tree is checked. The analysis uses the same parser.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millpond.errors import QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.spark.analysis.grouping.grouping_sets import MOST_SETS
from millpond.spark.analysis.steps.normalise_clauses import MOST_ROWS
from millpond.spark.catalyst.allow_list import (
    COLLATIONS,
    EXPRESSIONS,
    FUNCTIONS,
    GENERATORS,
    HINTS,
    MOMENTS,
    PLANS,
    SUBQUERIES,
    WHY_REFUSED,
    WINDOWS,
)
from millpond.spark.catalyst.cures import A_SELECT, AS_OF, CLAUSES, CONSTANTS, FUNCTION_LIST, IN_A_TEXT, statement_name
from millpond.spark.catalyst.cures import FUNCTIONS as INSTEAD
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    expressions,
    items,
    kind_of,
    name_parts,
    optional,
    span_of,
    type_of,
)
from millpond.spark.catalyst.refusals import positioned
from millpond.spark.catalyst.text_span import MAX_COMMENT_NESTING, TextSpan
from millpond.spark.frontend.constants import folded_argument, judge_pattern, not_constant

MAX_CHARACTERS = 20_000
MAX_NESTING = 100
MAX_NODES = 3_000
MAX_EXPANDED = 1_000
"""The most plan nodes after each name of a WITH or a view is replaced by its definition. A relation that is read twice
counts twice, because Spark and Millpond both analyse it twice.
"""
MAX_GENERATORS = 3
"""The most generators such as `explode`, each of which multiplies the rows of the one below it."""
MAX_CUBE = 6
"""The most columns of a CUBE: within GROUPING SETS, Spark's parser makes all of its 2^n sets."""

_UNNAMED = re.compile(r"stream_[0-9a-f]{8}")  # see `named_stream`
_BRACKET = re.compile(r"[(\[]|[)\]]")
_COMMENT = re.compile(r"/\*|\*/")
_CUBE = re.compile(r"\bcube\b", re.IGNORECASE)
_CUBE_MARK = re.compile(r"[(),]")
_BOUNDS = ("CurrentRow", "UnboundedPreceding", "UnboundedFollowing")
_FIXED = re.compile(r"[a-z_]+\s*r?['\"][+-]?\d{4,}", re.IGNORECASE)


class GatedQuery(NamedTuple):
    """The parts of a query that passed the gate.

    These are its calls of window functions, its relations, a node of each kind, the functions that it might call, its
    calls of functions outside the general allow-list, its calls of generators, and the number of plan nodes after names
    are replaced by their definitions.
    """

    windows: list[JavaObject]
    relations: set[str]
    nodes: dict[str, JavaObject]
    functions: frozenset[str]
    calls: list[JavaObject]
    generators: list[JavaObject]
    size: int = 1


class _Visit(NamedTuple):
    node: JavaObject
    depth: int
    is_plan: bool
    relations: frozenset[str]
    bound: frozenset[str] = frozenset()


def check_size(text: str) -> None:
    """Refuse text that could read settings or exhaust the parser.

    Raises:
        QueryRefused: the text could do so.
        QuerySyntaxError: it is not valid Unicode text.
    """
    if "${" in text:
        start = text.index("${")
        raise QueryRefused(
            f"Query text may not use a setting of the server at {TextSpan(text, start, start + 2)}.",
            "Write the value itself.",
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise QuerySyntaxError("The text has half a surrogate pair, which is no character.", "Write UTF-8.")
    if len(text) > MAX_CHARACTERS:
        raise QueryRefused(
            f"The text has {len(text)} characters; {MAX_CHARACTERS} are allowed.",
            "Split the query into several.",
        )
    _check_nesting("Parentheses", _BRACKET.findall(text), MAX_NESTING)
    check_comments(text)
    for cube in _CUBE.finditer(text):
        if _listed(text, cube.end()) > MAX_CUBE:
            span = TextSpan(text, cube.start(), cube.end())
            raise QueryRefused(
                f"The CUBE at {span} has more than {MAX_CUBE} columns.", "List the sets that you need: GROUPING SETS."
            )


def check_comments(text: str) -> None:
    """Refuse text with comments that nest too deeply.

    Raises:
        QueryRefused: they do.
    """
    _check_nesting("Comments", _COMMENT.findall(text), MAX_COMMENT_NESTING)


def _check_nesting(what: str, marks: Iterable[str], allowed: int) -> None:
    deepest = max(accumulate(1 if mark in ("(", "[", "/*") else -1 for mark in marks), default=0)
    if deepest > allowed:
        raise QueryRefused(f"{what} nest {deepest} deep; {allowed} are allowed.", "Simplify the text.")


def _listed(text: str, start: int) -> int:
    """The number of elements in the parentheses that open first after a position."""
    depth, count = 0, 0
    for mark in _CUBE_MARK.finditer(text, start):
        if mark.group() == "(":
            depth, count = depth + 1, count or 1
        elif mark.group() == ")":
            depth -= 1
        elif depth == 1:
            count += 1
        if depth <= 0:
            return count
    return count


_ALIAS = "Write an alias after the whole clause: FROM STREAM s WATERMARK ts DELAY OF INTERVAL 10 SECONDS AS a."


def parse(catalyst: Catalyst, text: str) -> JavaObject:
    """Spark's unresolved plan of a statement.

    Raises:
        QuerySyntaxError: it does not parse; the message is Spark's, with its line and column.
        UnsupportedQuery: it joins a table as of the time of an event.
        QueryRefused: Spark's parser fails on it.
    """
    try:
        return catalyst.parse(text)
    except PySparkException as error:
        what, where = positioned(str(error))
        if "delay threshold" in what:
            raise QueryTypeError(f"A watermark's delay is negative: {what}", "Write INTERVAL 10 SECONDS.") from error
        if ("time travel spec" in what and "columns" in what) or "'SYSTEM_TIME'" in what:
            raise UnsupportedQuery("FOR SYSTEM_TIME AS OF the time of an event is not supported.", AS_OF) from error
        cure = _ALIAS if "near 'WATERMARK'" in what else "Correct the text there."
        raise QuerySyntaxError(f"Spark cannot parse the query{where}: {what}", cure) from error
    except Py4JError as error:
        raise QueryRefused("Spark's parser breaks on the query.", "Split it into several.") from error


def judge(
    plan: JavaObject, relations: Collection[str], functions: Collection[str] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> GatedQuery:  # fmt: skip
    """Refuse a parsed query with a node, function or relation outside the allow-lists; names are in lower case.

    `functions` are those that the session's user registered, in addition to the ones that every query may call. `sizes`
    gives the number of plan nodes of views among the relations.

    Raises:
        QueryRefused: there is such a node, function or relation.
        QueryTypeError: it reads a stream that is not declared.
    """
    known = frozenset(name.lower() for name in relations)
    judged = GatedQuery([], set(), {}, FUNCTIONS | {name.lower() for name in functions}, [], [])
    stack = [_Visit(plan, 0, True, known)]
    count = 0
    while stack:
        visit = stack.pop()
        count += 1
        if count > MAX_NODES or visit.depth > MAX_NESTING * 2:
            raise QueryRefused(f"The query has more than {MAX_NODES} parts.", "Split it into several.")
        stack.extend(_judge_plan(visit, judged) if visit.is_plan else _judge_expression(visit, judged))
    judged = judged._replace(size=_expanded(plan, sizes, nested="subquery" in judged.nodes))
    if judged.size > MAX_EXPANDED:
        raise QueryRefused(
            f"The query reads {_many(judged.size)} relations and steps when what WITH and views name is put in for each"
            f" name; {MAX_EXPANDED:,} are allowed.",
            "Name each relation less often, or make a part of the query a query of its own and read its rows.",
        )
    return judged


def _expanded(node: JavaObject, sizes: Mapping[str, int], *, nested: bool) -> int:
    """The number of nodes of a plan after names are replaced by their definitions.

    `nested`: there may be sub-queries in its expressions.
    """
    kind = kind_of(node)
    if kind == "UnresolvedRelation":
        return sizes.get(name_parts(node)[-1].lower(), 1)
    if kind == "UnresolvedWith":
        for entry in items(node.cteRelations()):
            sizes = {**sizes, str(entry._1()).lower(): _expanded(entry._2(), sizes, nested=nested)}
    below = [*children(node), *(items(node.subqueries()) if nested else [])]
    return 1 + sum(_expanded(child, sizes, nested=nested) for child in below)


def _many(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "more than 10^15"


def _judge_plan(visit: _Visit, judged: GatedQuery) -> list[_Visit]:
    node, depth, relations, bound = visit.node, visit.depth + 1, visit.relations, visit.bound
    kind = kind_of(node)
    if kind not in PLANS:
        raise _refused(node, *CLAUSES.get(kind) or _statement(node, visit.depth))
    judged.nodes.setdefault(kind, node)
    if kind == "Aggregate":
        _judge_sets(node)
    if kind == "UnresolvedRelation":
        name = _judge_relation(node, relations)
        if name not in bound:  # a name that WITH defines does not refer to a stream
            judged.relations.add(name)
    if kind == "LateralJoin":
        _judge_lateral(node)
    if kind == "Unpivot":
        values = optional(node.values())
        if values is not None and values.size() > MOST_ROWS:
            raise _refused(node, f"UNPIVOT of more than {MOST_ROWS} columns", "Split it into several.")
        _count_generator(node, judged)
    if kind == "UnresolvedTableValuedFunction":
        name = ".".join(map(str, items(node.name()))).lower()
        if name not in GENERATORS:
            raise _refused(node, *CLAUSES[kind])
        _judge_generator(node, name, items(node.functionArgs()), judged)
    if kind == "UnresolvedInlineTable":
        _judge_constants(expressions(node), "VALUES", moments=False)  # computed again at a restart
        return []
    if kind in ("GlobalLimit", "LocalLimit"):
        _judge_constants([node.limitExpr()], "LIMIT")
    if kind == "Pivot":
        _judge_constants(items(node.pivotValues()), "PIVOT")
    if kind == "UnresolvedHint" and str(node.name()).lower() not in HINTS:
        raise _refused(node, f"the hint {node.name()}", "Leave it out: a pond plans its joins itself.")
    visits: list[_Visit] = []
    if kind == "WithWindowDefinition":
        definitions = items(node.windowDefinitions().values().toSeq())
        visits.extend(_Visit(part, depth, False, relations, bound) for part in definitions)
    if kind == "UnresolvedWith":
        # A CTE can use the CTEs before it; the query can use all of them.
        for entry in items(node.cteRelations()):
            visits.append(_Visit(entry._2(), depth, True, relations, bound))
            name = str(entry._1()).lower()
            relations, bound = relations | {name}, bound | {name}
    visits.extend(_Visit(child, depth, True, relations, bound) for child in children(node))
    visits.extend(_Visit(part, depth, False, relations, bound) for part in expressions(node))
    return visits


def _statement(node: JavaObject, depth: int) -> tuple[str, str]:
    """The words for a statement in place of a SELECT, or for a clause of a SELECT; and what to write instead."""
    span = span_of(node)
    if depth == 0 and span is not None and (name := statement_name(span.text[: span.stop])) != A_SELECT:
        return f"the statement {name}", IN_A_TEXT
    return "this clause", "Use SELECT … FROM … JOIN … WHERE … GROUP BY … HAVING, and WITH for named parts."


def _judge_lateral(node: JavaObject) -> None:
    """Refuse a lateral join with anything but a table function, or expressions without FROM."""
    below = node.right().plan()
    condition = optional(node.condition())
    always = condition is None or kind_of(condition) == "Literal"
    if _without_from(below) is not None and (always or kind_of(node.joinType()) != "LeftOuter"):
        return
    while kind_of(below) in ("SubqueryAlias", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases"):
        below = below.child()
    if kind_of(below) != "UnresolvedTableValuedFunction":
        raise _refused(node, *CLAUSES["LateralJoin"])


def _without_from(plan: JavaObject) -> list[JavaObject] | None:
    """The expressions of a sub-query without FROM, which has one row of them; None: it is another one."""
    while kind_of(plan) in ("SubqueryAlias", "UnresolvedSubqueryColumnAliases"):
        plan = plan.child()
    return expressions(plan) if kind_of(plan) == "Project" and kind_of(plan.child()) == "OneRowRelation" else None


def _judge_constants(values: list[JavaObject], where: str, *, moments: bool = True) -> None:
    """Refuse values that are not literals and not made of literals, in a clause that Spark computes in its analysis."""
    for value in values:
        found = not_constant(value, moments=moments)
        if found is not None:
            raise _refused(found, f"this value in {where}", CONSTANTS)


def _judge_sets(node: JavaObject) -> None:
    """Refuse an aggregation with too many grouping sets; Spark's analyser would plan each of them."""
    sets = 1
    for group in items(node.groupingExpressions()):
        kind = kind_of(group)
        if kind in ("Rollup", "Cube", "GroupingSets"):
            size = group.groupingSetIndexes().size()
            sets *= 2 ** min(size, 20) if kind == "Cube" else size + (kind == "Rollup")
    if sets > MOST_SETS:
        raise _refused(node, f"more than {MOST_SETS} grouping sets", "List the sets that you need: GROUPING SETS.")


def _judge_relation(node: JavaObject, relations: frozenset[str]) -> str:
    parts = name_parts(node)
    if len(parts) != 1:
        raise _refused(node, f"the relation {'.'.join(parts)}", "Read a declared stream by its plain name.")
    if parts[0].lower() not in relations:
        named = sorted(name for name in relations if not _UNNAMED.fullmatch(name))
        near = difflib.get_close_matches(parts[0].lower(), named, 3, 0.5)
        if near:
            cure = f"Did you mean: {' or '.join(near)}?"
        else:
            cure = f"Declared streams: {', '.join(named[:10])}." if named else "No stream is declared."
        if len(named) < len(relations):
            cure += " The stream of a DataFrame has no name in SQL: declare it with CREATE TABLE in `pond.load`."
        raise QueryTypeError(f"There is no stream {parts[0]} {_where(node)}.", cure)
    if node.options().asCaseSensitiveMap().size():
        raise _refused(node, "options of a relation", "Drop WITH (…) after the stream.")
    return parts[0].lower()


def _judge_expression(visit: _Visit, judged: GatedQuery) -> list[_Visit]:
    node = visit.node
    kind = kind_of(node)
    if kind in SUBQUERIES:
        judged.nodes.setdefault("subquery", node)
        alone = _without_from(node.plan()) if kind in ("ScalarSubquery", "LateralSubquery") else None
        if alone is not None:
            return [visit._replace(node=part, depth=visit.depth + 1) for part in alone]
        return [visit._replace(node=node.plan(), depth=visit.depth + 1, is_plan=True)]
    if kind not in EXPRESSIONS:
        raise _refused(node, "this expression", FUNCTION_LIST)
    if kind == "Literal" and type_of(node) in MOMENTS:
        span = span_of(node)
        if span is not None and span.piece[:1].isalpha() and not _FIXED.match(span.piece):
            # The parser computes 'now', 'today' and a time without a date from the clock.
            raise _refused(node, "a moment that depends on the clock", "Write it as 'yyyy-mm-dd hh:mm:ss'.")
    if kind == "UnresolvedCollation":
        _judge_collation(node)
    judge_pattern(node, kind, _where)
    if kind == "SpecifiedWindowFrame":
        _judge_constants([part for part in children(node) if kind_of(part) not in _BOUNDS], "the bounds of a frame")
    if kind == "UnresolvedGenerator":
        name = str(node.name().unquotedString())
        if name.lower() not in GENERATORS:
            raise _refused(node, f"the function {name} in LATERAL VIEW", f"Use one of {', '.join(sorted(GENERATORS))}.")
        _judge_generator(node, name.lower(), children(node), judged)
    if kind == "UnresolvedStarExceptOrReplace":
        replaced = optional(node.replacements())
        if replaced is not None:
            raise _refused(node, "REPLACE after *", "List the columns.")
    if kind == "UnresolvedFunction":
        parts = name_parts(node)
        if len(parts) != 1 or parts[0].lower() not in judged.functions:
            near = difflib.get_close_matches(parts[-1].lower(), sorted(judged.functions), 3, 0.7)
            did = f"Did you mean: {' or '.join(near)}? {FUNCTION_LIST}" if near else FUNCTION_LIST
            cure = INSTEAD.get(parts[-1].lower(), did)
            reason = WHY_REFUSED.get(parts[-1].lower())
            if reason is not None:
                cure = INSTEAD.get(parts[-1].lower(), FUNCTION_LIST)
            raise _refused(node, f"the function {'.'.join(parts)}", cure, reason)
        varies = folded_argument(node, parts[0].lower())
        if varies is not None:
            raise _refused(varies, f"this value in an argument of {parts[0]} that has to be fixed", CONSTANTS)
        if parts[0].lower() not in FUNCTIONS:
            judged.calls.append(node)
        if parts[0].lower() in GENERATORS:
            _judge_generator(node, parts[0].lower(), children(node), judged)
        if parts[0].lower() in WINDOWS:
            judged.windows.append(node)
            judged.nodes.setdefault("window", node)
    return [visit._replace(node=child, depth=visit.depth + 1, is_plan=False) for child in children(node)]


def _judge_collation(node: JavaObject) -> None:
    """Refuse a collation that Spark does not know, or that depends on a language."""
    name = ".".join(map(str, items(node.collationName())))
    if name.upper() not in COLLATIONS:
        raise _refused(node, f"the collation {name}", f"Use one of {', '.join(COLLATIONS)}.")


def _judge_generator(node: JavaObject, name: str, arguments: list[JavaObject], judged: GatedQuery) -> None:
    if name == "stack" and arguments:
        count = arguments[0]  # Spark evaluates it while it analyses the text
        if kind_of(count) != "Literal" or type_of(count) != "int" or int(str(count.toString())) > MOST_ROWS:
            raise _refused(node, "stack with this number of rows", f"Write a number up to {MOST_ROWS}.")
    _count_generator(node, judged)


def _count_generator(node: JavaObject, judged: GatedQuery) -> None:
    judged.generators.append(node)
    if len(judged.generators) > MAX_GENERATORS:
        raise _refused(node, f"more than {MAX_GENERATORS} functions that make rows", "Split it into several.")


def _refused(node: JavaObject, what: str, cure: str, reason: str | None = None) -> QueryRefused:
    why = "" if reason is None else f": it {reason}"
    return QueryRefused(f"Query text may not use {what} {_where(node)}{why}.", cure)


def _where(node: JavaObject) -> str:
    span = span_of(node)
    return "here" if span is None else f"at {span}"
