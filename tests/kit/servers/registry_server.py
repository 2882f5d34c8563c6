"""A schema registry for tests: the part of Confluent's HTTP API that readers and writers use, on a loopback port."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class RegistryServer:
    """A registry that numbers its schemas; a context manager. `requested`: the paths of its requests, in order.

    `status`: if set, every request gets this status.
    """

    def __init__(self, user: str = "") -> None:
        self.requested: list[str] = []
        self.status: int | None = None
        self._user = user
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address of the registry."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: tuple[str, ...] = ()) -> int:
        """Register a schema as the next version of a subject; returns its number. `references`: names of subjects."""
        named = [{"name": one, "subject": one, "version": len(self._subjects[one])} for one in references]
        self._schemas.append({"schema": schema, "schemaType": kind, "references": named})
        self._subjects.setdefault(subject, []).append(len(self._schemas))
        return len(self._schemas)

    def answer(self, path: str) -> tuple[int, Any]:
        """The status and the body of a response."""
        missing = 404, {"error_code": 40403, "message": "not found"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number] if 0 < int(number) <= len(self._schemas):
                return 200, self._plain(int(number))
            case ["subjects", subject, "versions"] if subject in self._subjects:
                return 200, list(range(1, len(self._subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if int(version) <= len(self._subjects.get(subject, ())):
                found = self._subjects[subject][int(version) - 1]
                return 200, {"subject": subject, "version": int(version), "id": found} | self._plain(found)
        return missing

    def _plain(self, number: int) -> dict[str, Any]:
        """A schema as the real registry returns it: without the type if it is Avro, and without empty references."""
        schema = self._schemas[number - 1]
        return {name: value for name, value in schema.items() if value and value != "AVRO"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requested.append(self.path)
                status, answer = (registry.status, {}) if registry.status else registry.answer(self.path)
                if registry._user and not self.headers.get("Authorization", "").startswith("Basic "):
                    status, answer = 401, {}
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: Any) -> None:
                return

        return Handler

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
