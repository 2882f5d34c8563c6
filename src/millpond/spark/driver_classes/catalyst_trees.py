"""Loads trees of Catalyst with one call for all of their nodes, instead of several calls for each node.

The class, children, name, type and place in the text of every node are then known, and the expressions of a plan. The
JVM keeps an object until it is released. Objects that are no longer used are released many at a time: py4j itself makes
a call for each.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from py4j.clientserver import JavaClient
from py4j.java_gateway import JavaClass
from py4j.java_gateway import JavaObject as GatewayObject
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID
from pyspark.sql import SparkSession

from millpond.spark.driver_classes.loading import load_class

CLASS = "millpond.CatalystTrees"

JavaObject: TypeAlias = Any
"""A plan, an expression or another object of the JVM."""

_FIELD, _NODE = "\x01", "\x02"
_READS_OTHERS = re.compile(
    r"^$|^Unresolved|Subquery|Typed|^Grouping|^(Exists|ListQuery|OuterReference|LambdaFunction)$"
)  # fmt: skip
"""Classes of expressions that read other attributes than their children do."""
_ALL = "all"
_KEY = "_millpond_trees"
_LOCK = Lock()


class TreeLoader:
    """Loads trees through one connection to a JVM."""

    def __init__(self, client: JavaObject) -> None:
        java = JavaClass(CLASS, client)
        self._inlined: Callable[[JavaObject], str] = java.inlined
        self._nodes: Callable[[JavaObject, JavaObject, str], str | None] = java.nodes
        self._fields: Callable[[JavaObject, JavaObject, str, str], str | None] = java.fields
        self._references: Callable[[JavaObject, JavaObject, str], str | None] = java.references
        self._sequence: Callable[[JavaObject, str], JavaObject] = java.sequence
        self._substitute: Callable[[JavaObject, JavaObject, str], JavaObject] = java.substitute
        self._release: Callable[[JavaObject, str], None] = java.release
        self._gateway = GatewayObject("GATEWAY_SERVER", client).getGateway()
        self._client, self._released = client, deque[str]()
        self._wakes = isinstance(client, JavaClient)
        self._woken = False
        if self._wakes:
            self._one_by_one = client.garbage_collect_object
            client.garbage_collect_object = self._collect

    def items(self, sequence: JavaObject) -> list[JavaObject] | None:
        """The elements of a sequence, with all nodes below them; None if they are not nodes of trees, or too many."""
        text = self._nodes(self._gateway, sequence, self._unused())
        return None if text is None else self._read(text, None)

    def load(self, root: JavaObject) -> bool:
        """Make the values of a node known, with all nodes below it; false if they are too many."""
        text = self._nodes(self._gateway, root, self._unused())
        return text is not None and bool(self._read(text, root))

    def fields(self, expression: JavaObject, omitted: str) -> JavaObject:
        """The fields of an expression and of all below it; None if they are too many.

        An expression is a dictionary, as `fields` in CatalystTrees.java describes it, whose `node` is the object.
        `omitted` are the names of fields to leave out, each between spaces.
        """
        text = self._fields(self._gateway, expression, omitted, self._unused())
        if text is None:
            return None
        fields, _, listed = text.partition(_NODE)
        nodes = self._read(listed, None)

        def named(found: dict[str, JavaObject]) -> dict[str, JavaObject]:
            return found | {"node": nodes[found["node"]]} if "node" in found else found
        return json.loads(fields, object_hook=named)

    def references(self, tree: JavaObject) -> list[JavaObject] | None:
        """The attributes that an expression or a plan reads; None if they are too many."""
        text = self._references(self._gateway, tree, self._unused())
        return None if text is None else self._read(text, None)

    def sequence(self, values: Sequence[JavaObject]) -> JavaObject | None:
        """A Scala sequence of objects of the JVM; None if there are other values."""
        if not all(isinstance(one, GatewayObject) for one in values):
            return None
        return self._sequence(self._gateway, _ids(values))

    def substitute(self, expression: JavaObject, definitions: Sequence[JavaObject]) -> JavaObject:
        """The expression with attributes replaced by the aliases that define them."""
        return self._substitute(self._gateway, expression, _ids(definitions))

    def inlined(self, plan: JavaObject) -> tuple[int, int, str]:
        """The number of parts in a plan's largest node and in its largest column, and that column's name.

        Each column is replaced by its definition.
        """
        total, largest, name = self._inlined(plan).split(_FIELD, 2)
        return int(float(total)), int(float(largest)), name

    def _read(self, text: str, root: JavaObject | None) -> list[JavaObject]:
        nodes, _, listed = text.partition(_NODE + _NODE)
        lines = nodes.split(_NODE) if listed or nodes != _NODE else []
        ids = "".join(line.partition(_FIELD)[0] + " " for line in lines).lstrip()
        owner = _Owner(ids, self.released)
        strings = list(_strings(listed))
        roots: list[JavaObject] = []
        described: dict[str, JavaObject] = {}
        open_lists = [(roots, -1)]
        for line in lines:
            target, kind, below, expressions, *rest = line.split(_FIELD)
            node = _Node(target, self._client, owner) if target else root
            known = node.__dict__ if target else described
            known["_kind"], known["_children"] = kind, []
            _describe(known, rest, strings)
            _add_parts(known, kind)
            siblings, left = open_lists.pop()
            siblings.append(node)
            if left != 1:
                open_lists.append((siblings, left - 1))
            if expressions != "0":
                open_lists.append((known["_expressions"], int(expressions)))
            if below != "0":
                open_lists.append((known["_children"], int(below)))
        if root is not None:  # which another thread may read, and takes for described when its kind is known
            kind = described.pop("_kind")
            for name, value in (*described.items(), ("_kind", kind)):
                root.__dict__.setdefault(name, value)
        return roots

    def released(self, ids: str) -> None:
        """Note the ids of objects that are not used any more, each followed by a space; makes no call to the JVM."""
        self._released.append(ids)
        if self._wakes and not self._woken:
            self._woken = True
            self._one_by_one(_ALL, True)  # wakes py4j's thread, which calls `_collect`

    def _collect(self, target_id: str, enqueue: bool = True) -> None:
        """What py4j calls for an object that is not used any more, and then with `enqueue` false in its own thread."""
        if enqueue:
            if target_id not in (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID):  # which stay
                self.released(target_id + " ")
            return
        self._woken = False
        ids = self._unused() + ("" if target_id == _ALL else target_id + " ")
        with suppress(Exception):  # the JVM may have ended, and py4j's thread has to go on
            if ids and self._client.is_connected:
                self._release(self._gateway, ids)

    def _unused(self) -> str:
        found = ""
        with suppress(IndexError):  # another thread may take the last ones
            while self._released:
                found += self._released.popleft()
        return found


def _ids(values: Sequence[JavaObject]) -> str:
    return "".join(f"{one._target_id} " for one in values)


def _strings(listed: str) -> Iterator[str]:
    start = 0
    while start < len(listed):
        size, _, _ = listed[start : start + 12].partition(" ")
        start += len(size) + 1
        yield listed[start : start + int(size)]
        start += int(size)


def _describe(node: dict[str, JavaObject], values: list[str], strings: list[str]) -> None:
    """Set what is known of a node, as results of its methods or under the names that `private_names` uses."""
    identity, sql_type, start, stop, text, name, parts, metadata, flags = values
    if identity:
        node["_id"] = int(identity)
    if sql_type:
        node["_type"] = plain_type(sql_type)
    node["_place"] = (strings[int(text)], int(start), int(stop) + 1) if text else None
    if name:
        node["name"] = partial(str, strings[int(name)])
    if parts:
        node["_parts"] = [strings[int(part)] for part in parts.split()]
    if metadata:
        node["_json"] = strings[int(metadata)]
    if "c" in flags:
        node["child"] = partial(node["_children"].__getitem__, 0)
    elif "b" in flags:
        node["left"], node["right"] = (partial(node["_children"].__getitem__, place) for place in (0, 1))
    if "s" in flags or "t" in flags:  # of a plan
        node["isStreaming"], node["_expressions"] = partial(bool, "s" in flags), []


def _add_parts(node: dict[str, JavaObject], kind: str) -> None:
    """Set what methods of some classes return, which follows from the node's children or expressions."""
    if kind == "AggregateExpression":
        node["aggregateFunction"] = partial(node["_children"].__getitem__, 0)
        node["filter"] = partial(_Second, node["_children"])
    elif kind == "Filter":
        node["condition"] = partial(node["_expressions"].__getitem__, 0)
    elif kind == "Literal":
        node["foldable"] = partial(bool, True)


