"""The client of a service: what it takes to make one."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from millpond.service.api.client import Client


def test_a_client_of_an_address_without_tls_loads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[Any]()
    for name in ("load_default_certs", "load_verify_locations"):
        monkeypatch.setattr(ssl.SSLContext, name, lambda *given, **_: loaded.append(given))
    Client("http://127.0.0.1:1", "token")
    assert not loaded
    Client("http://127.0.0.1:1,HTTPS://pond.example", "token")
    assert len(loaded) == 1
