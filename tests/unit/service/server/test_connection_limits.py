"""Unauthenticated clients get few connections, clients with the token always find one: over plain TCP and TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from millpond.service.server import guard, serve_process
from millpond.service.server.connection_limits import UNAUTHENTICATED_PER_ADDRESS, UnauthenticatedConnections, origin_of
from millpond.service.server.guard import HEAD_BYTES, Receive, Scope, Send
from millpond.service.server.serve_process import Web

TOKEN = "a-token-of-some-length"
HALF_HEADS = 520
REQUESTS = 5


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


@contextmanager
def served(web: Web) -> Iterator[int]:
    """The port of an application behind the service's own guard and server."""
    with serve_process._bound(web) as listener:
        app = serve_process._guarded(echo, TOKEN, web, listener.unauthenticated)
        with serve_process._answering(app, web, listener):
            yield listener.getsockname()[1]


class Flood:
    """As many connections with half a request head as the server lets stay, opened again as soon as they are closed."""

    def __init__(self, port: int, sent: bytes) -> None:
        self._port, self._sent = port, sent
        self._ended = threading.Event()
        self.opened = self.closed = 0
        self._thread = threading.Thread(target=self._hold, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        end = time.monotonic() + 120
        while self.opened < HALF_HEADS and time.monotonic() < end:
            time.sleep(0.01)
        assert self.opened >= HALF_HEADS
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _hold(self) -> None:
        held: list[socket.socket] = []
        while not self._ended.is_set():
            while len(held) < HALF_HEADS and not self._ended.is_set():
                try:
                    made = socket.create_connection(("127.0.0.1", self._port))
                    made.sendall(self._sent)
                except OSError:
                    break
                made.setblocking(False)
                held.append(made)
                self.opened += 1
            self._ended.wait(0.3)
            gone = [one for one in held if _is_closed(one)]
            self.closed += len(gone)
            for one in gone:
                one.close()
            held = [one for one in held if one.fileno() >= 0]
        for one in held:
            one.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.fixture
def certified(tmp_path: Path) -> Web:
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl makes the certificate"
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return Web("127.0.0.1", 0, certificate, key)


def ask(client: httpx.Client, path: str = "/v1/queries") -> int:
    return client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code


@pytest.mark.parametrize("encrypted", [False, True])
def test_half_open_connections_do_not_block_clients_with_the_token(encrypted: bool, certified: Web) -> None:
    web = certified if encrypted else Web()
    verify = ssl.create_default_context(cafile=certified.certificate)
    # of TLS not even the handshake is begun: no protocol above sees such a connection
    sent = b"" if encrypted else b"GET / HTTP/1.1\r\nHost: 1"
    statuses: Counter[int] = Counter()
    with served(web) as port, Flood(port, sent) as flood:
        base = f"http{'s' if encrypted else ''}://127.0.0.1:{port}"
        for _ in range(REQUESTS):
            with httpx.Client(base_url=base, verify=verify, timeout=240) as client:
                statuses[ask(client)] += 1
                statuses[client.get("/v1/health").status_code] += 1
        with httpx.Client(base_url=base, verify=verify, timeout=240) as kept:
            assert ask(kept) == 200
            before = flood.opened
            end = time.monotonic() + 120
            while flood.opened < before + 2 * UNAUTHENTICATED_PER_ADDRESS and time.monotonic() < end:
                time.sleep(0.01)
            assert ask(kept) == 200, "a connection that has shown the token is not closed for others"
    assert statuses == {200: 2 * REQUESTS}
    assert flood.closed >= HALF_HEADS - UNAUTHENTICATED_PER_ADDRESS


def test_the_oldest_idle_connection_of_the_busiest_address_is_closed() -> None:
    unauthenticated = UnauthenticatedConnections(of_address=3, in_total=5)
    pairs = [socket.socketpair() for _ in range(8)]
    try:
        for number, host in enumerate(["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"]):
            unauthenticated.enter(pairs[number][0], (host, number))
        assert len(unauthenticated) == 4
        unauthenticated.trust(("10.0.0.1", 0))
        unauthenticated.enter(pairs[4][0], ("10.0.0.1", 4))
        assert not [number for number in range(5) if _is_over(pairs[number][1])]
        unauthenticated.enter(pairs[5][0], ("10.0.0.1", 5))  # the fourth
        assert [number for number in range(6) if _is_over(pairs[number][1])] == [1]
        unauthenticated.enter(pairs[6][0], ("10.0.0.3", 6))
        unauthenticated.enter(pairs[7][0], ("10.0.0.4", 7))  # the sixth of all
        assert [number for number in range(8) if _is_over(pairs[number][1])] == [1, 3]
        pairs[7][0].close()
        unauthenticated.enter(pairs[6][0], ("10.0.0.3", 6))  # the same port again; what is closed does not count
        assert len(unauthenticated) == 4
    finally:
        for pair in pairs:
            for one in pair:
                one.close()


class _Slow(socket.socket):
    """A socket during whose `fileno` another thread runs."""

    other: threading.Thread | None = None

    def fileno(self) -> int:
        other, self.other = self.other, None
        if other is not None:
            other.start()
            other.join(0.1)
        return super().fileno()


def test_connections_are_counted_and_trusted_in_several_threads() -> None:
    unauthenticated = UnauthenticatedConnections()
    with _Slow() as slow, socket.socket() as second, socket.socket() as third:
        unauthenticated.enter(slow, ("10.0.0.1", 1))
        unauthenticated.enter(second, ("10.0.0.1", 2))
        slow.other = second_thread = threading.Thread(target=unauthenticated.trust, args=(("10.0.0.1", 2),))
        unauthenticated.enter(third, ("10.0.0.1", 3))
        second_thread.join(60)
        assert len(unauthenticated) == 2


def _is_over(other: socket.socket) -> bool:
    other.setblocking(False)
    return _is_closed(other)


def test_a_network_of_ipv6_is_one_address() -> None:
    assert origin_of("2001:db8:0:1::7") == origin_of("2001:db8:0:1:ffff::1") != origin_of("2001:db8:0:2::7")
    assert origin_of("fe80::1%eth0") == "fe80::/64"
    assert origin_of("::ffff:10.0.0.7") == origin_of("10.0.0.7")
    assert origin_of("") == ""


def raw(port: int, sent: bytes) -> bytes:
    """All that is answered to bytes; a connection that is reset is an error."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        got = b""
        while part := connection.recv(65536):
            got += part
        return got


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [line, "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def test_a_head_has_its_limit_also_in_one_piece() -> None:
    with served(Web()) as port:
        assert raw(port, request("GET /v1/queries HTTP/1.1")).startswith(b"HTTP/1.1 200")
        fits = raw(port, request("GET /v1/queries HTTP/1.1", "X: " + "a" * (HEAD_BYTES - 500)))
        assert fits.startswith(b"HTTP/1.1 200")
        for sent in (
            request("GET /v1/queries HTTP/1.1", "X: " + "a" * HEAD_BYTES),
            request("GET /v1/queries HTTP/1.1", "X: " + "a" * 60_000),
            request("GET /v1/queries HTTP/1.1", *["X: a"] * 200),
            request(f"GET /{'a' * 60_000} HTTP/1.1"),
            request(f"GET /v1/queries?{'a' * 60_000} HTTP/1.1"),
        ):
            answer = raw(port, sent)
            assert answer.startswith(b"HTTP/1.1 431") and b"MP-REQUEST" in answer
        for sent in (
            request("GET /v1/queries HTTP/1.1", "X: " + "a" * 100_000),
            request("GET /v1/queries HTTP/1.1", *["X: a"] * 5_000),
        ):
            assert raw(port, sent).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))


def test_a_body_that_is_too_long_is_answered_and_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_DISCARD_SECONDS", 600.0)  # an answer that waited for it would come too late
    body = b"x" * 300_000
    chunked = b"493E0\r\n" + body + b"\r\n0\r\n\r\n"
    kind = "Content-Type: application/json"
    with served(Web()) as port:
        for sent in (
            request("POST /v1/queries HTTP/1.1", kind, "Transfer-Encoding: chunked", body=chunked),
            request("POST /v1/queries HTTP/1.1", kind, "Content-Length: 300000", body=body),
            request("GET /v1/status HTTP/1.1", "Content-Length: 300000", body=body),
        ):
            answer = raw(port, sent)
            assert answer.startswith(b"HTTP/1.1 413") and b"MP-REQUEST" in answer
        plain = raw(port, request("POST /v1/queries HTTP/1.1", "Content-Length: 200000", body=body[:200_000]))
        assert plain.startswith(b"HTTP/1.1 415")
