"""A second S3 server for tests (S3Proxy, in Java), which checks signatures and decides conditional puts itself.

`python -m kit.servers.s3_proxy` only downloads its jar (55 MB), which contains its dependencies. Buckets are folders.
"""

from __future__ import annotations

import itertools
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from kit.servers.s3_server import KEY, SECRET, environment_of
from kit.servers.servers import JAVA_FLAGS, Watched, download_status, free_ports, until
from millpond.errors import JavaError, SetupError
from millpond.spark.session.jars import Jar, fetched
from millpond.spark.session.java import find_java


class _Bundle(Jar):
    """A jar with its dependencies, which a Maven repository has beside the plain one."""

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}-jar-with-dependencies.jar"


_JAR = _Bundle("org.gaul", "s3proxy", "4.1.0", "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d")

_SETTINGS = f"""
s3proxy.authorization=aws-v4
s3proxy.identity={KEY}
s3proxy.credential={SECRET}
jclouds.provider=filesystem-nio2
jclouds.identity=
jclouds.credential=
"""


@cache
def s3_proxy_jar() -> Path | str:
    """The jar, downloaded if necessary; or a text: why it is missing."""
    try:
        find_java()
        return fetched([_JAR])[0]
    except (JavaError, SetupError) as error:
        return str(error)


class S3Proxy(Watched):
    """One server, whose data are in `folder`; a context manager that stops it."""

    def __init__(self, folder: Path) -> None:
        jar = s3_proxy_jar()
        if isinstance(jar, str):
            raise FileNotFoundError(jar)
        super().__init__()
        (self.port,) = free_ports(1)
        self._buckets, self._settings = folder / "buckets", folder / "s3proxy.conf"
        self._buckets.mkdir(parents=True)
        own = {"s3proxy.endpoint": self.url, "jclouds.filesystem.basedir": self._buckets}
        self._settings.write_text(_SETTINGS + "".join(f"{name}={value}\n" for name, value in own.items()))
        java = [str(find_java().executable), "-Xmx256m", *JAVA_FLAGS, "-cp", str(jar)]
        self._command = [*java, "org.gaul.s3proxy.Main", "--properties", str(self._settings)]
        self._numbers = itertools.count()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a client of AWS finds this server, with the only key that it accepts."""
        return environment_of(self.url)

    def start(self) -> S3Proxy:
        """Start the server and wait until it answers."""
        self.launch(self._command)
        until(self._answers, f"the S3 server at {self.port} answers")
        return self

    def bucket(self) -> str:
        """Create a bucket, and return its name."""
        name = f"strict-{next(self._numbers)}"
        (self._buckets / name).mkdir()
        return name

    def _answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False


def main() -> int:
    """Download the jar; returns the exit status."""
    return download_status("S3Proxy", s3_proxy_jar())


if __name__ == "__main__":
    sys.exit(main())
