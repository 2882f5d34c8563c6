"""Identifies expressions that only Spark evaluates, and builds the Catalyst trees that Spark projects for them.

The key of an expression is a hash of the tree (classes, parameters, types, evaluation modes; no ids or positions), of
the session's time zone and of Spark's version. So equal expressions of different queries share a column, and a stored
query keeps its meaning after a restart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import pyspark

from millpond.errors import QueryRefused, UnsupportedQuery
from millpond.model.expressions import Foreign
from millpond.plan.options.clock_parameters import CLOCK_CURE
from millpond.spark.catalyst.allow_list import CLOCK, OPAQUE, UNSTABLE, UNSTABLE_METHODS, WHY_REFUSED
from millpond.spark.catalyst.analysis_threads import raise_if_abandoned
from millpond.spark.catalyst.cures import FUNCTION_LIST
from millpond.spark.catalyst.moment_texts import check_moment, dated
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    kind_of,
    nodes_of,
    references,
    text_of,
    type_of,
)
from millpond.spark.catalyst.regex_limits import check_pattern, stack_guarded
from millpond.spark.catalyst.user_scalars import check_function, function_digest, guarded
from millpond.spark.catalyst.value_bounds import ROWS, Limiter, is_accepted
from millpond.spark.driver_classes.catalyst_trees import loader_of

_IDENTITY = re.compile(r"@[0-9a-f]{5,}")
_OMITTED = " exprId resultId qualifier metadata nullable "
"""Fields that are no part of an expression's meaning, or that differ from session to session."""
MAX_WIDTH, MAX_USES = 10_000, 4
"""The most characters of all widths and precisions in a format of `format_string`, and uses of one argument."""
_CONVERSION = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(<]*)(\d*)(?:\.(\d+))?[tT]?([a-zA-Z%])")
_FILE_OPTION = "rowvalidationxsdpath"
_REFUSED_KINDS = re.compile(r"XPath|(Hll[A-Z]|Kll[A-Z]|Theta[A-Z]|Tuple[A-Z]|ApproxTopK)")
_VARIABLE = "NamedLambdaVariable"
_STATE = "value"
"""The field of a lambda variable that holds a value only while the expression is evaluated."""
_TUPLE = re.compile(r"scala\.Tuple\d+")
_NUMBERED = re.compile(r"(.+)_\d+")
"""The name of a lambda variable of a DataFrame: PySpark counts those that its JVM has made."""


class Projected(NamedTuple):
    """A `Foreign` and the Catalyst expression that Spark projects for it, over columns with the stream's names.

    `former_key`: the key that releases up to 0.2 gave the expression if it has a lambda. `tables`: the columns of an
    expression over results that are no inputs of it, but rows of tables.
    """

    value: Foreign
    expression: JavaObject
    former_key: str = ""
    tables: tuple[TableRows, ...] = ()


class TableRows(NamedTuple):
    """Rows of a table that are joined to results, as a column of an expression over the results.

    The column `name` is an array of structs of `columns`. It has the rows of `plan` of which each of `keys` equals the
    one of `probes`, an expression over the result. `null_safe`: whether NULL equals NULL.
    """

    name: str
    plan: JavaObject
    columns: tuple[JavaObject, ...]
    keys: tuple[JavaObject, ...]
    probes: tuple[Projected, ...]
    null_safe: tuple[bool, ...]


def check_stable(catalyst: Catalyst, expression: JavaObject) -> None:
    """Refuse an expression that depends on more than the row, runs unsupported user code, or makes too large values.

    Raises:
        UnsupportedQuery, QueryRefused: it does.
    """
    for node in nodes_of(expression):
        check_node(catalyst, node, kind_of(node))
    Limiter(catalyst, checks=False).limited(expression)


def check_rows(catalyst: Catalyst, arrays: Sequence[JavaObject]) -> None:
    """Refuse arrays of constants that would turn one event into too many rows.

    Raises:
        QueryRefused: there would be more than `ROWS`.
    """
    quiet = Limiter(catalyst, checks=False, refuses=False)
    rows = prod(quiet.elements(array) for array in arrays)
    if rows > ROWS and not is_accepted():
        raise QueryRefused(
            f"The query makes up to {rows:,.0f} rows of each event, out of constants; {ROWS:,} are allowed.",
            "Explode shorter arrays, or columns of the event.",
        )


