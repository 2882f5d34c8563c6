"""The page to sign in, with and without the libraries of the console."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from millpond.service.api.sessions import Sessions
from millpond.service.server.browser.sign_in import Entrance
from millpond.service.server.guard import Application, Receive, Scope, Send

TOKEN = "a-token-of-some-length"


@pytest.fixture
def entrance(http_client: Callable[[Any], Any]) -> Callable[..., Any]:
    def made(loads: list[str] | None = None, secure: bool = False) -> Any:
        async def inside(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"public")]})
            await send({"type": "http.response.body", "body": scope["path"].encode()})

        async def load() -> Application:
            assert loads is not None
            loads.append("loaded")
            return inside

        app = FastAPI()
        Entrance(TOKEN, Sessions(TOKEN), secure, None if loads is None else load).add_to(app)
        return http_client(app)

    return made


def test_without_its_libraries_the_page_says_how_to_install_them(entrance: Callable[..., Any]) -> None:
    found = entrance()
    assert {found.get(path).headers["location"] for path in ("/", "/console")} == {"/sign-in"}
    assert "not installed. Run <code>pip install " in found.get("/sign-in").text


def test_the_token_or_a_code_gives_a_session_and_never_the_token(entrance: Callable[..., Any]) -> None:
    found, sessions = entrance([], secure=True), Sessions(TOKEN)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert found.post("/sign-in", content="token=wrong", headers=kind).status_code == 401
    sent = found.post("/sign-in", content=f"token={TOKEN}", headers=kind)
    opened = found.get("/sign-in", params={"code": sessions.issue("code")})
    assert (sent.status_code, sent.headers["location"], opened.status_code) == (303, "/console/", 200)
    for page, after in (("/console/queries/a", "/console/queries/a"), ("https://evil.example", "/console/")):
        assert f'action="/sign-in?page={after}"' in found.get("/sign-in", params={"page": page}).text
        done = found.post("/sign-in", params={"page": page}, content=f"token={TOKEN}", headers=kind)
        assert done.headers["location"] == after
    for answer in (sent, opened):
        cookie = answer.headers["set-cookie"]
        assert TOKEN not in cookie and {"HttpOnly", "SameSite=strict", "Secure"} <= set(cookie.split("; "))
        session = sessions.in_cookies(cookie.partition(";")[0])
        assert sessions.accepts("session", session)
    for path in ("/", "/console"):
        inside = found.get(path, headers={"cookie": f"{sessions.cookie}={session}"})
        assert inside.headers["location"] == "/console/"
    left = found.post("/sign-out", headers={"cookie": f"{sessions.cookie}={session}"})
    assert left.headers["location"] == "/sign-in" and "Max-Age=0" in left.headers["set-cookie"]


def test_the_console_is_loaded_once_and_its_pages_are_not_framed(entrance: Callable[..., Any]) -> None:
    loads: list[str] = []
    found = entrance(loads)
    assert not loads
    answers = [found.get("/console/x") for _ in range(2)]
    assert loads == ["loaded"]
    assert {answer.headers["x-frame-options"] for answer in answers} == {"DENY"}
    assert {answer.headers["cache-control"] for answer in answers} == {"public"}
