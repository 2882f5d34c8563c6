"""The entrance of the web console: a page that takes the token or a one-time code, and gives a session for it.

It is served by each process, also without the libraries of the console; then it says how to install them.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from html import escape
from urllib.parse import parse_qs, quote

import anyio
from fastapi import FastAPI, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from millpond.service.api.sessions import SECONDS, Sessions
from millpond.service.server.browser.access import CONSOLE, PAGE_HEADERS, SIGN_IN, SIGN_OUT, console_page
from millpond.service.server.guard import Application, Message, Receive, Scope, Send
from millpond.version import install

_HOME = f"{CONSOLE}/"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Millpond</title><link rel="icon" href="data:,">{head}<style>
:root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
main {{ max-width: 24rem; margin: 15vh auto 0; padding: 0 1rem; }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .6rem; margin: .4rem 0; }}
</style></head><body><main><h1>Millpond</h1>{body}</main></body></html>"""
_FORM = """<form method="post" action="{action}"><label for="token">Token of the pond</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form>
<p>The token is in the file <code>service/token</code> of the pond's folder. On the same machine,
<code>millpond open</code> signs in without it.</p>"""


class Entrance:
    """The routes `/`, `/console`, `/sign-in` and `/sign-out`, and the console behind them.

    `console`: loads the console at the first request; None: its libraries are not installed.
    """

    def __init__(
        self, token: str, sessions: Sessions, secure: bool, console: Callable[[], Awaitable[Application]] | None
    ) -> None:
        self._token, self._sessions, self._secure = token.encode(), sessions, secure
        self._console = None if console is None else LoadedLater(console)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application of the service."""
        for path in ("/", CONSOLE):
            app.add_api_route(path, self._root, include_in_schema=False)
        app.add_api_route(SIGN_IN, self._visited, include_in_schema=False)
        app.add_api_route(SIGN_IN, self._sent, methods=["POST"], include_in_schema=False)
        app.add_api_route(SIGN_OUT, self._sign_out, methods=["POST"], include_in_schema=False)
        if self._console is not None:
            app.mount(CONSOLE, self._console)

    async def _root(self, request: Request) -> Response:
        session = self._sessions.in_cookies(request.headers.get("cookie", ""))
        inside = self._console is not None and self._sessions.accepts("session", session)
        return RedirectResponse(_HOME if inside else SIGN_IN, 303, PAGE_HEADERS)

    async def _visited(self, code: str = "", page: str = "") -> Response:
        if self._console is None:
            return _page(f"<p>The web console is not installed. Run <code>{escape(install('console'))}</code>.</p>")
        if not code:
            return _page(_form(page))
        if not self._sessions.end("code", code):
            return _page(f'<p role="alert">This link has expired, or was used before.</p>{_form(page)}', 401)
        # a redirect after a link of another page would not carry the new cookie
        return self._signed_in(_page("<p>Signed in.</p>", head=f'<meta http-equiv="refresh" content="0;url={_HOME}">'))

    async def _sent(self, request: Request, page: str = "") -> Response:
        given = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[0].strip().encode()
        if not hmac.compare_digest(given, self._token):
            return _page(f'<p role="alert">This is not the token of the pond.</p>{_form(page)}', 401)
        return self._signed_in(RedirectResponse(console_page(page), 303, PAGE_HEADERS))

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.end("session", self._sessions.in_cookies(request.headers.get("cookie", "")))
        response = RedirectResponse(SIGN_IN, 303, PAGE_HEADERS)
        response.delete_cookie(self._sessions.cookie, secure=self._secure, httponly=True, samesite="strict")
        return response

    def _signed_in(self, response: Response) -> Response:
        response.set_cookie(
            self._sessions.cookie, self._sessions.issue("session"), max_age=SECONDS["session"], secure=self._secure,
            httponly=True, samesite="strict",
        )  # fmt: skip
        return response


class LoadedLater:
    """An ASGI application that is loaded at its first request, so that a service without readers does not pay for it.
    """

    def __init__(self, load: Callable[[], Awaitable[Application]]) -> None:
        self._load = load
        self._app: Application | None = None
        self._loading = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request."""
        async with self._loading:
            if self._app is None:
                self._app = await self._load()
        await self._app(scope, receive, _with_page_headers(send))


def _with_page_headers(send: Send) -> Send:
    """A `send` that adds the headers of pages which a response does not have."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in PAGE_HEADERS.items()]
            message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in known)]
        await send(message)

    return sending


def _form(page: str) -> str:
    """The form to sign in, and to continue at a page of the console."""
    return _FORM.format(action=escape(f"{SIGN_IN}?page={quote(console_page(page))}"))


def _page(body: str, status: int = 200, head: str = "") -> HTMLResponse:
    return HTMLResponse(_PAGE.format(head=head, body=body), status, PAGE_HEADERS)
