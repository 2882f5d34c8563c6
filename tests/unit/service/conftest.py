"""Sends requests to an ASGI application as a client does, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest


class HttpClient:
    """Requests to one application, each in a loop of its own."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, how))

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.request("GET", path, **how)

    def post(self, path: str, **how: Any) -> httpx.Response:
        return self.request("POST", path, **how)

    async def _request(self, method: str, path: str, how: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=("testclient", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1234") as client:
            return await client.request(method, path, **how)


@pytest.fixture
def http_client() -> type[HttpClient]:
    return HttpClient
