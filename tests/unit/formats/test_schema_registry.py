"""Schemas by number: fetched once, cached, and never guessed."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.servers.registry_server import RegistryServer
from millpond.connections import VARIABLE, SchemaRegistry, Secret
from millpond.errors import SetupError, SourceError
from millpond.formats.schema_registry import PATIENCE, Registered, Schemas, schemas_of


def test_each_schema_is_fetched_once_with_what_it_refers_to() -> None:
    with RegistryServer() as server:
        inner = server.register("inner", "I")
        middle = server.register("middle", "M", references=("inner",))
        outer = server.register("tx-value", "O", "PROTOBUF", ("middle", "inner"))
        schemas = Schemas(SchemaRegistry(server.url + "/"))
        schemas.learn(inner)
        schemas.learn(inner)
        assert server.requested == [f"/schemas/ids/{inner}"]
        schemas.learn_subjects(["tx-value", "none-value"])
        assert schemas.known()[outer] == Registered("PROTOBUF", "O", (("inner", "I"), ("middle", "M")))
        assert middle not in schemas.known()
        schemas.learn(99)
        before = len(server.requested)
        schemas.learn(99)
        schemas.learn(outer)
        assert schemas.known()[99] is None and len(server.requested) == before
        again = server.register("tx-value", "P")
        schemas.learn_subjects(["tx-value"])
        for number in range(100, 99 + PATIENCE):
            assert schemas.requests_unknown
            schemas.learn(number)
        assert not schemas.requests_unknown
        assert schemas.known()[again] == Registered("AVRO", "P")
        assert server.requested[before : before + 2] == ["/subjects/tx-value/versions", "/subjects/tx-value/versions/2"]


def test_a_registry_that_does_not_answer_is_an_error_and_not_a_missing_schema() -> None:
    with RegistryServer(user="me") as server:
        number = server.register("s", "S")
        with pytest.raises(SourceError, match="status 401"):
            Schemas(SchemaRegistry(server.url)).learn(number)
        schemas = Schemas(SchemaRegistry(server.url, "me", Secret(env="PATH")))
        server.status = 503
        with pytest.raises(SourceError, match="status 503"):
            schemas.learn(number)
        server.status = None
        schemas.learn(number)
        assert schemas.known() == {number: Registered("AVRO", "S")}
    with pytest.raises(SourceError, match="does not answer"):
        Schemas(SchemaRegistry(server.url)).learn(1)


def test_a_registry_is_named_by_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "connections.json"
    monkeypatch.setenv(VARIABLE, str(path))
    known = {"with": {"servers": "a:1", "registry": {"url": "http://r:1"}}, "without": {"servers": "a:1"}}
    path.write_text(json.dumps(known | {"wrong": {"servers": "a:1", "registry": {"url": "file:///etc/passwd"}}}))
    assert schemas_of("with") is schemas_of("with")
    with pytest.raises(SetupError, match="has no registry of schemas"):
        schemas_of("without")
    with pytest.raises(SetupError, match="is no address"):
        schemas_of("wrong")
    path.write_text(json.dumps({"login": {"servers": "a:1", "registry": {"url": "https://me:secret@r:1"}}}))
    with pytest.raises(SetupError, match="has a user or a password") as refused:
        schemas_of("login")
    assert "secret" not in str(refused.value)


def test_an_answer_that_breaks_off_is_an_error() -> None:
    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        answered = pool.submit(answer, listener)
        with pytest.raises(SourceError, match="does not answer"):
            Schemas(SchemaRegistry(f"http://127.0.0.1:{listener.getsockname()[1]}")).learn(1)
        answered.result()
