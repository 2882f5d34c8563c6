"""The table of sources: what each row says fits what uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.inputs.plugin_packages import install_plugin
from millpond.errors import MillpondError, SetupError
from millpond.model.endpoints import BUILT_IN, GROUP, REDIS, Source, SourceKind, source_kind, stream_names, table_names
from millpond.model.stream import Field, Stream, check_source
from millpond.plugins import imported
from millpond.spark.sources.kafka import KAFKA, READER
from millpond.spark.sources.pond_tables import FORMAT
from millpond.spark.sources.value_formats import OPTIONS as FORMAT_OPTIONS


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_each_kind_is_consistent(kind: SourceKind) -> None:
    for attribute in (kind.prepare, kind.look):
        assert attribute is None or callable(imported(f"the source {kind.name}", attribute, kind.extra))
    assert len({option.lower() for option in kind.options}) == len(kind.options)
    assert {*kind.manners} <= {*kind.options}
    assert not kind.stream or {*kind.paths} & {option.lower() for option in kind.options} or not kind.files
    assert not kind.stream or kind.options
    assert kind.stream or kind.table_options or kind.again or kind.columns, "nobody can use it"


def test_kafka_takes_the_options_of_its_reader_and_of_its_formats() -> None:
    options = {*source_kind(KAFKA).options}
    own = {"connection", "format", "subscribe", "subscribePattern", "epochTarget"}
    assert options == own | {*READER} | {*FORMAT_OPTIONS.split()}


def test_names_of_streams_and_tables() -> None:
    assert stream_names() == ("parquet", "json", "csv", "orc", "avro", "rate", "delta", "iceberg", "kafka")
    assert table_names() == ("parquet", "json", "csv", "orc", "jdbc", FORMAT, REDIS)


def test_a_stream_of_delta_may_leave_out_changes_from_a_run_on() -> None:
    kept = (("path", "t"), ("startingVersion", "1"))
    assert Source("delta", (*kept, ("skipChangeCommits", "true"))).meaning == Source("delta", kept)


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (Field("c", "string", char="char(4)"), {}, r"c of the stream tx is char\(4\).*Declare STRING.*rpad"),
        (Field("c", "array<string>", char="array<char(4)>"), {}, r"c of the stream tx is array<char\(4\)>"),
        (Field("c", "string"), {"path": "s3a://b/x"}, r"table of the stream tx, s3a://b/x, is not local"),
        (Field("c", "string"), {"skipChangeCommits": "yes"}, r"'skipChangeCommits' is 'yes'.*'true' or 'false'"),
    ],
)
def test_what_a_stream_of_delta_cannot_read_is_refused(column: Field, options: dict[str, str], message: str) -> None:
    with pytest.raises(MillpondError, match=message):
        check_source(Stream("tx", (column,), Source("delta", tuple(options.items()))))
    check_source(Stream("tx", (Field("c", "string"),), Source("delta", (("skipChangeCommits", "TRUE"), ("path", "x")))))


def test_a_source_that_is_not_listed_has_nothing_special() -> None:
    kind = source_kind("socket")
    assert not (kind.stream or kind.again or kind.files)
    assert Source("socket", (("host", "a"),)).meaning == Source("socket", (("host", "a"),))


def test_a_package_registers_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
from millpond.model.endpoints import SourceKind
KIND = SourceKind(name="ndjson", options=("path", "speed"), files=True, manners=("speed",))
"""
    registered = {"ndjson": "millpond_lines:KIND", "kafka": "millpond_lines:KIND", "gone": "millpond_lines:NOTHING"}
    registered |= {"other": "millpond_lines:KIND"}
    install_plugin(tmp_path, monkeypatch, GROUP, registered, millpond_lines=text)
    assert source_kind("ndjson").options == ("path", "speed")
    assert "ndjson" in stream_names()
    assert Source("ndjson", (("path", "x"), ("speed", "1"))).meaning == Source("ndjson", (("path", "x"),))
    with pytest.raises(SetupError, match="source other of a package has another name, ndjson, in its SourceKind"):
        source_kind("other")
    with pytest.raises(SetupError, match="source 'kafka' is taken twice"):
        source_kind("kafka")
    with pytest.raises(SetupError, match=r"source 'gone' of the package plugin .* cannot be imported"):
        source_kind("gone")


@pytest.mark.parametrize(("given", "words"), [
    ('name="x", again=True', "cannot be read again, because it is not a folder of files"),
    ('name="x", topics=True', "reads topics, which only a source of Millpond can"),
    ('name="x", marks_malformed=True', "marks malformed records, but is not a folder of files"),
    ('name="X"', "has a name with capital letters, which SQL does not distinguish"),
])  # fmt: skip
def test_a_source_of_a_package_that_is_wrong(
    given: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from millpond.model.endpoints import SourceKind\nKIND = SourceKind({given})"
    name = "X" if "X" in given else "x"
    install_plugin(tmp_path, monkeypatch, GROUP, {name: "millpond_x:KIND"}, millpond_x=text)
    with pytest.raises(SetupError, match=f"The source {name} of a package {words}"):
        source_kind(name)


def test_what_kinds_of_millpond_can_do() -> None:
    assert [kind.name for kind in BUILT_IN if kind.topics] == [KAFKA]
    assert [kind.name for kind in BUILT_IN if kind.marks_malformed] == ["json", "csv"]
    assert all(kind.files or kind.topics for kind in BUILT_IN if kind.again)
