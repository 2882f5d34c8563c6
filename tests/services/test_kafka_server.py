"""The broker of other tests is a real one, and keeps its stored data."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import pytest

from kit.servers.kafka_server import KafkaServer, main
from millpond.control.checks.brokers import unreachable_brokers
from millpond.errors import SetupError
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.spark.session import jars
from millpond.spark.session.jars import Jar, fetched


def test_a_broker_that_is_killed_has_what_it_acknowledged(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "connections.json"
    file.write_text(json.dumps({"plain": {"servers": kafka_server.servers}, "secured": kafka_server.secured}))
    monkeypatch.setenv("MILLPOND_CONNECTIONS", str(file))
    sources = [Source("kafka", (("connection", name),)) for name in ("plain", "secured")]
    assert not [*unreachable_brokers(Stream("tx", (Field("a", "int"),), source) for source in sources)]
    topic = "killed_broker"
    kafka_server.create(topic, 2)
    kafka_server.produce(topic, [(n % 2, b"k%d" % n, b"v%d" % n) for n in range(10)])
    before = kafka_server.read(topic)
    try:
        kafka_server.kill()
    finally:
        kafka_server.start()  # other tests use it
    assert kafka_server.read(topic) == before
    assert [(m.partition, m.offset, m.value) for m in before][:2] == [(0, 0, b"v0"), (0, 1, b"v2")]
    kafka_server.delete_before(topic, 0, 3)
    assert [m.offset for m in kafka_server.read(topic) if m.partition == 0] == [3, 4]


def test_its_command_says_how_to_start_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "--port 9092 --topic orders:3 --topic alerts" in text
    assert "MILLPOND_CONNECTIONS" in text
    with pytest.raises(SystemExit) as ended:
        main(["--topic", "orders:many"])
    assert ended.value.code == 2 and "'orders:many' is not NAME or NAME:PARTITIONS" in capsys.readouterr().err


def test_its_command_does_not_wait_for_a_port_that_is_taken(
    kafka_installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert f"Port {port} of 127.0.0.1 is in use" in capsys.readouterr().err


def test_a_jar_of_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MILLPOND_MAVEN", f"file://{tmp_path}/maven")
    monkeypatch.delenv(jars.FOLDER, raising=False)
    good = Jar("a.b", "c", "1", hashlib.sha256(b"bytes").hexdigest())
    place = tmp_path / "maven" / good.path
    place.parent.mkdir(parents=True)
    with pytest.raises(SetupError, match="cannot be fetched"):
        fetched([good])
    place.write_bytes(b"others")
    with pytest.raises(SetupError, match="has the digest"):
        fetched([good])
    assert not list(jars.cache_folder().iterdir())
    place.write_bytes(b"bytes")
    assert fetched([good]) == [jars.cache_folder() / "c-1.jar"]
    place.unlink()
    assert fetched([good]) == [jars.cache_folder() / "c-1.jar"]


def test_a_folder_of_jars_comes_before_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MILLPOND_MAVEN", "http://example.invalid")
    monkeypatch.setenv(jars.FOLDER, str(tmp_path))
    jar = Jar("a.b", "c", "1", hashlib.sha256(b"bytes").hexdigest())
    with pytest.raises(SetupError, match="is not fetched"):
        fetched([jar])
    (tmp_path / jar.file).write_bytes(b"bytes")
    assert fetched([jar]) == [tmp_path / "c-1.jar"]