class _Second:
    """A Scala option of the second element of a list."""

    def __init__(self, listed: list[JavaObject]) -> None:
        self._found = listed[1:]

    def isDefined(self) -> bool:
        return bool(self._found)

    def get(self) -> JavaObject:
        return self._found[0]


def load_with(spark: SparkSession) -> None:
    """From now on, load trees of this session's JVM in one call, if our class can be loaded there."""
    client: JavaObject = spark._jsparkSession._gateway_client
    with _LOCK:
        if _KEY not in client.__dict__:
            client.__dict__[_KEY] = TreeLoader(client) if load_class(spark, CLASS) else None


def loader_of(node: JavaObject) -> TreeLoader | None:
    """What loads trees of the JVM of an object; None if each value is read by a call of its own."""
    found: TreeLoader | None = node._gateway_client.__dict__.get(_KEY)
    return found


def references_of(tree: JavaObject, items: Callable[[JavaObject], list[JavaObject]]) -> list[JavaObject]:
    """The attributes that an expression or a plan reads; `items` reads a sequence where a tree cannot be loaded."""
    if (found := _attributes_in(tree)) is not None:
        return found
    loader = loader_of(tree)
    found = None if loader is None else loader.references(tree)
    return items(tree.references().toSeq()) if found is None else found


def _attributes_in(tree: JavaObject) -> list[JavaObject] | None:
    """The attributes that a loaded expression reads, in Spark's order; None where the JVM must be called."""
    found: dict[int, JavaObject] = {}
    left = [tree]
    while left:
        node = left.pop()
        known = node.__dict__
        kind = known.get("_kind", "")
        if "_children" not in known or "_expressions" in known or _READS_OTHERS.search(kind):
            return None
        if kind == "AttributeReference":
            found.setdefault(known["_id"], node)
        left += reversed(known["_children"])
    return sorted(found.values(), key=lambda one: (str(one.name()), one.__dict__["_id"]))


class _Owner:
    """Releases the nodes of one call when none of them is used any more."""

    def __init__(self, ids: str, released: Callable[[str], None]) -> None:
        self._ids, self._released = ids, released

    def __del__(self) -> None:
        self._released(self._ids)  # the garbage collector may run within a call, so none is made here


def plain_type(text: str) -> str:
    """The text of a type, in which UTF8_BINARY is left out: all texts without a collation compare like this.

    >>> plain_type("array<string collate UTF8_BINARY>")
    'array<string>'
    """
    return text.replace("string collate UTF8_BINARY", "string")


class _Node(GatewayObject):  # type: ignore[misc]
    """A loaded node, which py4j would release with a call of its own."""

    def __init__(self, target: str, client: JavaObject, owner: _Owner) -> None:
        self._target_id, self._gateway_client, self._owner = target, client, owner
        self._auto_field = client.gateway_property.auto_field
        self._methods: dict[str, JavaObject] = {}
        self._field_names: set[str] = set()
        self._fully_populated, self._gateway_doc = False, None
