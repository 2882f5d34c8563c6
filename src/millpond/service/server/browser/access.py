"""Decides which requests of browsers may reach the web console, and which of them need no session.

Cookies are shared by all ports of a host, and other servers of the host count as the same site. So a session is
accepted only in requests that a page of the same origin makes, and in visits of a page by its address or a link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CONSOLE = "/console"
"""The path of the console; everything below it needs a session."""

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
ENTRANCE = frozenset({"/", SIGN_IN, SIGN_OUT})
"""The paths that a browser without a session may visit."""

PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
        "frame-ancestors 'none'; form-action 'self'; base-uri 'self'; object-src 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of each page: it loads nothing from elsewhere, and is no part of another page."""

_PAGE = re.compile(rf"{CONSOLE}(?:/[\w%~-]+)*/?", re.ASCII)
_SAME = frozenset({"same-origin", "none"})
_READING = frozenset({"GET", "HEAD"})


def of_console(path: str) -> bool:
    """Whether a path is one of the console or of its entrance.

    >>> of_console("/"), of_console("/console/x"), of_console("/consoles"), of_console("/v1/status")
    (True, True, False, False)
    """
    return path in ENTRANCE or path == CONSOLE or path.startswith(f"{CONSOLE}/")


def console_page(path: str) -> str:
    """The page of the console that a path names, to continue there after the sign-in; else the first page.

    >>> console_page("/console/queries/a%2Fb"), console_page("//evil.example"), console_page("/console/../v1")
    ('/console/queries/a%2Fb', '/console/', '/console/')
    """
    return path if _PAGE.fullmatch(path) else f"{CONSOLE}/"


def is_foreign(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may have been made by another page than those of the console.

    >>> is_foreign("POST", {"host": "localhost:80", "origin": "http://localhost:80"})
    False
    >>> is_foreign("POST", {"host": "localhost:80", "origin": "http://localhost:81"})
    True
    >>> is_foreign("POST", {"host": "localhost:80"}), is_foreign("GET", {"host": "localhost:80"})
    (True, False)
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        return True
    if method not in _READING and origin is None:
        return True
    if headers.get("sec-fetch-site", "none") in _SAME:
        return False
    return not (method == "GET" and is_visit(headers))


def is_visit(headers: Mapping[str, str]) -> bool:
    """Whether a request opens a page in a browser, rather than being sent by a page."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
