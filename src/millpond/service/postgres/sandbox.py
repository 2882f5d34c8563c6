"""Runs SQL of users in DuckDB, which can reach nothing but the tables that it was given.

One statement is checked by its syntax tree: it must be a SELECT, SHOW or DESCRIBE, and may call listed table functions
only. In addition DuckDB itself has no access to files, network, extensions and variables of Python, and its
configuration is locked. Memory and threads are limited; `interrupt` ends a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from millpond.errors import MillpondError, QueryError, QueryRefused, QuerySyntaxError, QueryTypeError
from millpond.service.postgres.client_catalog import DATABASE, SEARCH_PATH, catalog_statements
from millpond.service.postgres.column_names import ordered_by, unnamed_columns
from millpond.service.postgres.messages import ResultColumn
from millpond.service.postgres.result_format import TEXT, array_literal, oid_of

ROWS_AT_ONCE = 2048
MEMORY = "256MB"
"""The most memory of one connection's statements and tables."""

_TABLE_FUNCTIONS = frozenset(
    {
        "range", "generate_series", "generate_subscripts", "unnest", "repeat", "json_each", "json_tree",
        "pg_timezone_names", "pg_get_keywords", "pragma_table_info",
    }
)  # fmt: skip

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""The parts of a syntax tree that only read; others, such as `COPY_QUERY_NODE`, may stand in a WITH."""

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": "1", "async_threads": "1", "memory_limit": MEMORY, "temp_directory": "",
    "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    "allow_community_extensions": "false", "python_enable_replacements": "false", "allow_persistent_secrets": "false",
}  # fmt: skip

_ONLY_READS = (
    "This endpoint only reads.",
    "Send SELECT, SHOW or DESCRIBE; change a pond with `millpond add`, `drop` and others.",
)

_SET_UP = f"""
ATTACH ':memory:' AS {DATABASE};
USE {DATABASE};
DETACH memory;
CREATE SCHEMA public;
CREATE SCHEMA millpond;
CREATE SCHEMA client;
SET TimeZone = 'UTC';
SET search_path = '{','.join(f'{DATABASE}.{schema}' for schema in (*SEARCH_PATH, 'main'))}';
"""

_LOCK = "SET enable_external_access = false; SET lock_configuration = true;"

_STATES: tuple[tuple[type[Exception], str], ...] = (
    (duckdb.InterruptException, "57014"),
    (duckdb.OutOfMemoryException, "53200"),
    (duckdb.ParserException, "42601"),
    (duckdb.CatalogException, "42P01"),
    (duckdb.BinderException, "42703"),
    (duckdb.ConversionException, "22P02"),
    (duckdb.OutOfRangeException, "22003"),
    (duckdb.PermissionException, "42501"),
)
"""The SQLSTATE of errors of DuckDB; the first matching class counts."""

_STATES_BY_PREFIX = {
    "INTERRUPT": "57014", "Out of Memory": "53200", "Conversion Error": "22P02", "Out of Range": "22003",
    "Catalog Error: Scalar Function": "42883", "Binder Error: No function": "42883",
    "Catalog Error: Type": "42704",
}  # fmt: skip
"""The SQLSTATE by how a message begins: where the class of an error says too little, and for the reader of Arrow
batches, whose errors have no class of DuckDB's.
"""


_OWN = re.compile(r'"(?:client|main|information_schema|pg_catalog)\.')
"""Tables that users did not mean."""


class Checked(NamedTuple):
    """What a statement refers to: names of tables, and the parameters by their bytes `start` to `end` in the text.

    `arrays`: the starts of those that must be arrays, also if the client does not send their type. `unnamed`,
    `orders`: see `unnamed_columns` and `ordered_by`.
    """

    tables: frozenset[str]
    parameters: tuple[tuple[int, int, int], ...]
    arrays: frozenset[int]
    unnamed: Mapping[int, str]
    orders: tuple[tuple[int, int, int], ...]


class Sandbox:
    """A DuckDB for the statements of one connection; use it in one thread, except `interrupt`.

    `settings`: what `current_setting` returns.

    Raises:
        MillpondError: there is no memory for it.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        with _failures():
            self._connection = duckdb.connect(":memory:", config=_SETTINGS)
            self._connection.execute(_SET_UP)
            self._connection.execute(";\n".join(catalog_statements(settings)))
            self._connection.execute(_LOCK)

    def close(self) -> None:
        """Free the memory."""
        self._connection.close()

    def interrupt(self) -> None:
        """End the running statement; for any thread."""
        self._connection.interrupt()

    def show(self, schema: str, name: str, rows: pa.Table) -> None:
        """Set the content of a table.

        Raises:
            MillpondError: it does not fit into the memory, or was interrupted.
        """
        table = f"{schema}.{quoted(name)}"
        self._connection.register("incoming", rows)
        try:
            with _failures():
                self._connection.execute(f"CREATE OR REPLACE TABLE {table} AS FROM incoming")
        finally:
            self._connection.unregister("incoming")

    def hide(self, schema: str, name: str) -> None:
        """Remove a table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {schema}.{quoted(name)}")

    def check(self, sql: str) -> Checked:
        """Check that a statement only reads.

        Raises:
            QuerySyntaxError: it is not SQL. QueryRefused: it does not only read, or calls a function that it may not.
        """
        try:
            (text,) = self._connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()[0]
            tree = msgspec.json.decode(text)
        except (duckdb.Error, RecursionError) as error:
            raise QuerySyntaxError(first_line(error), "Correct the statement.") from error
        if tree["error"]:
            if tree.get("error_type") == "not implemented":
                raise QueryRefused(*_ONLY_READS)
            raise QuerySyntaxError(tree.get("error_message", "The statement is not SQL."), "Correct the statement.")
        if len(tree["statements"]) != 1:
            raise QueryRefused("This is more than one statement.", "Send one statement at a time.")
        tables, parameters, arrays = set[str](), set[tuple[int, int, int]](), set[int]()
        for node in _nodes(tree):
            kind = str(node.get("type"))
            if kind.endswith("_NODE") and kind not in _QUERY_NODES:
                raise QueryRefused(*_ONLY_READS)
            if kind == "BASE_TABLE":
                tables.add(node["table_name"])
            elif kind == "TABLE_FUNCTION":
                name = node["function"]["function_name"].lower()
                if name not in _TABLE_FUNCTIONS:
                    cure = "Read the tables that SHOW TABLES lists."
                    raise QueryRefused(f"The function {name} may not be called here.", cure)
            elif kind == "VALUE_PARAMETER":
                parameters.add(_parameter(sql, node))
            elif (array := _array_in(node)) is not None:
                arrays.add(_parameter(sql, array)[0])
        node = tree["statements"][0]["node"]
        unnamed = unnamed_columns(node)
        orders = tuple(ordered_by(node, unnamed))
        return Checked(frozenset(tables), tuple(sorted(parameters)), frozenset(arrays), unnamed, orders)

    def columns(self, sql: str, unnamed: Mapping[int, str]) -> list[ResultColumn]:
        """The columns of a checked statement, without running it; `unnamed`: see `Checked`.

        Raises:
            MillpondError: it refers to an unknown name, or its types do not fit.
        """
        with _failures():
            relation = self._connection.sql(sql)
        names = ["count" if name == "count_star()" else name for name in relation.columns]  # of a sub-query
        for place, name in unnamed.items():
            names[place] = name
        return [ResultColumn(name, oid_of(str(kind))) for name, kind in zip(names, relation.types, strict=True)]

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a checked statement.

        Raises:
            MillpondError: it fails, or was interrupted.
        """
        with _failures():
            yield from self._connection.sql(sql).to_arrow_reader(ROWS_AT_ONCE)


