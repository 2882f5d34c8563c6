"""The process of `S3Server`: moto's S3 behind a layer that counts requests, and fails those that a test names.

Paths below `/_test/` control the layer. `PUT /_test/faults` takes a JSON list of `[kind, fault]`: the next request of
that kind gets that fault. `GET /_test/requests` returns the number of requests by kind.

Moto looks whether an object exists and then stores it, as two steps. A real store decides in one step, so requests that
carry a condition run one at a time here.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

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
        self._faults: list[list[str]] = []
        self._own = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/_test/"):
            return self._control(path, environ, start)
        kind = _kind(method, path, environ.get("QUERY_STRING", ""))
        fault = self._noted(kind)
        if fault == "throttled":
            _body(environ)  # the connection stays open, so it must be read to its end
            return _reply(start, "503 Slow Down", _SLOW_DOWN)
        if fault == "condition refused":
            _body(environ)
            return _reply(start, "501 Not Implemented", _NOT_IMPLEMENTED)
        if fault == "condition ignored":
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return self._store(environ, start)  # type: ignore[no-any-return]
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with self._one_condition_at_a_time:
                answer = self._store(environ, _nothing if fault else start)
        else:
            answer = self._store(environ, _nothing if fault else start)
        if fault == "failed after":
            return _reply(start, "500 Internal Server Error", _INTERNAL)
        if fault == "cut after":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return _reply(start, "500 Internal Server Error", b"")
        return answer  # type: ignore[no-any-return]

    def _noted(self, kind: str) -> str | None:
        with self._own:
            self._counted[kind] += 1
            for place, (of_kind, fault) in enumerate(self._faults):
                if of_kind == kind:
                    del self._faults[place]
                    return fault
        return None

    def _control(self, path: str, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = _body(environ)
        with self._own:
            if path == "/_test/faults":
                self._faults = json.loads(body)
                return _reply(start, "200 OK", b"")
            return _reply(start, "200 OK", json.dumps(self._counted).encode())


def _kind(method: str, path: str, query: str) -> str:
    """The kind of a request, as a bill names it.

    >>> _kind("GET", "/bucket/log/1", ""), _kind("GET", "/bucket", "list-type=2&prefix=log")
    ('GET', 'LIST')
    >>> _kind("POST", "/bucket", "delete"), _kind("PUT", "/bucket", "")
    ('DELETE', 'BUCKET')
    """
    asked = parse_qs(query, keep_blank_values=True)
    if "/" in path.strip("/"):
        return method
    return "LIST" if "list-type" in asked else "DELETE" if "delete" in asked else "BUCKET"


def _body(environ: dict[str, Any]) -> bytes:
    read: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return read


def _nothing(*_: Any, **__: Any) -> None:
    """Start no response: the reply is lost."""


def _reply(start: Any, status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    """Serve on a port until killed."""
    parser = argparse.ArgumentParser("python -m kit.servers.s3_program")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    asked = parser.parse_args()
    # Imported here because pytest imports every module of the kit, and moto takes most of a second.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):  # type: ignore[misc]  # mypy does not read moto
        protocol_version = "HTTP/1.1"  # clients keep their connections

        def log(self, *_: Any) -> None:
            """Log nothing."""

    layer = _Layer(DomainDispatcherApplication(create_backend_app))
    make_server(asked.host, asked.port, layer, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    main()