def check_node(catalyst: Catalyst, node: JavaObject, kind: str) -> None:
    """Refuse one node, whose class is `kind`, for the reasons of `check_stable`.

    Raises:
        UnsupportedQuery, QueryRefused: one of these reasons applies.
    """
    check_moment(catalyst, node, kind)
    check_pattern(catalyst, node, kind)
    if not is_accepted():
        _check_call(catalyst, node, kind)
    if kind in UNSTABLE or (kind == "StaticInvoke" and str(node.functionName()) in UNSTABLE_METHODS):
        raise UnsupportedQuery(
            f"`{text_of(node)}` changes from run to run, so a repeated epoch would answer differently.",
            CLOCK_CURE if kind in CLOCK else "Use the event's own columns.",
        )
    if kind == "PythonUDF":
        check_function(node)
    if kind in OPAQUE:
        raise UnsupportedQuery(
            f"`{text_of(node)}` runs code of yours that is no Python function of one row.",
            "Use a Python function (udf), or Spark's own.",
        )
    if kind.endswith("Subquery") or kind in ("Exists", "ListQuery", "OuterReference"):
        raise UnsupportedQuery(
            f"A sub-query stands where none is answered, or uses columns of another sub-query ({kind}).",
            "Write it in WHERE or SELECT, below an aggregation; join the tables of nested sub-queries in one of them.",
        )


def _check_call(catalyst: Catalyst, node: JavaObject, kind: str) -> None:
    """Refuse a call with which an otherwise allowed function reaches files, the network or much memory.

    Raises:
        UnsupportedQuery: the call is one of these.
    """
    target = str(node.targetObject().toString()) if kind == "Invoke" else ""
    refused = _REFUSED_KINDS.match(target or kind)
    if refused is not None:
        name = "xpath" if refused[1] is None else "hll_sketch_estimate"
        raise UnsupportedQuery(f"`{text_of(node)}` is refused: it {WHY_REFUSED[name]}.", FUNCTION_LIST)
    options = str(node.options().keys().mkString(" ")) if kind == "XmlToStructs" else target
    if _FILE_OPTION in options.lower():
        raise UnsupportedQuery(f"`{text_of(node)}` reads the file that its option names.", f"Drop {_FILE_OPTION}.")
    if kind == "FormatString":
        _check_format(catalyst, node)


def _check_format(catalyst: Catalyst, node: JavaObject) -> None:
    """Refuse a `format_string` whose text may be much larger than its arguments.

    Raises:
        QueryRefused: the format is a constant that is too large.
        UnsupportedQuery: the format is not constant, or too wide, or it repeats an argument too often.
    """
    pattern = children(node)[0]
    width, uses = MAX_WIDTH + 1, 0
    if pattern.foldable():
        Limiter(catalyst, checks=False).limited(pattern)
        width, uses = format_size(str(catalyst.constant(pattern) or ""))
    if width > MAX_WIDTH or uses > MAX_USES:
        raise UnsupportedQuery(
            f"`{text_of(node)[:200]}` may make a text of any length.",
            f"Write a constant format, with widths of at most {MAX_WIDTH:,} in total, which uses each argument at most"
            f" {MAX_USES} times.",
        )


def format_size(text: str) -> tuple[int, int]:
    """The sum of all widths and precisions in a format of `java.util.Formatter`, and the most uses of one argument.

    >>> format_size("%s, %5d, %1$.2f, %<s, 100%%")
    (7, 3)
    """
    uses: Counter[int] = Counter()
    width, following, last = 0, 0, 0
    for number, flags, *widths, conversion in _CONVERSION.findall(text):
        width += sum(int(one) for one in widths if one)
        if conversion in "%n":
            continue
        if "<" in flags:  # the argument of the previous conversion
            uses[last] += 1
            continue
        following += not number
        last = int(number or following)
        uses[last] += 1
    return width, max(uses.values(), default=0)


def project(catalyst: Catalyst, expression: JavaObject) -> Projected:
    """The `Foreign` of an expression over the stream's own, unqualified attributes.

    Raises:
        UnsupportedQuery: the expression is not deterministic, runs user code that cannot be identified, or is refused
        by `check_stable` for another reason.
    """
    check_stable(catalyst, expression)
    if not expression.deterministic():
        raise UnsupportedQuery(
            f"`{text_of(expression)}` is not deterministic, so a repeated epoch would answer differently.",
            "Use the event's own columns.",
        )
    tree = json.dumps(tree_of(catalyst, expression, _by_name))
    key, former_key = _key(catalyst, tree), ""
    if _VARIABLE in tree:
        former_key = _key(catalyst, json.dumps(_Tree(catalyst, _by_name, renames=False).of(expression)))
    columns = tuple(sorted({str(name.name()) for name in references(expression)}))
    # Spark prints `try_divide(a, b)` as `a / b`
    sql = f"try({expression.sql()})" if "(TRY," in tree else str(expression.sql())
    value = Foreign(key, sql, type_of(expression), columns)
    return Projected(value, with_guards(catalyst, expression, key), former_key)


def _key(catalyst: Catalyst, tree: str) -> str:
    """The key of a tree that is given as JSON."""
    zone, version = catalyst.spark.conf.get("spark.sql.session.timeZone"), pyspark.__version__
    return hashlib.sha256(f"[{tree}, {json.dumps(zone)}, {json.dumps(version)}]".encode()).hexdigest()[:16]


