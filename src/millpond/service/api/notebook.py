"""Shows responses of the service in notebooks, as tables of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class Tabular(msgspec.Struct, frozen=True):
    """A response that a notebook shows as a table of its fields, without those that have their default value."""

    def _repr_html_(self) -> str:
        """How a notebook shows the response."""
        return _html(self)


class Listed(list[T]):
    """Responses that a notebook shows as a table with a row for each."""

    def records(self) -> list[dict[str, Any]]:
        """Each response as a dict, for `pandas.DataFrame(…)` or `pyarrow.Table.from_pylist(…)`."""
        return [*map(msgspec.to_builtins, self)]

    def _repr_html_(self) -> str:
        """How a notebook shows the responses."""
        return _html(self)


def _html(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        shown = [one for one in fields if one.required or getattr(value, one.name) != one.default]
        return _table([[f"<th>{one.name}</th>", f"<td>{_html(getattr(value, one.name))}</td>"] for one in shown])
    if isinstance(value, Sequence) and value and isinstance(value[0], msgspec.Struct):
        names = [one.name for one in msgspec.structs.fields(value[0])]
        rows = [[f"<td>{_html(getattr(one, name))}</td>" for name in names] for one in value]
        return _table([[f"<th>{name}</th>" for name in names], *rows])
    return escape("" if value is None else str(value))


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>{lines}</table>"
