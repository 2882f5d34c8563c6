"""Notes on brokers that do not answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from millpond.control.checks.brokers import closed_brokers
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream


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
        [note] = closed_brokers(streams)
    refused = f"127.0.0.1:{down} (Connection refused), a..b:1 ("
    assert str(note).startswith(f"[MP-SOURCE] No broker of down can be reached: {refused}")
