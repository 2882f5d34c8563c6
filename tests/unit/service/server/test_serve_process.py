"""The names by which a service may be reached, the one for its own machine, and what is refused at the start."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.errors import CertificateError, ChangeRefused, NotServingError, SetupError, SparkError, StoreError
from millpond.service.api.client import Client
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import Leader, Places
from millpond.service.server import connection_limits, serve_process
from millpond.service.server.connection_limits import UnauthenticatedConnections
from millpond.service.server.guard import Application, Receive, Scope, Send
from millpond.service.server.restart import Restarts
from millpond.service.server.serve_process import Web, check_stores, known_names, local_name, serve
from millpond.spark.session import session

Certified = Callable[..., Web]


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    def made(host: str, *names: str, allowed: tuple[str, ...] = ()) -> Web:
        """A service at `host` with a certificate that signs itself, for names such as `DNS:localhost`."""
        openssl = shutil.which("openssl")
        assert openssl is not None, "openssl makes the certificate"
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
             "-days", "2", "-subj", "/CN=somebody", "-addext", f"subjectAltName={','.join(names)}"],
            check=True, capture_output=True,
        )  # fmt: skip
        return Web(host, 0, certificate, key, allowed)

    return made


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "10.0.0.7"])
def test_the_names_of_loopback_are_always_known(host: str) -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= known_names(Web(host))


def test_names_that_others_ask_by_are_known_where_others_can_reach() -> None:
    own = socket.gethostname().lower()
    assert {own, "10.0.0.7", "pond.example"} <= known_names(Web("10.0.0.7", names=("Pond.Example",)))
    assert known_names(Web("127.0.0.1")) == {"localhost", "127.0.0.1", "::1"}
    assert "127.0.0.2" in known_names(Web("127.0.0.2"))


def test_commands_connect_to_a_name_of_the_certificate(certified: Certified) -> None:
    assert local_name(Web("127.0.0.1")) == ("127.0.0.1", True)
    assert local_name(certified("0.0.0.0", "DNS:localhost", "DNS:pond.example")) == ("localhost", True)
    assert local_name(certified("0.0.0.0", "IP:127.0.0.1")) == ("127.0.0.1", True)
    assert local_name(certified("127.0.0.1", "DNS:localhost")) == ("localhost", True)
    both = certified("0.0.0.0", "DNS:localhost", "DNS:pond.example", allowed=("pond.example",))
    assert local_name(both) == ("pond.example", True), "the name that the operator gives goes first"
    assert local_name(certified("10.0.0.7", "DNS:localhost")) == ("10.0.0.7", False), "nobody listens at localhost"
    assert local_name(certified("0.0.0.0", "DNS:pond.example")) == ("localhost", False)


@contextmanager
def shaking_hands(web: Web) -> Iterator[str]:
    """The port of a server that only presents the certificate."""
    assert web.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(web.certificate, web.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            taken, _ = listener.accept()
            try:
                context.wrap_socket(taken, server_side=True).close()
            except OSError:
                taken.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield str(listener.getsockname()[1])
        thread.join(60)


def test_a_rejected_certificate_is_reported_as_such(certified: Certified) -> None:
    web = certified("127.0.0.1", "DNS:pond.example")
    with shaking_hands(web) as port, pytest.raises(CertificateError, match="is for another name") as error:
        Client(f"https://127.0.0.1:{port}", "token", certificate=web.certificate).health()
    assert "--url" in error.value.cure and "--allow-host" in error.value.cure
    with shaking_hands(web) as port, pytest.raises(CertificateError, match="is not trusted here") as error:
        Client(f"https://127.0.0.1:{port}", "token").health()
    assert "--ca" in error.value.cure


def test_where_nobody_listens_no_pond_is_served() -> None:
    with pytest.raises(NotServingError, match="no pond is served there now") as error:
        Client("http://127.0.0.1:9", "token").health()
    assert "Errno" not in str(error.value)
    with pytest.raises(SetupError, match=r"http://127\.0\.0\.1:port is no address: Invalid port"):
        Client("http://127.0.0.1:port", "token")
    with pytest.raises(SetupError, match=r"127\.0\.0\.1:9 does not begin with http:// or https://"):
        Client("127.0.0.1:9", "token")


def test_a_folder_takes_precedence_over_the_address_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(tmp_path)
    places.make()
    places.secret({})
    places.write_leader(Leader("http://127.0.0.1:9", 1, "me"))
    monkeypatch.setenv("MILLPOND_URL", "http://pond.example")
    assert Client.of(tmp_path).url == "http://127.0.0.1:9"
    assert Client.of(tmp_path, url="http://localhost:9").url == "http://localhost:9"
    monkeypatch.setenv("MILLPOND_TOKEN", "a-token-of-some-length")
    assert Client.of().url == "http://pond.example"


@contextmanager
def answering(app: Application, web: Web) -> Iterator[int]:
    """The port at which an application is answered as a service is."""
    with serve_process._bound(web) as listener, serve_process._answering(app, web, listener):
        yield listener.getsockname()[1]


async def silent(_scope: Scope, receive: Receive, _send: Send) -> None:
    """An application that does not answer as long as the client waits."""
    while (await receive())["type"] != "http.disconnect":
        pass


def test_a_connection_that_asks_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.5)
    with answering(silent, Web()) as port:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost:"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
                idle.sendall(sent)
                assert idle.recv(1) == b""


def test_a_connection_whose_request_is_not_yet_answered_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, looked = list[connection_limits.IdleTimeout](), threading.Event()
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 600.0)
    connection_made = connection_limits.IdleTimeout.connection_made

    def noted(self: connection_limits.IdleTimeout, transport: Any) -> None:
        made.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(connection_limits.IdleTimeout, "connection_made", noted)

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        (connection,) = made
        for before in (None, connection.cycle):  # as after one and two idle timeouts
            connection._look(before)
        assert not connection.transport.is_closing()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        connection._look(connection.cycle)
        looked.set()

    with answering(slow, Web()) as port:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert client.get("/").status_code == 200
            assert looked.wait(60)
        assert made[0].transport.is_closing(), "once the request is answered, the connection is idle again"


def test_a_timeout_of_a_client_says_that_the_change_may_still_be_made() -> None:
    with answering(silent, Web()) as port, Client(f"http://127.0.0.1:{port}", "token", timeout=0.7) as client:
        with pytest.raises(NotServingError, match="has not answered in time") as error:
            client.drop("q")
        assert "millpond history" in error.value.cure


def test_pages_of_an_allowed_origin_may_ask(http_client: Callable[..., Any]) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    page, asks = {"origin": "https://page.example"}, {"access-control-request-method": "PUT"}
    asks |= {"access-control-request-headers": "authorization,content-type"}
    web = Web(origins=("https://page.example",))
    guarded = http_client(serve_process._guarded(app, "a-token-of-some-length", web, UnauthenticatedConnections()))
    may = guarded.request("OPTIONS", "/v1/queries/q", headers=page | asks)
    assert (may.status_code, may.headers["access-control-allow-origin"]) == (200, "https://page.example")
    answer = guarded.get("/v1/queries", headers=page | {"authorization": "Bearer a-token-of-some-length"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert guarded.get("/v1/queries", headers=page).status_code == 401
    other = guarded.request("OPTIONS", "/v1/queries/q", headers=asks | {"origin": "https://evil.example"})
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


def options(folder: Path, store: str = "lmdb", *shards: str) -> Options:
    return Options("", folder, "local[1]", "700m", store, None, None, 10.0, shards)


def test_stores_of_no_known_kind_are_refused_before_the_pond_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pond = tmp_path / "tx.pond"
    for store, shard in (("bogus:xx", "lmdb"), ("lmdb", "bogus:xx")):
        with pytest.raises(StoreError, match="There is no store 'bogus:xx'") as error:
            serve(options(pond, store, shard), Web(), print)
        assert error.value.cure.startswith("Use `lmdb`")
    assert not pond.exists()
    with pytest.raises(StoreError, match="SECOND"):
        check_stores(options(pond, "lmdb", "env:SECOND"))
    monkeypatch.setenv("SECOND", "bogus:xx")
    with pytest.raises(StoreError, match="There is no store"):
        check_stores(options(pond, "lmdb", "env:SECOND"))
    with pytest.raises(ChangeRefused, match="password"):
        check_stores(options(pond, "lmdb", "redis://ann:secret@host"))
    monkeypatch.setenv("SECOND", "redis://ann:secret@host")
    check_stores(options(pond, "memory", "env:SECOND", f"lmdb:{tmp_path}/more", "rediss://host:6380"))


def test_a_service_in_the_java_of_spark_submit_ends_instead_of_replacing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(error: Exception) -> None:
        raise error

    monkeypatch.setattr(serve_process, "end_process", end)
    monkeypatch.setattr(session, "_gateways", [])
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(SparkError, match="cannot restart itself, because spark-submit has started its JVM"):
        serve_process._replace(Restarts(5, 8443))
