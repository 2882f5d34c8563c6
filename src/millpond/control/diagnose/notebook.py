"""Shows values in notebooks, as tables of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from millpond.control.diagnose.why_report import computation_text
from millpond.model.selection import AnyQuery
from millpond.model.stream import Relation, Stream
from millpond.plan.explain.amounts import count_of
from millpond.reconfigure.inner_reports import relabelled, stream_labels


class QueryList(tuple[AnyQuery, ...]):
    """A tuple of queries that a notebook shows as a table; its `repr` has their names."""

    streams: tuple[Stream, ...] = ()
    """The streams that the queries read."""

    relations: tuple[Relation, ...] = ()
    """The views and tables that the queries name."""

    def __repr__(self) -> str:
        names = ", ".join(query.name for query in self)
        return f"<{count_of(len(self), 'query')}{': ' if names else ''}{names}>"

    def _repr_html_(self) -> str:
        """How a notebook shows the queries."""
        return queries_table(count_of(len(self), "query"), self)


def queries_table(title: str, queries: QueryList) -> str:
    """A table of queries: what each computes, and where its rows go."""
    labels = stream_labels(queries.streams, queries.relations)
    head = "".join(f"<th>{name}</th>" for name in ("query", "computes", "sink", "served"))
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(query, labels))}</tr>" for query in queries
    )  # fmt: skip
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(query: AnyQuery, labels: Mapping[str, str]) -> tuple[str, ...]:
    return query.name, relabelled(computation_text(query), labels), query.sink.format, "yes" if query.serve else ""
