"""Named connections: what a client is told, and that secrets stay where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import QueryRefused, RequestError, SetupError
from millpond.model.endpoints import Sink
from millpond.runtime.connections import VARIABLE, connection, offered
from millpond.service.hosted import _sink
from millpond.service.wire import Asked


def told(folder: Path, **connections: Any) -> dict[str, str]:
    (folder / "c.json").write_text(json.dumps(connections))
    return {VARIABLE: str(folder / "c.json")}


def test_a_client_is_told_all_that_a_connection_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    (tmp_path / "password").write_text('a"b\\c\n')
    prod = {
        "servers": "a.example:9093,b.example:9093", "security": "sasl_ssl", "mechanism": "SCRAM-SHA-256",
        "user": "pond", "password": {"file": str(tmp_path / "password")}, "ca": str(tmp_path / "ca.pem"),
    }  # fmt: skip
    found = connection("prod", told(tmp_path, prod=prod))
    assert found.of_java() == {
        "bootstrap.servers": "a.example:9093,b.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="pond" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "PEM",
    }
    assert found.of_c() == {
        "bootstrap.servers": "a.example:9093,b.example:9093",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "pond",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    monkeypatch.setenv("SECRET", "x")
    other = connection("b", told(tmp_path, b=prod | {"password": {"env": "SECRET"}}))
    assert other.of_c()["sasl.password"] == "x"
    monkeypatch.delenv("SECRET")
    with pytest.raises(SetupError, match="no variable SECRET"):
        other.of_c()


def test_the_only_connection_needs_no_name(tmp_path: Path) -> None:
    one = {"servers": "h:1"}
    assert connection(None, told(tmp_path, a=one)).servers == "h:1"
    with pytest.raises(SetupError, match=r"No connection is named, of several; .* has a, b"):
        connection(None, told(tmp_path, a=one, b=one))
    with pytest.raises(SetupError, match="There is no connection c"):
        connection("c", told(tmp_path, a=one))
    with pytest.raises(SetupError, match="No connections are known"):
        connection("c", {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": "h:1", "password": "plain"}, {"servers": "h:1", "sasl.jaas.config": "x"},
        {"servers": "h:1", "security": "none"}, {"servers": "h"}, {"servers": "h:1\nx=y"},
    ],
)  # fmt: skip
def test_a_connection_says_nothing_else(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        connection("a", told(tmp_path, a=wrong))


def test_kinds_are_told_apart_and_only_what_is_offered_serves_queries_from_afar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = {"kind": "http", "url": "https://h/"}
    told_ = told(tmp_path, k={"servers": "h:1"}, a=hook, b=hook | {"remote": True})
    assert connection(None, told_).servers == "h:1"
    with pytest.raises(SetupError, match=r"There is no connection k; .* has a, b of the kind http"):
        offered("k", "http", told_)
    monkeypatch.setenv(VARIABLE, told_[VARIABLE])
    to = Asked("q", "SELECT 1", sink="webhook", connection="b")
    assert _sink(to, tmp_path) == Sink("webhook", None, (("connection", "b"),))
    for name, words in (("a", "not for queries that come over the network"), (None, "No connection is named")):
        with pytest.raises(QueryRefused, match=words):
            _sink(Asked("q", "SELECT 1", sink="webhook", connection=name), tmp_path)
    assert _sink(Asked("q", "SELECT 1", sink="delta"), tmp_path) == Sink("delta", str(tmp_path / "q"))
    assert _sink(Asked("q", "SELECT 1"), tmp_path) == Sink("noop")
    with pytest.raises(RequestError, match="names a connection without a webhook"):
        _sink(Asked("q", "SELECT 1", sink="json", connection="b"), tmp_path)