def with_guards(catalyst: Catalyst, expression: JavaObject, owner: str) -> JavaObject:
    """The expression as Spark is to evaluate it, changed so that a problem fails only its own event.

    `owner`: for what it is evaluated, as in `reconfigure.late_functions`, which counts late calls of Python functions.

    Such problems are values that are too large, texts that Spark would complete from the clock, texts that are too long
    for their pattern, and Python functions that raise.

    Raises:
        QueryRefused: its constants make too large values, or it takes too many steps.
        UnsupportedQuery: a Python function is too large to be sent with its query.
    """
    limited = Limiter(catalyst).limited(stack_guarded(catalyst, dated(catalyst, expression)))
    return guarded(catalyst, limited, owner)


def tree_of(catalyst: Catalyst, expression: JavaObject, label: Callable[[JavaObject], object]) -> list[object]:
    """The meaning of an expression as plain values; `label` returns the name of a column in it.

    Raises:
        UnsupportedQuery: the expression holds an object that has no identity outside this process.
    """
    tree = _Tree(catalyst, label).of(expression)
    if _IDENTITY.search(json.dumps(tree)):
        raise UnsupportedQuery(
            f"`{text_of(expression)}` holds an object without a stable identity.",
            "Use Spark's own functions.",
        )
    return tree


def _by_name(column: JavaObject) -> object:
    return str(column.name())


class _Tree:
    """Makes plain values of a tree. They have no ids, which differ from session to session.

    `renames`: whether lambda variables of DataFrames get numbers of their own.
    """

    def __init__(self, catalyst: Catalyst, label: Callable[[JavaObject], object], *, renames: bool = True) -> None:
        self._catalyst, self._label, self._renames = catalyst, label, renames
        self._variables = dict[int, str]()

    def of(self, node: JavaObject) -> list[object]:
        """The values of an expression."""
        raise_if_abandoned()
        loader = loader_of(node)
        found = None if loader is None else loader.fields(node, _OMITTED)
        return self._values(fields_of(self._catalyst, node) if found is None else found)

    def _values(self, found: dict[str, JavaObject]) -> list[object]:
        kind, type_ = found["kind"], found["type"]
        if kind == "AttributeReference":
            return ["column", self._label(found["node"]), type_]
        if kind == "Literal":
            return ["literal", found["sql"], type_]
        first = [kind, function_digest(found["node"]), type_] if kind == "PythonUDF" else [kind, type_]
        parts = []
        for name, part in found["parts"]:
            if kind != _VARIABLE:
                parts.append(self._part(part))
            elif name == "name":
                parts.append(repr(self._variable(part, found["id"])))
            elif name != _STATE:
                parts.append(self._part(part))
        return [*first, *parts]

    def _variable(self, name: str, identity: int) -> str:
        """The name of a lambda variable; one that PySpark numbered gets the number of its first use in the tree."""
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None or not self._renames:
            return name
        return self._variables.setdefault(identity, f"{numbered[1]}_{len(self._variables) + 1}")

    def _part(self, part: JavaObject) -> object:
        if isinstance(part, dict):
            return self._values(part) if "kind" in part else part["text"]
        return [self._part(one) for one in part] if isinstance(part, list) else repr(part)


def fields_of(catalyst: Catalyst, node: JavaObject) -> dict[str, JavaObject]:
    """The fields of an expression and of all below it, as `TreeLoader.fields` returns them."""
    kind = kind_of(node)
    found: dict[str, JavaObject] = {"kind": kind, "type": str(node.dataType().catalogString()), "parts": []}
    if kind in ("AttributeReference", "PythonUDF"):
        found["node"] = node
    if kind == "Literal":
        found["sql"] = str(node.sql())
    elif kind == _VARIABLE:
        found["id"] = int(node.exprId().id())
    elif kind == "PythonUDF":
        found["parts"] = [["", fields_of(catalyst, child)] for child in children(node)]
    if kind not in ("AttributeReference", "Literal", "PythonUDF"):
        for i in range(node.productArity()):
            name = str(node.productElementName(i))
            if f" {name} " not in _OMITTED:
                found["parts"].append([name, _field_of(catalyst, node.productElement(i))])
    return found


def _field_of(catalyst: Catalyst, part: JavaObject) -> object:
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if catalyst.is_expression(part):
        return fields_of(catalyst, part)
    entries = part.iterator() if catalyst.is_iterable(part) else None
    if entries is None and _TUPLE.match(str(part.getClass().getName())):
        entries = part.productIterator()
    if entries is None:
        return {"text": str(part.toString())}
    found: list[object] = []
    while entries.hasNext():
        found.append(_field_of(catalyst, entries.next()))
    return found
