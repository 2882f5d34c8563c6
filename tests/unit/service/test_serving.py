"""By which names a service may be asked, which its own machine is told, and what is refused before it begins."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.errors import CertificateError, ChangeRefused, NotServingError, StoreError
from millpond.service.client import Client
from millpond.service.options import Options
from millpond.service.serving import Web, check_stores, known_names, serve, told_name

Certified = Callable[..., Web]


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    def made(host: str, *names: str, told: tuple[str, ...] = ()) -> Web:
        """A service at `host` with a certificate that signs itself, for names such as `DNS:localhost`."""
        openssl = shutil.which("openssl")
        assert openssl is not None, "openssl makes the certificate"
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
             "-days", "2", "-subj", "/CN=somebody", "-addext", f"subjectAltName={','.join(names)}"],
            check=True, capture_output=True,
        )  # fmt: skip
        return Web(host, 0, certificate, key, told)

    return made


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "10.0.0.7"])
def test_the_names_of_loopback_are_always_known(host: str) -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= known_names(Web(host))


def test_names_that_others_ask_by_are_known_where_others_can_reach() -> None:
    own = socket.gethostname().lower()
    assert {own, "10.0.0.7", "pond.example"} <= known_names(Web("10.0.0.7", names=("Pond.Example",)))
    assert known_names(Web("127.0.0.1")) == {"localhost", "127.0.0.1", "::1"}


def test_commands_are_told_a_name_that_the_certificate_has(certified: Certified) -> None:
    assert told_name(Web("127.0.0.1")) == ("127.0.0.1", True)
    assert told_name(certified("0.0.0.0", "DNS:localhost", "DNS:pond.example")) == ("localhost", True)
    assert told_name(certified("0.0.0.0", "IP:127.0.0.1")) == ("127.0.0.1", True)
    assert told_name(certified("127.0.0.1", "DNS:localhost")) == ("localhost", True)
    both = certified("0.0.0.0", "DNS:localhost", "DNS:pond.example", told=("pond.example",))
    assert told_name(both) == ("pond.example", True), "the name that the operator tells goes first"
    assert told_name(certified("10.0.0.7", "DNS:localhost")) == ("10.0.0.7", False), "nobody listens at localhost"
    assert told_name(certified("0.0.0.0", "DNS:pond.example")) == ("localhost", False)


@contextmanager
def shaking_hands(web: Web) -> Iterator[str]:
    """The port of something that shows the certificate, and no more."""
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
        thread.join(10)


def test_a_certificate_that_is_not_taken_is_told_as_such(certified: Certified) -> None:
    web = certified("127.0.0.1", "DNS:pond.example")
    with shaking_hands(web) as port, pytest.raises(CertificateError, match="is for another name") as told:
        Client(f"https://127.0.0.1:{port}", "token", certificate=web.certificate).health()
    assert "--url" in told.value.cure and "--allow-host" in told.value.cure
    with shaking_hands(web) as port, pytest.raises(CertificateError, match="is not trusted here") as told:
        Client(f"https://127.0.0.1:{port}", "token").health()
    assert "--ca" in told.value.cure


def test_where_nobody_listens_no_pond_is_served() -> None:
    with pytest.raises(NotServingError, match="no pond is served there now") as told:
        Client("http://127.0.0.1:9", "token").health()
    assert "Errno" not in str(told.value)


def options(folder: Path, store: str = "lmdb", *shards: str) -> Options:
    return Options("", folder, "local[1]", "700m", store, None, None, 10.0, shards)


def test_stores_of_no_known_kind_are_refused_before_the_pond_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pond = tmp_path / "tx.pond"
    for store, shard in (("bogus:xx", "lmdb"), ("lmdb", "bogus:xx")):
        with pytest.raises(StoreError, match="There is no store 'bogus:xx'") as told:
            serve(options(pond, store, shard), Web(), print)
        assert told.value.cure.startswith("Use `lmdb`")
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
