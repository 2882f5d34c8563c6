"""Webhooks: each epoch has its own key, is retried until it is accepted, and goes only to a named address."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from kit.servers.hook_server import HookServer
from millpond.errors import QueryTypeError, SetupError, StoreError
from millpond.followers.runner import Runner
from millpond.followers.sinks.webhook import WebhookConnection, WebhookOptions
from millpond.log.follower import Follower
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifests
from millpond.log.port import Log
from millpond.model.endpoints import Sink


def delivered_rows(server: HookServer) -> list[Any]:
    """The rows that were taken, in the order of epochs and parts."""
    whole = sorted(server.taken.values(), key=lambda one: (one["epoch"], one["part"]))
    return [row for one in whole for row in one["rows"]]


def expected(program: ModuleType, folder: Path) -> list[int]:
    return [n for _, table in program.entries(folder) for n in table["n"].to_pylist()]


def drive(folder: Path, follower: Follower, head: int) -> list[str]:
    """Let a runner bring the follower to the head of the log, as a pond does; the errors that it met."""
    runner = Runner(
        Log(LocalFolder(folder / "log")), Manifests(LocalFolder(folder / "manifest")), [follower], first_delay=0.02
    )
    errors: list[str] = []
    runner.start()
    runner.notify(head)
    deadline = time.monotonic() + 60
    while not runner.wait(head, 0.01):
        assert time.monotonic() < deadline
        errors += [one.error for one in runner.status() if one.error and one.error not in errors[-1:]]
    assert runner.stop(10)
    return errors


def test_rows_come_with_a_key_and_headers(hook_server: HookServer, tmp_path: Path, program: ModuleType) -> None:
    program.make_pond(tmp_path)
    sink = program.sink_of(tmp_path, "webhook", rows="20")
    program.bring(tmp_path, sink)
    sink.close()
    assert [row["n"] for row in delivered_rows(hook_server)] == expected(program, tmp_path)
    digests = {n: entry.digest[:16] for n, entry, _ in program.make_pond(tmp_path)}
    keys = [f"p/q/{n}/{part}/{digests[n]}" for n in range(1, 2 * program.EPOCHS, 2) for part in range(3)]
    assert hook_server.requested_keys == keys
    first = hook_server.taken[keys[0]]
    assert {name: first[name] for name in ("pond", "query", "epoch", "part", "parts")} == {
        "pond": "p", "query": "q", "epoch": 1, "part": 0, "parts": 3
    }  # fmt: skip
    assert first["rows"][0]["w"] == {"start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:01:00.000Z"}
    headers = {name.lower(): value for name, value in hook_server.headers.items()}
    assert (headers["authorization"], headers["a"]) == ("Bearer x", "b")
    assert headers["content-type"] == "application/json"


def test_a_server_that_fails_hangs_or_answers_into_the_void_gets_every_row(
    hook_server: HookServer, tmp_path: Path, program: ModuleType
) -> None:
    log = list(program.make_pond(tmp_path))
    hook_server.answers = [500, "hang", "lost", 200, 429, 200, 200, "lost", 404]
    sink = program.sink_of(tmp_path, "webhook", rows="30")
    errors = drive(tmp_path, sink, log[-1][0])
    sink.close()
    assert [row["n"] for row in delivered_rows(hook_server)] == expected(program, tmp_path)
    requested = [key.rpartition("/")[0] for key in hook_server.requested_keys[:5]]
    assert requested == ["p/q/1/0"] * 4 + ["p/q/1/1"], "what was answered is not sent again"
    assert len(hook_server.requested_keys) == len(hook_server.taken) + 6
    for words in ("answered 500", "did not answer: ReadTimeout", "nothing is lost meanwhile"):
        assert any(words in error for error in errors), (words, errors)


def test_a_redirect_is_followed_nowhere(hook_server: HookServer, tmp_path: Path, program: ModuleType) -> None:
    program.make_pond(tmp_path)
    hook_server.answers = [302]
    sink = program.sink_of(tmp_path, "webhook")
    with pytest.raises(StoreError, match=r"The address of q answered 302 Found.*Mend the address"):
        program.bring(tmp_path, sink)
    sink.close()


@pytest.mark.slow
def test_a_driver_that_is_killed_sends_again_what_may_have_arrived(
    hook_server: HookServer, tmp_path: Path, program: ModuleType, bring_killed: Callable[..., int]
) -> None:
    program.make_pond(tmp_path)
    faults = "delivery.before:2:kill,delivery.written:4:kill"
    assert bring_killed("webhook", faults=faults) == 3
    assert [row["n"] for row in delivered_rows(hook_server)] == expected(program, tmp_path)
    assert len(hook_server.requested_keys) > len(hook_server.taken) == program.EPOCHS


def test_only_the_operator_sets_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WebhookOptions.of("q", Sink("webhook")) == (None, 1000)
    with pytest.raises(QueryTypeError, match="'rows' of the webhook of q is '0'"):
        WebhookOptions.of("q", Sink("webhook", None, (("rows", "0"),)))
    ca = {"ca": str(tmp_path / "none.pem")}
    for url, more in (("file:///secret", {}), ("https://h/secret", ca), ("https://ann:secret/word@h", {})):
        with pytest.raises(SetupError, match=r"cannot be called.*Mend the named connection") as refused:
            msgspec.convert({"kind": "http", "url": url, **more}, WebhookConnection).client()
        assert "secret" not in str(refused.value)
