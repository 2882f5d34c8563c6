"""Values in notebooks: tables of HTML, and pictures of plans, in which names and texts are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from msgspec.structs import replace

from millpond.control.diagnose.notebook import QueryList, queries_table
from millpond.control.diagnose.plan_graph import Link, links_of, picture
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Derivation, Field, Stream
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan


def test_a_table_has_a_row_for_each_query() -> None:
    hour = 3_600_000_000
    query = Query("spend", "tx", "ts", 0, Sliding(hour, hour), (), (), (), sink=Sink("parquet", "out"), serve=True)
    table = queries_table("a <pond>", QueryList([query, query]))
    assert table.startswith("<p>a &lt;pond&gt;</p><table>")
    cells = "<td>spend</td><td>tx .*1 hour.*</td><td>parquet</td><td>yes</td>"
    assert len(re.findall(f"<tr>{cells}</tr>", table.replace("</tr><tr>", "</tr>\n<tr>"))) == 2


def test_queries_are_shown_with_their_texts_and_printed_by_their_names() -> None:
    query = Query("spend", "tx", "ts", 0, Sliding(1, 1), (), (), (), text="SELECT max(a) … HAVING max(a) < 1")
    queries = QueryList([query, query])
    assert repr(queries) == "<2 queries: spend, spend>" and repr(QueryList()) == "<0 queries>"
    assert queries._repr_html_() == queries_table("2 queries", queries)
    made = replace(query, stream="tx_1a2b3c4d")
    listed = QueryList([made])
    listed.streams = (Stream(made.stream, (), made_of=Derivation("tx WITH f(s) AS ts", ("tx",), "d")),)
    assert "tx_1a2b3c4d" not in listed._repr_html_() and "tx, with ts" in listed._repr_html_()
    assert query._repr_html_() == "<p>query spend</p><pre>SELECT max(a) … HAVING max(a) &lt; 1</pre>"


def test_a_picture_of_a_plan_leads_from_streams_through_groups_to_sinks() -> None:
    def query(name: str, minutes: int, sink: Sink) -> Query:
        us = minutes * 60_000_000
        count = Aggregate("count", None, None, "bigint")
        output = (Named("n", Column("agg:0", "bigint")),)
        return Query(name, "tx", "ts", 0, Sliding(us, us), (Column("c", "string"),), (count,), output, sink=sink)

    plan = build_plan([query("a", 10, Sink("parquet", "out")), query("b", 30, Sink("noop"))])
    stream = Stream("tx", (Field("ts", "timestamp"), Field("c", "string")))
    links = [*links_of(plan, [stream], {"a": 3, "b": 4}, {})]
    (group,) = {one.target for one in links if one.source == "stream tx"}
    assert group.endswith("2 queries, 1 measure")
    found = {(one.source, one.target): one.us for one in links}
    assert found == {
        ("stream tx", group): 7, (group, "query a"): 3, (group, "query b"): 4, ("query a", "sink parquet"): 3,
    }  # fmt: skip
    made = replace(stream, name="tx_1a2b3c4d", made_of=Derivation("tx WITH f(s) AS ts", ("tx",), "d"))
    plan = build_plan([replace(query("a", 10, Sink("noop")), stream=made.name)])
    first, *_ = sorted(links_of(plan, [made], {"a": 3}, {made.name: made.label}), key=lambda one: len(one.source))
    assert first == Link("stream tx", "stream tx, with ts", 3)
    drawn = ElementTree.fromstring(picture(links))
    boxes = {one[0].text: int(one[1].get("x", "")) for one in drawn if one.tag.endswith("}g")}
    assert all(boxes[one.source] < boxes[one.target] for one in links) and len(boxes) == 5
    assert "<b>" not in picture([Link("stream <b>", "query x", 1)])
