"""Redis topology and pipelines: which primary holds each hash slot, and one round trip to all of them at once.

A call sends one pipeline to each primary, all of them before the first response is read. A command that a primary
refuses because slots moved, a script was forgotten or a fail-over is under way is sent again with a new slot map;
nothing else is. So each command must be safe to repeat.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.retry import Retry

from millpond.errors import StoreError
from millpond.state.ports.requests import count, stays_on_host

PATIENCE_SECONDS = 5.0
"""How many seconds a call waits for an answer, and how long it retries while slots or roles change."""

_SENTINEL = "redis+sentinel"
_SCHEMES = {"redis", "rediss", _SENTINEL}
_CHANGING = (
    redis_errors.MovedError, redis_errors.AskError, redis_errors.TryAgainError, redis_errors.ClusterDownError,
    redis_errors.MasterDownError, redis_errors.ReadOnlyError, redis_errors.BusyLoadingError,
)  # fmt: skip
"""Errors that go away when the slot map is read again, or shortly after."""

_CLUSTER_ERRORS: Mapping[str, type[redis_errors.ResponseError]] = {
    "MOVED": redis_errors.MovedError, "ASK": redis_errors.AskError, "TRYAGAIN": redis_errors.TryAgainError,
    "CLUSTERDOWN": redis_errors.ClusterDownError, "MASTERDOWN": redis_errors.MasterDownError,
}  # fmt: skip
"""Errors that redis-py 5 recognizes only on connections of its cluster client."""

NodeAddress: TypeAlias = tuple[str, int]


class Script:
    """A Lua script, called by the digest of its text; a user with read permission may run a `reading` script."""

    def __init__(self, text: str, *, reading: bool = False) -> None:
        self.text = text.encode()
        self._verb = b"EVALSHA_RO" if reading else b"EVALSHA"
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes] = ()) -> bytes:
        """The command that runs the script."""
        return packed([self._verb, self.sha, b"%d" % len(keys), *keys, *arguments])


class Command(NamedTuple):
    """A command for the owner of `slot`, as the bytes to send."""

    slot: int
    data: bytes


@dataclass
class _Unanswered:
    """The numbers of commands that must be sent, and what the last attempt showed about them.

    `redirected`: the node to which a command was redirected once. `without_scripts`: nodes that have forgotten the
    scripts. `error`: an error after which the slot map must be read again.
    """

    numbers: list[int]
    redirected: dict[int, NodeAddress] = field(default_factory=dict)
    without_scripts: set[NodeAddress] = field(default_factory=set)
    error: redis_errors.RedisError | None = None


def packed(words: Sequence[bytes]) -> bytes:
    """Encodes a command in the protocol of Redis.

    >>> packed([b"GET", b"k"])
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n'
    """
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def without_prefix(address: str) -> tuple[str, str | None]:
    """An address without its option `prefix`, and the value of this option (None: not given).

    >>> without_prefix("redis://host/0?prefix=shop&socket_timeout=2")
    ('redis://host/0?socket_timeout=2', 'shop')
    """
    parts = urlsplit(address)
    options = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in options if name != "prefix"])
    return urlunsplit(parts._replace(query=rest)), dict(options).get("prefix")


class Nodes:
    """The primaries at one address, for use by several threads. `scripts` are the scripts that commands may call.

    The address is `redis://` or `rediss://` with `[[user]:password@]host[:port][/db][?option=value]`; the options are
    those of redis-py. `redis+sentinel://…@host:port,host:port/service[/db]` names Sentinels.

    Raises:
        StoreError: the address is invalid, or no node answers.
    """

    def __init__(self, address: str, scripts: Sequence[Script] = ()) -> None:
        self._loads = [packed([b"SCRIPT", b"LOAD", script.text]) for script in scripts]
        self.name, self._seeds, self._service, kwargs = _parsed(address)
        self._make, self._kwargs = kwargs.pop("connection_class"), kwargs
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[NodeAddress, list[Any]] = {}
        self._local: dict[NodeAddress, bool] = {}
        self._owners: list[NodeAddress] = []
        self.is_cluster = False
        self._closed = False
        try:
            self._refresh()
        except redis_errors.RedisError as error:
            self.close()
            raise self.explained(error) from error

    def refresh_slots(self) -> None:
        """Reads the slot map again.

        Raises:
            StoreError: no node answers.
        """
        self._check_open()
        try:
            self._refresh()
        except redis_errors.RedisError as error:
            raise self.explained(error) from error

    def owner(self, slot: int) -> NodeAddress:
        """The primary of a slot, according to the newest known slot map."""
        return self._owners[slot]

    @property
    def primaries(self) -> list[NodeAddress]:
        """All primaries that have slots, according to the newest known slot map."""
        return sorted(set(self._owners))

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """The answers in the order of the commands; the answer to a command that failed itself is a ResponseError.

        Raises:
            StoreError: a primary refused, or did not answer within `PATIENCE_SECONDS`.
        """
        self._check_open()
        try:
            return self._run(commands)
        except redis_errors.RedisError as error:
            raise self.explained(error) from error

    def run_or_raise(self, commands: Sequence[Command]) -> list[Any]:
        """Like `run`, but raises an error if a command failed.

        Raises:
            StoreError: a command failed, or as for `run`.
        """
        answers = self.run(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise self.explained(answer) from answer
        return answers

    def run_on(self, address: NodeAddress, words: Sequence[bytes]) -> Any:
        """The answer of one node to one command."""
        try:
            return self._answered({address: [packed(words)]})[address][0]
        except redis_errors.RedisError as error:
            raise self.explained(error) from error

    def run_on_each(self, words: Mapping[NodeAddress, Sequence[Sequence[bytes]]]) -> dict[NodeAddress, list[Any]]:
        """The answers of several nodes, each to its own commands; the answer to a command that failed is the error."""
        self._check_open()
        return self._answered({address: [packed(one) for one in some] for address, some in words.items()})

    def run_on_any(self, words: Sequence[bytes]) -> tuple[NodeAddress, Any]:
        """The first node that answers a command, and its answer.

        Raises:
            StoreError: no node answers.
        """
        self._check_open()
        failure: Exception = redis_errors.ConnectionError("no node is known")
        for node in self._known():
            answer = self._answered({node: [packed(words)]})[node][0]
            if not isinstance(answer, Exception):
                return node, answer
            failure = answer
        raise self.explained(failure)

    @property
    def login(self) -> tuple[bytes, bytes] | None:
        """The user and password of the address; None: it has none."""
        password = self._kwargs.get("password")
        if password is None:
            return None
        return str(self._kwargs.get("username") or "default").encode(), str(password).encode()

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return issubclass(self._make, redis.SSLConnection)

    def close(self) -> None:
        """Closes all idle connections; connections in use are closed when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        if os.getpid() == self._pid:
            for connection in (one for some in idle.values() for one in some):
                connection.disconnect()

    def explained(self, error: Exception) -> StoreError:
        """Translates an error of redis-py into one for the operator of the pond."""
        if isinstance(error, redis_errors.OutOfMemoryError):
            cure = "Give it more memory (maxmemory), or keep less in it; what waits for it goes on by itself."
            return StoreError(f"The store {self.name} has no memory left: {error}.", cure)
        if isinstance(error, redis_errors.NoPermissionError | redis_errors.AuthenticationError):
            cure = "docs/guide/stores.md and tables.md list what its user must be allowed."
            return StoreError(f"The store {self.name} refuses this user: {error}.", cure)
        if isinstance(error, redis_errors.TimeoutError):
            cure = "Is it stopped, or out of reach? What waits for it goes on when it answers."
            return StoreError(f"The store {self.name} did not answer in time: {error}.", cure)
        cure = "What waits for it goes on when it is back; the truth is in the log."
        return StoreError(f"The store {self.name} failed: {str(error).rstrip('.')}.", cure)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"The store {self.name} is closed.", "Open it again.")

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = [None] * len(commands)
        unanswered = _Unanswered(list(range(len(commands))))
        deadline, pause, connection_lost = time.monotonic() + PATIENCE_SECONDS, 0.01, False
        while unanswered.numbers:
            unanswered = self._attempt(commands, unanswered, answers, connection_lost)
            if unanswered.error is not None:
                connection_lost = connection_lost or isinstance(unanswered.error, redis_errors.ConnectionError)
                if time.monotonic() > deadline:
                    raise unanswered.error
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
                self._refresh()
        return answers

    def _attempt(
        self, commands: Sequence[Command], unanswered: _Unanswered, answers: list[Any], connection_lost: bool
    ) -> _Unanswered:
        """Sends the unanswered commands once and fills in `answers`; returns the commands that must be sent again.

        `connection_lost`: a connection has failed before in this call; a second failure is final.
        """
        by_node: dict[NodeAddress, list[int]] = defaultdict(list)
        for i in unanswered.numbers:
            by_node[unanswered.redirected.get(i) or self._owners[commands[i].slot]].append(i)
        again = _Unanswered([])
        for address, i, answer in self._round(commands, by_node, unanswered):
            if isinstance(answer, redis_errors.NoScriptError):
                again.without_scripts.add(address)
            elif isinstance(answer, _CHANGING):
                again.error = answer
                if isinstance(answer, redis_errors.AskError):
                    again.redirected[i] = (answer.host or address[0], int(answer.port))
            elif isinstance(answer, redis_errors.TimeoutError) or (
                connection_lost and isinstance(answer, redis_errors.ConnectionError)
            ):
                self._look_past(address)
                raise answer
            elif isinstance(answer, redis_errors.ConnectionError):
                # the server may have restarted since, or be the old primary of a fail-over
                again.error = answer
            else:
                answers[i] = answer
                continue
            again.numbers.append(i)
        again.numbers.sort()
        return again

    def _round(
        self, commands: Sequence[Command], by_node: Mapping[NodeAddress, Sequence[int]], unanswered: _Unanswered
    ) -> list[tuple[NodeAddress, int, Any]]:
        """Sends each node its commands; returns (node, command number, answer). Errors are answers."""
        words: dict[NodeAddress, list[bytes]] = {}
        first: dict[NodeAddress, int] = {}
        for address, numbers in by_node.items():
            sent = [*self._loads] if address in unanswered.without_scripts else []
            words[address], first[address] = sent, len(sent)
            for i in numbers:
                if i in unanswered.redirected:
                    sent.append(packed([b"ASKING"]))
                sent.append(commands[i].data)
        answers = []
        answered = self._answered(words)
        for address, numbers in by_node.items():
            count(len(numbers), self._local.get(address, False))
        for address, got in answered.items():
            at = iter(got[first[address] :])
            for i in by_node[address]:
                if i in unanswered.redirected:
                    next(at)
                answers.append((address, i, next(at)))
        return answers

    def _answered(self, words: Mapping[NodeAddress, Sequence[bytes]]) -> dict[NodeAddress, list[Any]]:
        """Sends one pipeline to each node before it reads any answer. An error is the answer to each failed command."""
        connections: dict[NodeAddress, Any] = {}
        answers: dict[NodeAddress, list[Any]] = {}
        for address, sent in words.items():
            try:
                connections[address] = connection = self._connection(address)
                connection.send_packed_command([b"".join(sent)])
            except redis_errors.RedisError as error:
                self._drop(address, connections.pop(address, None))
                answers[address] = [error] * len(sent)
        for address, connection in connections.items():
            got: list[Any] = []
            try:
                while len(got) < len(words[address]):
                    got.append(_read(connection))
            except redis_errors.RedisError as error:
                self._drop(address, connection)
                got += [error] * (len(words[address]) - len(got))
            except BaseException:
                for one in connections.values():
                    one.disconnect()
                raise
            else:
                self._give_back(address, connection)
            answers[address] = got
        return answers

    def _connection(self, address: NodeAddress) -> Any:
        with self._lock:
            if os.getpid() != self._pid:
                # the sockets belong to the parent process, which closes them
                self._pid, self._idle = os.getpid(), {}
            idle = self._idle.get(address)
            if idle:
                return idle.pop()
        connection = self._make(host=address[0], port=address[1], **self._kwargs)
        connection.connect()
        self._local[address] = stays_on_host(connection._sock)
        return connection

    def _give_back(self, address: NodeAddress, connection: Any) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault(address, []).append(connection)
                return
        connection.disconnect()

    def _drop(self, address: NodeAddress, connection: Any) -> None:
        """Closes a failed connection, and the idle ones to the same node, which may have failed for the same reason."""
        with self._lock:
            idle = self._idle.pop(address, [])
        for one in (*idle, *([connection] if connection is not None else [])):
            one.disconnect()

    def _look_past(self, silent: NodeAddress) -> None:
        """Reads the slot map elsewhere, because a replica may have taken over from a silent node."""
        with suppress(redis_errors.RedisError):
            self._refresh(silent)

    def _refresh(self, silent: NodeAddress | None = None) -> None:
        """Reads the slot map from the first node that answers, except a node that is known to be silent."""
        failure: redis_errors.RedisError = redis_errors.ConnectionError("no node is known")
        for node in self._known():
            if node == silent:
                continue
            try:
                self._owners = self._from_sentinel(node) if self._service else self._from_node(node)
                return
            except redis_errors.RedisError as error:
                failure = error
        raise failure

    def _known(self) -> list[NodeAddress]:
        return self._seeds if self._service else [*dict.fromkeys([*self._owners, *self._seeds])]

    def _from_node(self, node: NodeAddress) -> list[NodeAddress]:
        answer = self._answered({node: [packed([b"CLUSTER", b"SLOTS"])]})[node][0]
        if isinstance(answer, redis_errors.ResponseError) and "cluster support disabled" in str(answer):
            return [node] * SLOTS
        if isinstance(answer, Exception):
            raise answer
        owners: list[NodeAddress | None] = [None] * SLOTS
        for first, last, primary, *_ in answer:
            # a node that does not know its own name reports none
            self.is_cluster = True
            owners[first : last + 1] = [((primary[0] or b"").decode() or node[0], int(primary[1]))] * (last + 1 - first)
        if None in owners:
            raise redis_errors.ClusterDownError(f"CLUSTERDOWN hash slot {owners.index(None)} is served by nobody")
        return [owner for owner in owners if owner is not None]

    def _from_sentinel(self, node: NodeAddress) -> list[NodeAddress]:
        kind: Any = redis.Connection
        connection = kind(host=node[0], port=node[1], **_timing())
        try:
            connection.connect()
            connection.send_packed_command([packed([b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service.encode()])])
            answer = _read(connection)
        finally:
            connection.disconnect()
        if not isinstance(answer, list):
            raise redis_errors.ConnectionError(f"the Sentinel at {node[0]}:{node[1]} knows no {self._service}")
        return [(answer[0].decode(), int(answer[1]))] * SLOTS


