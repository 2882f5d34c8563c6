"""The client of a service: what it takes to make one."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from millpond.service.api.client import Client
from millpond.service.api.service_files import Leader, Places


def test_a_client_of_an_address_without_tls_loads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[Any]()
    for name in ("load_default_certs", "load_verify_locations"):
        monkeypatch.setattr(ssl.SSLContext, name, lambda *given, **_: loaded.append(given))
    Client("http://127.0.0.1:1", "token")
    assert not loaded
    Client("http://127.0.0.1:1,HTTPS://pond.example", "token")
    assert len(loaded) == 1


def test_the_certificate_of_a_leader_on_another_host_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[Any]()
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda _, file: loaded.append(file))
    places, here = Places(tmp_path), tmp_path / "here.pem"
    places.make()
    here.touch()
    for certificate in (tmp_path / "elsewhere.pem", here):
        places.write_leader(Leader("https://pond.example", os.getpid(), "writer", certificate=str(certificate)))
        client = Client.of(tmp_path, token="0123456789abcdef")
        assert client.url == "https://pond.example"
    assert loaded == [str(here)]
