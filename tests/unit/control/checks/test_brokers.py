"""Notes on brokers that do not answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.control.checks import brokers
from millpond.control.checks.brokers import WAITS_US, BrokerWatch, unreachable_brokers
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream


@contextmanager
def answering(server: socket.socket, answer_to: Callable[[bytes], bytes]) -> Iterator[list[bytes]]:
    """Answer one request to the server; the list gets it."""
    requests: list[bytes] = []

    def answer() -> None:
        client, _ = server.accept()
        with client:
            requests.append(client.recv(100))
            client.sendall(answer_to(requests[0]))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield requests
    thread.join(10)


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        up, down = server.getsockname()[1], other.getsockname()[1]
        other.close()
        file = tmp_path / "connections.json"
        file.write_text(json.dumps({
            "up": {"servers": f"127.0.0.1:{down},127.0.0.1:{up}"}, "down": {"servers": f"127.0.0.1:{down},a..b:1"},
        }))  # fmt: skip
        monkeypatch.setenv("MILLPOND_CONNECTIONS", str(file))
        options = {name: Source("kafka", (("connection", name),)) for name in ("up", "down")}
        folder = Source("json", (("path", "x"),))
        streams = [Stream(name, (Field("a", "int"),), source) for name, source in {**options, "files": folder}.items()]
        with answering(server, lambda request: bytes(4) + request[8:12] + b"rest") as requests:
            [note] = unreachable_brokers(streams)
    assert int.from_bytes(requests[0][:4], "big") == len(requests[0]) - 4
    refused = f"127.0.0.1:{down} (Connection refused), a..b:1 ("
    assert str(note).startswith(f"[MP-SOURCE] No broker of down (connection down) can be reached: {refused}")


def test_a_broker_that_is_silent_is_found_while_spark_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_SECONDS", 0.05)
    now = [0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        file = tmp_path / "connections.json"
        security = {"plain": "plaintext", "tls": "sasl_ssl"}
        file.write_text(json.dumps({name: {"servers": address, "security": one} for name, one in security.items()}))
        monkeypatch.setenv("MILLPOND_CONNECTIONS", str(file))
        streams = [Stream(name, (Field("a", "int"),), Source("kafka", (("connection", name),))) for name in security]
        watch = BrokerWatch(lambda: streams, lambda: now[0])
        noted = []
        for now[0], waits in ((0, True), (WAITS_US, True), (WAITS_US + 1, True), (3 * WAITS_US, True)):
            noted.append(len(watch.observe(waits)))
        assert noted == [0, 0, 2, 0]
        for note, name in zip(watch.found, security, strict=True):
            what = f"No broker of {name} (connection {name}) can be reached: {address} (no answer in 0.05 s)."
            assert note.what == what and "keeps trying" in note.cure and "Ctrl-C" in note.cure
        watch.observe(False)
        assert not watch.found


@pytest.mark.parametrize(
    ("security", "answer", "why"),
    [
        ("plaintext", b"HTTP/1.1 400 Bad Request\r\n\r\n", "its answer is not that of a broker"),
        ("plaintext", b"", "it closes connections"),
        ("ssl", b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak TLS"),
    ],
)
def test_a_server_that_is_no_broker_is_named(
    security: str, answer: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        file = tmp_path / "connections.json"
        file.write_text(json.dumps({"proxy": {"servers": address, "security": security}}))
        monkeypatch.setenv("MILLPOND_CONNECTIONS", str(file))
        with answering(server, lambda _request: answer):
            [note] = unreachable_brokers([Stream("tx", (Field("a", "int"),), Source("kafka", ()))])
    assert note.what == f"No broker of tx can be reached: {address} ({why})."
