"""Whether a pond's folder was made for what it is opened with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millpond.control.agreed import agreed
from millpond.errors import ForeignPondError
from millpond.model.endpoints import Source
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Field, Stream


def _query(kind: str) -> Selection:
    return Selection("q", "s", output=(Named("h", Column("h", kind)),))


def _stream(kind: str) -> Stream:
    return Stream("s", (Field("h", kind),), Source("json", (("path", "in"),)))


def test_a_pond_of_before_has_no_backticks_in_its_types() -> None:
    old, new = "struct<content-type:string>", "struct<`content-type`:string>"
    known = PondSpec.of((_stream(old),), [_query(old)], 1)
    assert agreed(Path("p"), known, [_query(new)], [_stream(new)], 1, {}) == known
    with pytest.raises(ForeignPondError, match="other queries"):
        agreed(Path("p"), known, [_query("struct<`content`:string>")], [_stream(new)], 1, {})


def test_a_default_is_a_part_of_what_a_stream_is() -> None:
    known = PondSpec.of((_stream("string"),), [_query("string")], 1)
    assert b"default" not in msgspec.json.encode(known) and b"char" not in msgspec.json.encode(known.streams)
    other = msgspec.structs.replace(_stream("string"), columns=(Field("h", "string", "'a'"),))
    with pytest.raises(ForeignPondError, match="other streams"):
        agreed(Path("p"), known, [_query("string")], [other], 1, {})
