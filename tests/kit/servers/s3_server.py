"""An S3 server for tests (moto) on a loopback port: buckets in memory, counted requests, faults by request."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import json
import sys
from collections import Counter
from contextlib import suppress
from typing import Literal

from kit.servers.servers import LOOPBACK, SECONDS, Host, Watched, free_ports, until

Fault = Literal[
    "throttled", "failed after", "cut after", "delayed put", "stale listing", "condition ignored", "condition refused"
]
"""What happens to a request. `throttled`: 503, and nothing is done. `failed after`: done, then answered by 500.
`cut after`: done, then the connection is closed without a reply. `delayed put`: the connection is closed, and the put
is done five requests later. `stale listing`: the listing lacks the three newest objects. Stores without conditional
puts have the other two: `condition ignored`: an existing object is overwritten. `condition refused`: 501, and nothing
is done.
"""


KEY, SECRET = "key-of-tests", "secret-of-tests"


def environment_of(url: str) -> dict[str, str]:
    """The variables by which a client of AWS finds the server at `url`, and the keys of tests."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


class S3Server(Watched):
    """One server without stored data; a context manager that stops it. A client with any keys may do everything.

    `host`: where it runs, and the address at which it listens; 0.0.0.0 for hosts in network namespaces.
    """

    def __init__(self, port: int | None = None, host: Host = LOOPBACK) -> None:
        if importlib.util.find_spec("moto") is None:
            raise FileNotFoundError("no moto is installed: pip install 'millpond[test]'")
        super().__init__()
        self.port = free_ports(1)[0] if port is None else port
        self._host = host
        self._reached_at = "127.0.0.1" if host.address == "0.0.0.0" else host.address
        self._numbers = itertools.count()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self._reached_at}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a client of AWS finds this server, and keys for it."""
        return environment_of(self.url)

    def start(self) -> S3Server:
        """Start the server, empty, and wait until it answers."""
        words = [sys.executable, "-m", "kit.programs.s3_program", "--port", str(self.port)]
        self.launch([*self._host.inside, *words, "--host", self._host.address])
        until(self._answers, f"the S3 server at {self.port} answers")
        return self

    def bucket(self) -> str:
        """Create a bucket, and return its name."""
        name = f"bucket-{next(self._numbers)}"
        self._request("PUT", f"/{name}")
        return name

    def fail(self, *faults: tuple[str, Fault]) -> None:
        """Let the next requests fail: each fault applies to the next request of its kind, such as `PUT` or `LIST`.

        Faults that no request has met are dropped.
        """
        self._request("PUT", "/_test/faults", json.dumps(faults).encode())

    def disturb(self, rate: float) -> None:
        """Let each request fail with this probability, as those of a busy store do (`s3_program.DISTURBANCES`)."""
        self._request("PUT", "/_test/rate", json.dumps(rate).encode())

    def fault_counts(self) -> Counter[str]:
        """How often each fault has happened since the start."""
        return Counter(json.loads(self._request("GET", "/_test/fault_counts")))

    def requests(self) -> dict[str, int]:
        """The number of requests since the start by kind: GET, PUT, HEAD, DELETE, LIST, BUCKET; retries count."""
        counted: dict[str, int] = json.loads(self._request("GET", "/_test/requests"))
        return counted

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection(self._reached_at, self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            read = reply.read()
            assert reply.status == 200, f"{method} {path}: {reply.status} {read!r}"
            return read
        finally:
            connection.close()

    def _answers(self) -> bool:
        with suppress(OSError):
            self._request("GET", "/_test/requests")
            return True
        return False