def _read(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis_errors.ResponseError as error:
        word, _, rest = str(error).partition(" ")
        return _CLUSTER_ERRORS[word](rest) if word in _CLUSTER_ERRORS else error


def _timing() -> dict[str, Any]:
    return {
        "socket_timeout": PATIENCE_SECONDS,
        "socket_connect_timeout": PATIENCE_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }


def _parsed(address: str) -> tuple[str, list[NodeAddress], str, dict[str, Any]]:
    """The name to show (without password), the seed nodes, the Sentinel service, and the connection arguments."""
    cure = "Write `redis://[[user]:password@]host[:port]`; see docs/guide/stores.md."
    try:
        parts = urlsplit(address)
        login, _, hosts = parts.netloc.rpartition("@")
        shown = urlunsplit((parts.scheme, hosts, parts.path, "", ""))
        service, path = "", parts.path
        if parts.scheme == _SENTINEL:
            service, _, database = path.strip("/").partition("/")
            path = f"/{database}"
        seeds = [_host(host, 26379 if service else 6379) for host in hosts.split(",")]
        if parts.scheme not in _SCHEMES or (parts.scheme == _SENTINEL and not service):
            raise ValueError("no such address")
        at = f"{login}@" if login else ""
        plain = urlunsplit(("rediss" if parts.scheme == "rediss" else "redis", f"{at}host", path, parts.query, ""))
        pool = redis.ConnectionPool.from_url(plain, **_timing())
        pool.make_connection()  # checks the options, but does not connect yet
    except (ValueError, TypeError) as error:
        raise StoreError(f"The store's address is none: {str(error).rstrip('.')}.", cure) from None
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port")}
    return shown, seeds, service, {**kwargs, "connection_class": pool.connection_class}


def _host(text: str, port: int) -> NodeAddress:
    found = urlsplit(f"//{text}")
    if not found.hostname:
        raise ValueError("it names no host")
    try:
        return found.hostname, found.port or port
    except ValueError:  # its text has what should be the port, which is a part of a password that is not escaped
        what = "the port is no number, or a password has one of the characters `/?#` instead of `%2F`, `%3F` or `%23`"
        raise ValueError(what) from None
