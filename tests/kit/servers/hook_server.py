"""An HTTP server that takes rows as a receiver of webhooks does, and fails as a test requires."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HookServer(ThreadingHTTPServer):
    """Keeps the first request of each key, as one that is idempotent does; `answers` are given one by one, then 200.

    An answer is a code, `hang`, or `lost`: the request is handled, but there is no response.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int | str] = []
        self.taken: dict[str, Any] = {}
        self.requested_keys: list[str] = []
        self.headers: dict[str, str] = {}
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HookServer

    def do_POST(self) -> None:
        server, body = self.server, self.rfile.read(int(self.headers["content-length"]))
        key = self.headers["idempotency-key"]
        server.headers = dict(self.headers)
        server.requested_keys.append(key)
        answer = server.answers.pop(0) if server.answers else 200
        if answer == "hang":
            server.closing.wait(20)
            answer = "drop"
        if answer in (200, "lost"):
            server.taken.setdefault(key, json.loads(body))
        if not isinstance(answer, int):
            self.close_connection = True
            return
        self.send_response(answer)
        self.send_header("content-length", "0")
        if answer == 302:
            self.send_header("location", "http://127.0.0.1:1/inside")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""
