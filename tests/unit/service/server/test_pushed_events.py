"""Events pushed over HTTP: each request is one complete, durable file, and a repeated request adds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millpond.errors import ChangeRefused, RequestError
from millpond.model.endpoints import Source
from millpond.model.spec import PondSpec
from millpond.model.stream import Field, Stream
from millpond.service.server.pushed_events import push

COLUMNS = (Field("ts", "timestamp"), Field("name", "string"))
EVENT = {"ts": "2026-01-01T00:00:00Z", "name": "Zoë\n"}


def spec(source: str, path: str | None) -> PondSpec:
    options = () if path is None else (("path", path),)
    return PondSpec((Stream("tx", COLUMNS, Source(source, options)),), (), 1)


def raw(*events: dict[str, Any]) -> list[dict[str, msgspec.Raw]]:
    return [{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in event.items()} for event in events]


def files(folder: Path) -> list[list[dict[str, Any]]]:
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.iterdir())]


def test_each_request_is_a_file_and_a_repeated_one_adds_nothing(tmp_path: Path) -> None:
    pond, folder = spec("json", str(tmp_path / "in")), tmp_path / "in"
    first = push(pond, "tx", "a/../b", raw(EVENT, {"name": None}))
    assert (first.events, first.repeated) == (2, False)
    assert push(pond, "tx", "a/../b", raw(EVENT, {"name": None})).repeated
    push(pond, "tx", "other", raw(EVENT))
    assert sorted(files(folder), key=len) == [[EVENT], [EVENT, {"name": None}]]
    assert all(path.name.startswith("pushed-") and path.suffix == ".json" for path in folder.iterdir())


def test_a_key_cannot_be_used_for_other_events(tmp_path: Path) -> None:
    pond = spec("json", str(tmp_path / "in"))
    push(pond, "tx", "a", raw(EVENT))
    with pytest.raises(ChangeRefused, match="'a' was used for other events"):
        push(pond, "tx", "a", raw(EVENT, EVENT))
    assert files(tmp_path / "in") == [[EVENT]]


def test_a_relative_folder_is_that_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    push(spec("json", "in"), "tx", "a", raw(EVENT))
    assert files(tmp_path / "in") == [[EVENT]]


@pytest.mark.parametrize(
    ("source", "path", "name", "event", "words"),
    [
        ("json", "in", "ty", EVENT, "no stream 'ty'"),
        ("parquet", "in", "tx", EVENT, "only into a stream that reads one folder of JSON files"),
        ("json", "in/*", "tx", EVENT, "only into a stream that reads one folder of JSON files"),
        ("kafka", None, "tx", EVENT, "only into a stream that reads one folder of JSON files"),
        ("json", "in", "tx", {"nam": 1}, "no column 'nam'"),
        ("json", "in", "tx", {"Name": "a"}, "no column 'Name'"),
    ],
)
def test_what_cannot_be_pushed_is_refused_and_writes_nothing(
    tmp_path: Path, source: str, path: str | None, name: str, event: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        push(spec(source, path and str(tmp_path / path)), name, "a", raw(EVENT, event))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["multiLine", "pathGlobFilter", "encoding", "lineSep"])
def test_a_stream_of_other_files_is_refused(tmp_path: Path, option: str) -> None:
    stream = Stream("tx", COLUMNS, Source("json", (("path", str(tmp_path)), (option, "x"))))
    with pytest.raises(RequestError, match=f"other files than lines of JSON: {option}"):
        push(PondSpec((stream,), (), 1), "tx", "a", raw(EVENT))


def test_the_digits_of_a_number_are_kept_and_an_event_is_one_line(tmp_path: Path) -> None:
    values = {"ts": msgspec.Raw(b"12345678901234567.890"), "name": msgspec.Raw(b'{ "a" :\n [1.50] }')}
    push(spec("json", str(tmp_path)), "tx", "a", [values])
    (file,) = tmp_path.iterdir()
    assert file.read_text() == '{"ts":12345678901234567.890,"name":{"a":[1.50]}}\n'
