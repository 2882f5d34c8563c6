"""Named connections: what a client receives, and that secrets are not copied."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millpond.connections import VARIABLE, connection, offered, offered_target, unencrypted
from millpond.errors import QueryRefused, RequestError, SetupError
from millpond.model.endpoints import Sink
from millpond.service.api.messages import NewQuery
from millpond.service.server.hosted_pond import _sink


def environment_of(folder: Path, **connections: Any) -> dict[str, str]:
    (folder / "c.json").write_text(json.dumps(connections))
    return {VARIABLE: str(folder / "c.json")}


def test_a_client_gets_all_settings_of_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    (tmp_path / "password").write_text('a"b\\c\n')
    prod = {
        "servers": "a.example:9093,b.example:9093", "security": "sasl_ssl", "mechanism": "SCRAM-SHA-256",
        "user": "pond", "password": {"file": str(tmp_path / "password")}, "ca": str(tmp_path / "ca.pem"),
    }  # fmt: skip
    found = connection("prod", environment_of(tmp_path, prod=prod))
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
    other = connection("b", environment_of(tmp_path, b=prod | {"password": {"env": "SECRET"}}))
    assert other.of_c()["sasl.password"] == "x"
    monkeypatch.delenv("SECRET")
    with pytest.raises(SetupError, match="no variable SECRET"):
        other.of_c()


@pytest.mark.parametrize("left", ["", "\n"])
def test_an_empty_secret_is_refused(left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text(left)
    monkeypatch.setenv("EMPTY", "")
    for secret in ({"file": str(tmp_path / "password")}, {"env": "EMPTY"}):
        named = {"servers": "h:1", "security": "sasl_ssl", "user": "u", "password": secret}
        one = connection("a", environment_of(tmp_path, a=named))
        with pytest.raises(SetupError, match=r"(password|EMPTY) should hold a secret, but is empty"):
            one.of_c()


def test_the_only_connection_needs_no_name(tmp_path: Path) -> None:
    one = {"servers": "h:1"}
    assert connection(None, environment_of(tmp_path, a=one)).servers == "h:1"
    with pytest.raises(SetupError, match=r"No connection is named, of several; .* has a, b"):
        connection(None, environment_of(tmp_path, a=one, b=one))
    with pytest.raises(SetupError, match="There is no connection c"):
        connection("c", environment_of(tmp_path, a=one))
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
        connection("a", environment_of(tmp_path, a=wrong))


def test_remote_queries_use_only_offered_connections_of_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = {"kind": "http", "url": "https://h/"}
    environment = environment_of(tmp_path, k={"servers": "h:1"}, a=hook, b=hook | {"remote": True})
    assert connection(None, environment).servers == "h:1"
    with pytest.raises(SetupError, match=r"There is no connection k; .* has a, b of the kind http"):
        offered("k", "http", environment)
    monkeypatch.setenv(VARIABLE, environment[VARIABLE])
    to = NewQuery("q", "SELECT 1", sink="webhook", connection="b")
    assert _sink(to) == Sink("webhook", None, (("connection", "b"),))
    assert _sink(NewQuery("q", "SELECT 1", sink="webhook")) == _sink(to), "the only one that is offered"
    with pytest.raises(QueryRefused, match="not for queries that come over the network"):
        _sink(NewQuery("q", "SELECT 1", sink="webhook", connection="a"))
    assert _sink(NewQuery("q", "SELECT 1", sink="delta")) == Sink("delta")
    assert _sink(NewQuery("q", "SELECT 1")) == Sink("noop")
    with pytest.raises(RequestError, match="names a connection, but its sink, json, has none"):
        _sink(NewQuery("q", "SELECT 1", sink="json", connection="b"))


def test_connections_in_plain_text_to_other_hosts_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    known = {
        "near": {"servers": "127.0.0.1:9092,localhost:9093"},
        "six": {"servers": "[::1]:9092"},
        "safe": {"servers": "a.example:9093", "security": "sasl_ssl"},
        "open": {"servers": "127.0.0.1:9092,b.example:9092", "security": "sasl_plaintext"},
        "schemas": {"servers": "a.example:9093", "security": "ssl", "registry": {"url": "http://c.example:8081"}},
        "db": {"kind": "postgres", "host": "db.example", "database": "d", "user": "u"},
        "local": {"kind": "postgres", "host": "/run/postgresql", "database": "d", "user": "u"},
        "sealed": {"kind": "postgres", "host": "db.example", "database": "d", "user": "u", "security": "ssl"},
        "pager": {"kind": "http", "url": "http://pager.example/x"},
        "hook": {"kind": "http", "url": "https://pager.example/x"},
        "here": {"kind": "http", "url": "http://localhost:80/x"},
        "plug": {"kind": "of_a_package", "servers": ["a.example"], "security": {"tls": True}},
    }
    file.write_text(json.dumps(known))
    warnings = unencrypted({VARIABLE: str(file)})
    assert [one.split()[2] for one in warnings] == ["open", "schemas", "db", "pager"]
    assert "(kafka) is not encrypted on its way to b.example: others" in warnings[0]
    assert '"security": "ssl"' in warnings[2] and "https://" in warnings[3]
    assert unencrypted({}) == []
    file.write_text("[")
    with pytest.raises(SetupError, match="no file of connections"):
        unencrypted({VARIABLE: str(file)})


def test_topics_are_for_the_network_if_the_operator_says_so(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    known = {"prod": {"servers": "a:1", "topics": ["alerts", "fraud-*"]}, "other": {"servers": "b:1"}}
    file.write_text(json.dumps(known))
    environ = {VARIABLE: str(file)}
    assert offered_target("kafka", "prod", "alerts", environ) == ("prod", "alerts")
    assert offered_target("kafka", "prod", "fraud-eu", environ) == ("prod", "fraud-eu")
    assert offered_target("kafka", None, "alerts", environ) == ("prod", "alerts"), "the only one with topics"
    for name, topic, why in (
        ("prod", "orders", "It offers alerts, fraud-*"), ("other", "alerts", '"topics": ["alerts"]'),
        ("prod", None, "Add --topic. The operator offers alerts, fraud-* of prod."), (None, "orders", "It offers"),
    ):  # fmt: skip
        with pytest.raises(QueryRefused) as refused:
            offered_target("kafka", name, topic, environ)
        assert why in refused.value.cure


def test_one_of_several_connections_has_to_be_named(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    environ = {VARIABLE: str(file)}
    file.write_text(json.dumps({"a": {"topics": ["x"]}, "b": {"topics": ["y"]}, "hook": {"kind": "http", "url": "u"}}))
    with pytest.raises(QueryRefused) as refused:
        offered_target("kafka", None, None, environ)
    assert str(refused.value).endswith(
        "needs a connection and a topic. Add --connection and --topic. The operator offers x of a; y of b."
    )
    with pytest.raises(QueryRefused, match="offers none of this kind"):
        offered(None, "http", environ)
    hooks = {name: {"kind": "http", "url": "u", "remote": True} for name in ("hook", "pager")}
    file.write_text(json.dumps(hooks))
    with pytest.raises(QueryRefused, match="offers hook, pager"):
        offered(None, "http", environ)
    file.write_text(json.dumps({"hook": hooks["hook"]}))
    assert offered(None, "http", environ) == "hook"


@pytest.mark.parametrize("text", ["[", '{"a": {"topics": "x", "remote": true}}', '{"a": 7}'])
def test_a_malformed_file_is_reported_if_no_connection_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "connections.json"
    file.write_text(text)
    for call in (partial(offered_target, "kafka", None, "alerts"), partial(offered, None, "kafka")):
        with pytest.raises(SetupError, match="no file of connections"):
            call({VARIABLE: str(file)})
    with pytest.raises(SetupError, match="missing"):
        offered(None, "kafka", {VARIABLE: str(tmp_path / "missing.json")})
    with pytest.raises(QueryRefused, match=r"needs a connection\. The operator offers no connection for this sink"):
        offered_target("kafka", None, "alerts", {})


def test_a_pattern_of_tables_matches_within_the_schema_and_within_the_name(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    file.write_text(json.dumps({"db": {"kind": "postgres", "tables": ["shop.*", "spend_*"]}}))
    environ = {VARIABLE: str(file)}
    for table in ("shop.spend", "spend_eu"):
        assert offered_target("postgres", "db", table, environ) == ("db", table)
    for table in ("shop.a.b", "spend_x.t", "spend", "Shop.spend"):
        with pytest.raises(QueryRefused, match=f"The table {table} of db"):
            offered_target("postgres", "db", table, environ)


def test_a_query_of_the_network_writes_to_a_topic_that_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"prod": {"servers": "a:1", "topics": ["alerts"]}}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "c.json"))
    request = NewQuery("fraud", "SELECT 1", sink="kafka", connection="prod", topic="alerts")
    assert _sink(request) == Sink("kafka", None, (("connection", "prod"), ("topic", "alerts")))
    with pytest.raises(QueryRefused, match="The topic orders of prod"):
        _sink(NewQuery("fraud", "SELECT 1", sink="kafka", connection="prod", topic="orders"))
    with pytest.raises(RequestError, match="names a topic, but its sink, json, has none"):
        _sink(NewQuery("fraud", "SELECT 1", sink="json", topic="alerts"))
