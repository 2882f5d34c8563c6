"""A pond in use with other queries: the refusal names the stored and the new ones, and how to change the pond."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from millpond.control.checks.same_queries import checked_spec, unused_texts
from millpond.errors import ForeignPondError
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import DEAD_LETTER, Field, Malformed, Stream
from millpond.model.windows import Sliding

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"),), Source("json", (("path", "/in"),)))


def query(name: str, delay: int = 5) -> Query:
    output = (Named("n", Column("agg:0", "bigint")),)
    window = Sliding(10 * SECOND, 10 * SECOND)
    return Query(name, "tx", "ts", delay * SECOND, window, (), (Aggregate("count", None, None, "bigint"),), output)


def refused(stored: Sequence[Query], given: Sequence[Query], stream: Stream = TX, instances: int = 2) -> str:
    known = PondSpec.of((TX,), stored, 2)
    with pytest.raises(ForeignPondError) as error:
        checked_spec(Path("p.pond"), known, given, [stream], instances, {})
    return str(error.value)


def test_a_query_that_was_added_to_the_file() -> None:
    assert refused([query("one")], [query("one"), query("two")]) == (
        "[MP-FOREIGN] The pond in p.pond has query one. In the given queries, query two is new. To change a pond in "
        "use, run `millpond serve --checkpoint p.pond` and then `millpond add` (in Python, open the pond without "
        "queries and call its methods). To start again, use another folder."
    )


def test_queries_that_were_changed_and_left_out() -> None:
    text = refused([query("one"), query("old")], [query("one", delay=9), query("two"), query("three")])
    assert "has queries old, one. In the given queries, queries three, two are new, query one is changed" in text
    assert ", query old is missing. " in text
    assert "`millpond add`, `millpond alter` or `millpond drop`" in text


def test_what_else_may_differ() -> None:
    assert "has 2 instances, not 3." in refused([query("one")], [query("one")], instances=3)
    assert "`millpond scale 3`" in refused([query("one")], [query("one")], instances=3)
    other = replace(TX, source=Source("json", (("path", "/elsewhere"),)))
    text = refused([query("one")], [query("one")], other)
    assert "another declaration of stream tx. In tx, the option path was '/in' and is now '/elsewhere'." in text


def test_what_is_the_same_is_taken() -> None:
    known = PondSpec.of((TX,), [query("one")], 2)
    other_text = replace(query("one"), text="SELECT  1")
    assert checked_spec(Path("p"), known, [other_text], [TX], 2, {}).meaning == known.meaning


def test_the_policy_for_malformed_records_may_change() -> None:
    known = PondSpec.of((TX,), [query("one")], 2)
    letters = replace(TX, malformed=Malformed(DEAD_LETTER, Sink("parquet", "/dead")))
    changed = checked_spec(Path("p"), known, [query("one")], [letters], 2, {})
    assert changed.streams == (replace(letters, first_malformed=None),)
    assert changed.streams[0].identity == TX, "names of derived streams stay"
    back = checked_spec(Path("p"), changed, [query("one")], [TX], 2, {})
    assert back.streams == (TX,)


def _query(kind: str) -> Selection:
    return Selection("q", "s", output=(Named("h", Column("h", kind)),))


def _stream(kind: str) -> Stream:
    return Stream("s", (Field("h", kind),), Source("json", (("path", "in"),)))


def test_a_pond_of_before_has_no_backticks_in_its_types() -> None:
    old, new = "struct<content-type:string>", "struct<`content-type`:string>"
    known = PondSpec.of((_stream(old),), [_query(old)], 1)
    assert checked_spec(Path("p"), known, [_query(new)], [_stream(new)], 1, {}) == known
    with pytest.raises(ForeignPondError, match="query q is changed"):
        checked_spec(Path("p"), known, [_query("struct<`content`:string>")], [_stream(new)], 1, {})


def test_a_default_is_a_part_of_what_a_stream_is() -> None:
    known = PondSpec.of((_stream("string"),), [_query("string")], 1)
    assert b"default" not in msgspec.json.encode(known) and b"char" not in msgspec.json.encode(known.streams)
    other = msgspec.structs.replace(_stream("string"), columns=(Field("h", "string", "'a'"),))
    with pytest.raises(ForeignPondError, match="another declaration of stream s"):
        checked_spec(Path("p"), known, [_query("string")], [other], 1, {})


def test_texts_of_a_file_that_a_pond_in_use_does_not_take() -> None:
    queries = [replace(query(name), text="SELECT count(*) AS n") for name in ("one", "two", "added")]
    assert unused_texts({"one": "SELECT  count(*)\nAS n"}, queries) is None
    note = unused_texts({"one": "SELECT count(*) AS m", "two": "SELECT count(*) AS n", "new": "SELECT 1"}, queries)
    assert note == (
        "The queries of a file are used only when a pond is new. Here new is not in the pond (`millpond add`); "
        "one has another text there (`millpond alter`)."
    )
