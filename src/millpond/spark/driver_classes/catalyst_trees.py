"""Loads trees of Catalyst with one call for all of their nodes, instead of several calls for each node.

The class, children, expression id and type of every node are then known. The JVM keeps a loaded node until it is
released. Nodes that are no longer used are released by the next call that loads others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from py4j.java_gateway import JavaClass
from py4j.java_gateway import JavaObject as GatewayObject
from pyspark.sql import SparkSession

from millpond.spark.driver_classes.loading import is_loaded

CLASS = "millpond.CatalystTrees"

JavaObject: TypeAlias = Any
"""A plan, an expression or another object of the JVM."""

_FIELD, _NODE = "\x01", "\x02"
_KEY = "_millpond_trees"


class TreeLoader:
    """Loads trees through one connection to a JVM."""

    def __init__(self, client: JavaObject) -> None:
        java = JavaClass(CLASS, client)
        self._inlined: Callable[[JavaObject], str] = java.inlined
        self._nodes: Callable[[JavaObject, JavaObject, str], str | None] = java.nodes
        self._gateway = GatewayObject("GATEWAY_SERVER", client).getGateway()
        self._client, self._released = client, deque[str]()

    def items(self, sequence: JavaObject) -> list[JavaObject] | None:
        """The elements of a sequence, with all nodes below them; None if they are not nodes of trees, or too many."""
        text = self._nodes(self._gateway, sequence, self._unused())
        if text is None:
            return None
        lines = text.split(_NODE)[:-1]
        owner = _Owner("".join(line.partition(_FIELD)[0] + " " for line in lines), self._released)
        roots: list[JavaObject] = []
        open_lists = [(roots, -1)]
        for line in lines:
            target, kind, below, identity, sql_type = line.split(_FIELD)
            node = _Node(target, self._client, owner)
            known = node.__dict__
            known["_kind"], known["_children"] = kind, []
            if identity:
                known["_id"] = int(identity)
            if sql_type:
                known["_type"] = sql_type
            siblings, left = open_lists.pop()
            siblings.append(node)
            if left != 1:
                open_lists.append((siblings, left - 1))
            if below != "0":
                open_lists.append((known["_children"], int(below)))
        return roots

    def inlined(self, plan: JavaObject) -> tuple[int, int, str]:
        """The number of parts in a plan's largest node and in its largest column, and that column's name.

        Each column is replaced by its definition.
        """
        total, largest, name = self._inlined(plan).split(_FIELD, 2)
        return int(float(total)), int(float(largest)), name

    def _unused(self) -> str:
        found = ""
        with suppress(IndexError):  # another thread may take the last ones
            while self._released:
                found += self._released.popleft()
        return found


def load_with(spark: SparkSession) -> None:
    """From now on, load trees of this session's JVM in one call, if our class can be loaded there."""
    client: JavaObject = spark._jsparkSession._gateway_client
    if _KEY not in client.__dict__:
        client.__dict__[_KEY] = TreeLoader(client) if is_loaded(spark, CLASS) else None


def loader_of(node: JavaObject) -> TreeLoader | None:
    """What loads trees of the JVM of an object; None if each value is read by a call of its own."""
    found: TreeLoader | None = node._gateway_client.__dict__.get(_KEY)
    return found


class _Owner:
    """Releases the nodes of one call when none of them is used any more."""

    def __init__(self, ids: str, released: deque[str]) -> None:
        self._ids, self._released = ids, released

    def __del__(self) -> None:
        self._released.append(self._ids)  # the garbage collector may run within a call, so none is made here


class _Node(GatewayObject):  # type: ignore[misc]
    """A loaded node, which py4j would release with a call of its own."""

    def __init__(self, target: str, client: JavaObject, owner: _Owner) -> None:
        self._target_id, self._gateway_client, self._owner = target, client, owner
        self._auto_field = client.gateway_property.auto_field
        self._methods: dict[str, JavaObject] = {}
        self._field_names: set[str] = set()
        self._fully_populated, self._gateway_doc = False, None