class StatementError(QueryError):
    """A statement fails; `state`: its SQLSTATE."""

    def __init__(self, what: str, cure: str = "", state: str = "XX000") -> None:
        super().__init__(what, cure)
        self.state = state


@contextmanager
def _failures() -> Iterator[None]:
    """Raise errors of DuckDB as errors of ours. From the second batch of rows on, Arrow raises them as `OSError`."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        raise failure(error) from error


def failure(error: Exception) -> MillpondError:
    """An error of DuckDB as an error of ours."""
    state = next((state for kind, state in _STATES if isinstance(error, kind)), "42000")
    state = next((state for begin, state in _STATES_BY_PREFIX.items() if str(error).startswith(begin)), state)
    cure = {"57014": "Ask for less: a statement has a time limit.", "53200": f"Ask for less: it has {MEMORY}."}
    return StatementError(first_line(error), cure.get(state) or _hint(error), state)


def _hint(error: Exception) -> str:
    """What DuckDB suggests, such as similar names; no list of the forms of a function, and no table of its own."""
    lines = str(error).partition("\nLINE ")[0].splitlines()[1:]
    found = next((line.strip() for line in lines if line), "")
    useless = not found or found.startswith(("Candidate functions", "Candidate macros")) or _OWN.search(found)
    return "Correct the statement." if useless else found[:500]


def first_line(error: Exception) -> str:
    """The message of DuckDB without the excerpt of the statement."""
    return str(error).partition("\n")[0][:500] or type(error).__name__


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def with_values(sql: str, checked: Checked, values: Sequence[str]) -> str:
    """The statement as DuckDB runs it: with literals in place of parameters, and numbers in place of `Checked.orders`.

    Raises:
        QueryTypeError: there are too few values. RequestError: one is no array, and must be one.
    """
    replaced = [(start, end, str(number)) for start, end, number in checked.orders]
    for start, end, number in checked.parameters:
        if not 0 < number <= len(values):
            raise QueryTypeError(f"There is no value for the parameter ${number}.", "Send a value for each.")
        value = values[number - 1]
        if start in checked.arrays and value.startswith("'"):  # a text, because the client knows no type
            value = array_literal(value[1:-1].replace("''", "'").encode(), 0, TEXT)
        replaced.append((start, end, f" {value} "))
    text = sql.encode()
    for start, end, written in sorted(replaced, reverse=True):
        text = text[:start] + written.encode() + text[end:]
    return text.decode()


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _array_in(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The parameter of a node whose operand is an array: of ANY and ALL, which unnest it, and of a cast to a list."""
    match node:
        case {"type": "FUNCTION", "function_name": "unnest", "arguments": [{"expression": operand}]}:
            pass
        case {"type": "OPERATOR_CAST", "type_expr": {"type_name": "list"}, "child": operand}:
            pass
        case _:
            return None
    return operand if operand["type"] == "VALUE_PARAMETER" else None


def _parameter(sql: str, node: Mapping[str, Any]) -> tuple[int, int, int]:
    """Where a parameter is, and its number."""
    start = node["query_location"]
    end = start + node["query_location_length"]
    identifier = node["identifier"]
    if sql.encode()[start:end] != b"$" + identifier.encode() or not identifier.isdecimal():
        raise QueryRefused("A parameter is not of the form $1.", "Write parameters as $1, $2 and so on.")
    return start, end, int(identifier)
