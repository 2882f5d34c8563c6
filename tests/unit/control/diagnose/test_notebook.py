"""Values in notebooks: tables of HTML, in which names and texts are escaped."""

from __future__ import annotations

import re

from millpond.control.diagnose.notebook import queries_table
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding


def test_a_table_has_a_row_for_each_query() -> None:
    hour = 3_600_000_000
    query = Query("spend", "tx", "ts", 0, Sliding(hour, hour), (), (), (), sink=Sink("parquet", "out"), serve=True)
    table = queries_table("a <pond>", [query, query])
    assert table.startswith("<p>a &lt;pond&gt;</p><table>")
    cells = "<td>spend</td><td>tx .*1 hour.*</td><td>parquet</td><td>yes</td>"
    assert len(re.findall(f"<tr>{cells}</tr>", table.replace("</tr><tr>", "</tr>\n<tr>"))) == 2
