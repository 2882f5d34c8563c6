"""The process of `S3Server`: moto's S3 behind a layer that counts requests, and fails those that a test names.

Paths below `/_test/` control the layer. `PUT /_test/faults` takes a JSON list of `[kind, fault]`: the next request of
that kind gets that fault. `PUT /_test/rate` takes the probability with which any request gets one of `DISTURBANCES`,
by turns.
`GET /_test/requests` returns the number of requests by kind, and `GET /_test/fault_counts` that of faults by name.

Moto looks whether an object exists and then stores it, as two steps. A real store decides in one step, so requests that
carry a condition run one at a time here.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import cycle
from random import Random
from typing import Any
from urllib.parse import parse_qs

DISTURBANCES = {
    "PUT": ("throttled", "failed after", "cut after", "delayed put"),
    "GET": ("throttled", "cut after"),
    "HEAD": ("throttled",),
    "LIST": ("throttled", "stale listing"),
}
"""Faults that a store shows under load, by kind of request; its guarantees still hold."""

_LATER = 5
"""A delayed put is carried out after this many further requests."""

MOST_UNLISTED = 3
"""The newest objects that a stale listing lacks, at most."""

_LISTED = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
_NOT_IMPLEMENTED = (
    b"<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality that is not implemented"
    b"</Message></Error>"
)


class _Layer:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._one_condition_at_a_time = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._fault_counts: Counter[str] = Counter()
        self._faults: list[list[str]] = []
        self._rate, self._random = 0.0, Random(7)
        self._turns = {kind: cycle(faults) for kind, faults in DISTURBANCES.items()}
        self._held: deque[tuple[int, Callable[[], object]]] = deque()
        self._newest: deque[str] = deque(maxlen=MOST_UNLISTED)
        self._own = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/_test/"):
            return self._control(path, environ, start)
        kind = _kind(method, path, environ.get("QUERY_STRING", ""))
        fault, due = self._noted(kind)
        for put in due:
            put()
        if fault == "delayed put":
            self._delay(environ)
            return _cut(environ, start)
        if fault == "throttled":
            _body(environ)  # the connection stays open, so it must be read to its end
            return _reply(start, "503 Slow Down", _SLOW_DOWN)
        if fault == "condition refused":
            _body(environ)
            return _reply(start, "501 Not Implemented", _NOT_IMPLEMENTED)
        if fault == "condition ignored":
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return self._store(environ, start)  # type: ignore[no-any-return]
        if fault == "stale listing":
            return self._list_stale(environ, start)
        answer = self._stored(environ, _nothing if fault else start)
        if kind == "PUT":
            self._newest.append(path)
        if fault == "failed after":
            return _reply(start, "500 Internal Server Error", _INTERNAL)
        if fault == "cut after":
            return _cut(environ, start)
        return answer

    def _stored(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """The store's own answer."""
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with self._one_condition_at_a_time:
                return self._store(environ, start)  # type: ignore[no-any-return]
        return self._store(environ, start)  # type: ignore[no-any-return]

    def _noted(self, kind: str) -> tuple[str | None, list[Callable[[], object]]]:
        """Count a request; returns its fault, and the late puts that are done before it."""
        with self._own:
            self._counted[kind] += 1
            due = []
            while self._held and self._held[0][0] <= self._counted.total():
                due.append(self._held.popleft()[1])
            fault = self._planned(kind)
            if fault is not None:
                self._fault_counts[fault] += 1
            return fault, due

    def _planned(self, kind: str) -> str | None:
        for place, (of_kind, fault) in enumerate(self._faults):
            if of_kind == kind:
                del self._faults[place]
                return fault
        if kind in DISTURBANCES and self._random.random() < self._rate:
            return next(self._turns[kind])
        return None

    def _delay(self, environ: dict[str, Any]) -> None:
        """Keep a put for later."""
        kept = {name: value for name, value in environ.items() if name != "werkzeug.socket"}
        kept["wsgi.input"] = io.BytesIO(_body(environ))
        with self._own:
            self._held.append((self._counted.total() + _LATER, lambda: self._stored(kept, _nothing)))

    def _list_stale(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """A listing as it was before the newest objects existed."""
        began: list[Any] = []
        body = b"".join(self._store(environ, lambda *words, **_: began.extend(words)))
        hidden = {path.split("/", 2)[2].encode() for path in self._newest}
        body = _LISTED.sub(lambda one: b"" if _key(one[0]) in hidden else one[0], body)
        start(began[0], [(name, value) for name, value in began[1] if name.lower() != "content-length"] + [
            ("Content-Length", str(len(body)))
        ])  # fmt: skip
        return [body]

    def _control(self, path: str, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = _body(environ)
        with self._own:
            if path == "/_test/faults":
                self._faults = json.loads(body)
                return _reply(start, "200 OK", b"")
            if path == "/_test/rate":
                self._rate = json.loads(body)
                return _reply(start, "200 OK", b"")
            shown = self._fault_counts if path == "/_test/fault_counts" else self._counted
            return _reply(start, "200 OK", json.dumps(shown).encode())


def _kind(method: str, path: str, query: str) -> str:
    """The kind of a request, as a bill names it.

    >>> _kind("GET", "/bucket/log/1", ""), _kind("GET", "/bucket", "list-type=2&prefix=log")
    ('GET', 'LIST')
    >>> _kind("POST", "/bucket", "delete"), _kind("PUT", "/bucket", "")
    ('DELETE', 'BUCKET')
    """
    given = parse_qs(query, keep_blank_values=True)
    if "/" in path.strip("/"):
        return method
    return "LIST" if "list-type" in given else "DELETE" if "delete" in given else "BUCKET"


def _body(environ: dict[str, Any]) -> bytes:
    read: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return read


def _key(listed: bytes) -> bytes:
    """The key of an object in a listing.

    >>> _key(b"<Contents><Key>log/1</Key><Size>3</Size></Contents>")
    b'log/1'
    """
    return listed.partition(b"<Key>")[2].partition(b"</Key>")[0]


def _cut(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    """End the connection without a reply."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    return _reply(start, "500 Internal Server Error", b"")


def _nothing(*_: Any, **__: Any) -> None:
    """Start no response: the reply is lost."""


def _reply(start: Any, status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    """Serve on a port until killed."""
    parser = argparse.ArgumentParser("python -m kit.programs.s3_program")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    given = parser.parse_args()
    # Imported here because pytest imports every module of the kit, and moto takes most of a second.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):  # type: ignore[misc]  # mypy does not read moto
        protocol_version = "HTTP/1.1"  # clients keep their connections

        def log(self, *_: Any) -> None:
            """Log nothing."""

    layer = _Layer(DomainDispatcherApplication(create_backend_app))
    make_server(given.host, given.port, layer, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    main()
