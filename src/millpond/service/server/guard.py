"""Checks every request before the API: sizes, host, origin, rate and token, in this order.

Everything that is not allowed is refused, even for paths that do not exist. Only `/v1/health` and the page to sign in
need no token. Requests of the console have a session instead; it counts for the console only.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from millpond.clock import Clock, lap_us
from millpond.errors import AccessError, BusyError, MillpondError, RequestError
from millpond.service.api.messages import Refusal
from millpond.service.api.sessions import Sessions
from millpond.service.server.browser.access import ENTRANCE, SIGN_IN, console_page, is_foreign, is_visit, of_console

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/v1/health"})
"""Paths that need no token: they only reveal whether this process leads."""

HEAD_BYTES = 16 << 10
"""The largest total size of the first line and the headers of a request."""

HEADERS_AT_MOST = 100

GUESS_COSTS = 10
"""The number of requests as which a wrong token counts."""

_ADDRESSES = 1024
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_BODY_IS_REFUSED = (413, 415)
_DISCARDED_BYTES, _DISCARD_SECONDS = 4 << 20, 2.0


class Limits(NamedTuple):
    """The limits of a service: the bytes of a body, the seconds in which it must arrive, the requests per second of one
    address, and the size of a burst.
    """

    body_bytes: int = 256 << 10
    per_second: float = 50.0
    burst: float = 100.0
    body_seconds: float = 10.0


DEFAULT = Limits()


class Rates:
    """A token bucket per address; the addresses that were seen least recently are forgotten."""

    def __init__(self, limits: Limits, clock: Clock = lap_us) -> None:
        self._limits, self._clock = limits, clock
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, address: str, cost: float = 1.0) -> bool:
        """Whether a request of that cost is allowed now; a refused request costs nothing."""
        now = self._clock()
        left, seen = self._known.pop(address, (self._limits.burst, now))
        left = min(self._limits.burst, left + (now - seen) / 1e6 * self._limits.per_second)
        allowed = left >= cost
        self._known[address] = (left - cost if allowed else left, now)
        if len(self._known) > _ADDRESSES:
            self._known.popitem(last=False)
        return allowed

    def fine(self, address: str, cost: float) -> None:
        """Take an additional cost, at most what the bucket has."""
        left, seen = self._known.get(address, (self._limits.burst, self._clock()))
        self._known[address] = (max(0.0, left - cost), seen)


class Guard:
    """Forwards allowed requests to `app`, and refuses all others itself.

    `hosts`: the allowed Host headers, without the port; `origins`: the Origins a browser may send, none by default.
    `trust` is called with address and port of each client that sent the token. `sessions`: those of the console;
    without them its paths need the token, as all others do.
    """

    def __init__(
        self, app: Application, token: str, hosts: frozenset[str], *, origins: frozenset[str] = frozenset(),
        limits: Limits = DEFAULT, clock: Clock = lap_us, trust: Callable[[tuple[str, int]], None] = lambda _: None,
        sessions: Sessions | None = None,
    ) -> None:  # fmt: skip
        self._app, self._token = app, _digest(token.encode())
        self._hosts, self._origins, self._limits = hosts, origins, limits
        self._rates, self._strangers, self._pages = (Rates(limits, clock) for _ in range(3))
        self._trust, self._sessions = trust, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            raise RuntimeError(f"the service speaks HTTP, not {scope['type']}")
        elif (refused := self._refused(scope)) is not None:
            if refused[0] in _BODY_IS_REFUSED:
                await _discard(receive)
            if refused[0] == 401 and self._is_page(scope) and is_visit(_headers(scope) or {}):
                await _redirect(send, f"{SIGN_IN}?page={quote(console_page(quote(scope['path'])))}")
            else:
                await _answer(send, *refused)
        else:
            try:
                body = await asyncio.wait_for(self._body(receive), self._limits.body_seconds)
            except asyncio.TimeoutError:
                await _answer(send, 408, RequestError("The body did not come in time.", "Send it at once."))
                return
            if body is None:
                await _answer(send, 413, self._too_large())
            else:
                await self._app(scope, _replayed(body, receive), send)

    def _refused(self, scope: Scope) -> tuple[int, MillpondError] | None:
        if (large := _large_head(scope)) is not None:
            return large
        headers = _headers(scope)
        if headers is None:
            return 400, RequestError("A header that may come once comes twice.", "Send it once.")
        host = _host(headers.get("host", ""))
        if host not in self._hosts:
            cure = "Use one of its names; `--allow-host` adds one."
            return 403, AccessError(f"The service is not known as {host!r}.", cure)
        origin, page = headers.get("origin"), self._is_page(scope)
        if is_foreign(scope["method"], headers) if page else origin is not None and origin not in self._origins:
            cure = "Start the service with --allow-origin."
            return 403, AccessError(f"Pages of {origin} may not send requests.", cure)
        client = scope.get("client") or ("", 0)
        address = str(client[0])
        known = self._in_session(headers) if page else self._known(headers.get("authorization", ""))
        if known:
            self._trust((address, client[1]))
        # on one machine all share an address: those without the token must not use up the rate of the others
        rates = self._strangers if not known else self._pages if page else self._rates
        guess = page and scope["path"] == SIGN_IN and scope["method"] == "POST"
        if not rates.take(address, GUESS_COSTS if guess else 1.0):
            return 429, BusyError("There are more requests than the service allows.", "Wait a second.")
        if not known and scope["path"] not in (ENTRANCE if page else OPEN):
            rates.fine(address, GUESS_COSTS - 1)
            cure = "Send `Authorization: Bearer TOKEN`; a command takes --token, or MILLPOND_TOKEN."
            return 401, AccessError("The request has no valid token.", cure)
        return self._malformed(scope, headers, page)

    def _is_page(self, scope: Scope) -> bool:
        return self._sessions is not None and of_console(scope["path"])

    def _in_session(self, headers: Mapping[str, str]) -> bool:
        sessions = self._sessions
        return sessions is not None and sessions.accepts("session", sessions.in_cookies(headers.get("cookie", "")))

    def _malformed(
        self, scope: Scope, headers: Mapping[str, str], page: bool
    ) -> tuple[int, MillpondError] | None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            return 400, RequestError("The length of the body is no number.", "Send a correct Content-Length.")
        if int(length) > self._limits.body_bytes:
            return 413, self._too_large()
        has_body = length != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body and not page and scope["method"] in _METHODS_WITH_BODY and kind != "application/json":
            return 415, RequestError("The body is not JSON.", "Send `Content-Type: application/json`.")
        return None

    def _known(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        # digests of equal length are compared, so the time reveals nothing, not even the token's length
        return hmac.compare_digest(_digest(token.strip().encode()), self._token) and scheme.lower() == "bearer"

    def _too_large(self) -> RequestError:
        return RequestError(f"The body has more than {self._limits.body_bytes} bytes.", "Send less at once.")

    async def _body(self, receive: Receive) -> bytes | None:
        """The body; None if it is longer than announced and allowed. Then the rest is read, as `_discard` does."""
        parts, size = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b""
            part = message.get("body", b"")
            size += len(part)
            if size <= self._limits.body_bytes:
                parts.append(part)
            if size > _DISCARDED_BYTES or not message.get("more_body", False):
                return b"".join(parts) if size <= self._limits.body_bytes else None


def _large_head(scope: Scope) -> tuple[int, MillpondError] | None:
    """The error if the first line and headers are too long or too many, however they were cut into packets."""
    headers, line = scope["headers"], len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    size = line + sum(len(name) + len(value) + 4 for name, value in headers)
    if size <= HEAD_BYTES and len(headers) <= HEADERS_AT_MOST:
        return None
    what = f"The request has {len(headers)} headers, and {size} bytes before its body."
    return 431, RequestError(what, f"Send at most {HEADERS_AT_MOST} headers, and {HEAD_BYTES} bytes of them.")


async def _discard(receive: Receive) -> None:
    """Read the rest of a refused body if it is short: a client that is still sending would not read the response."""

    async def read() -> None:
        size = 0
        while size <= _DISCARDED_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _DISCARD_SECONDS)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _headers(scope: Scope) -> dict[str, str] | None:
    """Headers by name; None if a header that is checked here occurs twice, as readers might see different values."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-length", "content-type", "cookie"):
            return None
        found[name] = value.decode("latin-1")
    return found


def _host(header: str) -> str:
    """The host name in a Host header, without its port.

    >>> _host("LocalHost:80"), _host("[::1]:80"), _host("")
    ('localhost', '::1', '')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns the body that was read, and then the messages after it."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def refusal(error: MillpondError) -> bytes:
    """An error as the body of a response."""
    return msgspec.json.encode(Refusal(error.code, error.what, error.cure, error.retry))


HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""The headers that are sent with each response."""


async def _redirect(send: Send, path: str) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {"location": path, **HEADERS}.items()]
    await send({"type": "http.response.start", "status": 303, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, error: MillpondError) -> None:
    body = refusal(error)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **HEADERS}
    headers |= {"www-authenticate": "Bearer"} if status == 401 else {}
    headers |= {"retry-after": "1"} if status == 429 else {}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
