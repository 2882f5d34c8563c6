"""Reads named connections, which say how a server is reached.

The operator configures connections; the authors of queries only use their names.

The variable `MILLPOND_CONNECTIONS` names a JSON file:

    {"prod": {"servers": "a.example:9093", "security": "sasl_ssl", "mechanism": "SCRAM-SHA-512",
              "user": "pond", "password": {"env": "KAFKA_PASSWORD"}, "ca": "/etc/ssl/kafka.pem"}}

Databases and HTTP addresses state their `kind`: `postgres` or `http`. A Kafka connection may name a schema registry:
`"registry": {"url": "https://…"}`.

A pond stores only the name, so neither address nor secret enters its log. The file itself holds no secret; it names a
variable or another file that does.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from millpond.errors import QueryRefused, SetupError
from millpond.local_path import local_path

VARIABLE = "MILLPOND_CONNECTIONS"
"""The environment variable with the path of the file of connections."""

_JAAS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SERVERS = re.compile(r"[A-Za-z0-9._\[\]:-]+:\d+(,[A-Za-z0-9._\[\]:-]+:\d+)*")
_CURE = f"Mend the file that {VARIABLE} names; docs/guide/kafka.md shows one."


T = TypeVar("T")


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The location of a secret: an environment variable, or a file; a final line break is not part of the secret."""

    env: str | None = None
    file: str | None = None

    def value(self) -> str:
        """The secret.

        Raises:
            SetupError: the variable or file does not exist, or it is empty.
        """
        if (self.env is None) == (self.file is None):
            raise SetupError("A secret needs one of `env` and `file`.", _CURE)
        if self.env is not None:
            found = os.environ.get(self.env)
            if found is None:
                raise SetupError(f"There is no variable {self.env}, in which a secret should be.", "Set it.")
        else:
            found = _text(str(self.file)).rstrip("\r\n")
        if not found:
            where = f"variable {self.env}" if self.env is not None else f"file {self.file}"
            raise SetupError(f"The {where} should hold a secret, but is empty.", "Write the secret there again.")
        return found


_SECRET_NAME = re.compile(
    r"(?i)(secret|password|token|(access|account|private)[.]?key)(?!.*(file|path|provider|enabled)$)"
)


def is_secret(name: str) -> bool:
    """Whether a setting of Spark is a secret by its name: the words of `spark.redaction.regex`, of Azure and of Google.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.hadoop.fs.azure.account.key.a.example")
    (True, True)
    >>> is_secret("spark.executor.memory"), is_secret("spark.hadoop.fs.azure.account.key.provider")
    (False, False)
    """
    return _SECRET_NAME.search(name) is not None


def secret_at(name: str, reference: str) -> str:
    """The secret of a setting: `env:NAME` is that of a variable, `file:PATH` that of a file.

    Raises:
        SetupError: the reference is none, or there is no secret.
    """
    kind, _, place = reference.partition(":")
    if kind not in ("env", "file") or not place:
        raise SetupError(
            f"{name} is a secret, which must not be in a file of settings or on a command line.",
            "Write `env:NAME` for a variable with the secret, or `file:PATH`.",
        )
    return Secret(**{kind: place}).value()


class SchemaRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema registry that speaks Confluent's API; `ca` is a PEM file."""

    url: str
    user: str = ""
    password: Secret | None = None
    ca: str | None = None


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Kafka cluster: `servers` as `host:port,…`; `ca`, `certificate` and `key` are PEM files; its schema registry.

    `topics` are the topics that queries received over the network may write to, as names or patterns (`alerts-*`).
    """

    servers: str
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str = ""
    password: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    kind: Literal["kafka"] = "kafka"
    registry: SchemaRegistry | None = None
    topics: tuple[str, ...] = ()

    def of_java(self) -> dict[str, str]:
        """The settings of a Java client.

        Raises:
            SetupError: a secret or a file does not exist.
        """
        values = {"bootstrap.servers": self.servers, "security.protocol": self.security.upper()}
        if self.security.startswith("sasl"):
            login = f'{_JAAS[self.mechanism]} required username="{_quoted(self.user)}"'
            values["sasl.mechanism"] = self.mechanism
            values["sasl.jaas.config"] = f'{login} password="{_quoted(self._password())}";'
        if self.security.endswith("ssl"):
            if self.ca is not None:
                values |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(self.ca)}
            if self.certificate is not None and self.key is not None:
                chain, key = _text(self.certificate), _text(self.key)
                values |= {
                    "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key
                }  # fmt: skip
        return values

    def of_c(self) -> dict[str, str]:
        """The settings of a librdkafka client.

        Raises:
            SetupError: a secret does not exist.
        """
        values = {"bootstrap.servers": self.servers, "security.protocol": self.security}
        if self.security.startswith("sasl"):
            values |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self._password()}
        if self.security.endswith("ssl"):
            files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
            values |= {f"ssl.{name}.location": path for name, path in files.items() if path is not None}
        return values

    def _password(self) -> str:
        return "" if self.password is None else self.password.value()


class _Kind(msgspec.Struct, frozen=True):
    kind: str = "kafka"
    remote: bool = False


_TARGETS = {"kafka": "topic", "postgres": "table"}
"""What a sink of a query that is added over the network names, by the kind of its connection."""


class _Offers(msgspec.Struct, frozen=True):
    """The targets that queries received over the network may write to, as names or patterns (`alerts-*`).

    `remote`: they may use a connection without targets.
    """

    remote: bool = False
    topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()


def connection(name: str | None, environ: Mapping[str, str] | None = None) -> Connection:
    """The Kafka cluster with a name; without a name, the only one that is configured.

    Raises:
        SetupError: the connection does not exist, or the file cannot be read.
    """
    found = named(name, "kafka", Connection, environ)
    if not _SERVERS.fullmatch(found.servers):
        raise SetupError(f"The servers {found.servers!r} are no list of host:port.", _CURE)
    if found.registry is not None and "@" in found.registry.url:
        raise SetupError("The address of the registry has a user or a password.", "Name them as `user` and `password`.")
    if found.registry is not None and not found.registry.url.startswith(("https://", "http://")):
        raise SetupError(f"The registry {found.registry.url!r} is no address.", _CURE)
    return found


def offered(name: str | None, kind: str, environ: Mapping[str, str] | None = None) -> str:
    """The name of a connection that queries received over the network may use: its entry says `"remote": true`.

    Without a name, the only one.

    Raises:
        SetupError: the connection does not exist, or the file cannot be read.
        QueryRefused: such queries may not use it, or no name is given and not exactly one is offered.
    """
    if name is None:
        offers = _offers(kind, environ)
        if len(offers) != 1:
            raise QueryRefused(
                f"No connection is named. The operator offers {', '.join(sorted(offers)) or 'none of this kind'}.",
                "Name one of them." if offers else 'Ask the operator: `"remote": true` in its entry offers one.',
            )
        (name,) = offers
    if not named(name, kind, _Kind, environ).remote:
        raise QueryRefused(
            f"The connection {name} is not for queries that come over the network.",
            'Ask the operator: `"remote": true` in its entry offers it.',
        )
    return name


def offered_target(
    kind: str, name: str | None, target: str | None, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """A connection and a topic (`kafka`) or table (`postgres`) that queries received over the network may write to.

    Without a name, the only connection of the kind for which the operator lists topics or tables.

    Raises:
        SetupError: the connection does not exist, or the file cannot be read.
        QueryRefused: such queries may not use the target, or one of the two is not named.
    """
    what = _TARGETS[kind]
    offers = _offers(kind, environ) if name is None or target is None else {}
    if name is None and len(offers) == 1:
        (name,) = offers
    if name is None or target is None:
        missing = [word for word, given in (("connection", name), (what, target)) if given is None]
        cure = f"Add {' and '.join(f'--{word}' for word in missing)}."
        if name is None and not offers:
            cure = (
                "The operator offers no connection for this sink: "
                f'`"{what}s": […]` in an entry of the file of connections offers it.'
            )
        elif offers:
            listed = "; ".join(f"{', '.join(targets)} of {one}" for one, targets in offers.items())
            cure += f" The operator offers {listed}."
        raise QueryRefused(f"The sink {kind} needs a {' and a '.join(missing)}.", cure)
    check_target(kind, name, target, environ)
    return name, target


def check_target(kind: str, name: str | None, target: str, environ: Mapping[str, str] | None = None) -> None:
    """Check that requests over the network may write to a topic or table: the entry of its connection lists it.

    Raises:
        SetupError: the connection does not exist, or the file cannot be read.
        QueryRefused: they may not.
    """
    what = _TARGETS[kind]
    known: tuple[str, ...] = getattr(named(name, kind, _Offers, environ), f"{what}s")
    if not any(_matches(what, target, pattern) for pattern in known):
        where = "" if name is None else f" of {name}"
        raise QueryRefused(
            f"The {what} {target}{where} is not for requests that come over the network.",
            f"It offers {', '.join(known)}." if known else f'Ask the operator: `"{what}s": ["{target}"]` in its entry.',
        )


def _matches(what: str, target: str, pattern: str) -> bool:
    """Whether a topic matches a pattern, or a table does by its schema and its name; topics may contain dots."""
    if what != "table":
        return fnmatchcase(target, pattern)
    parts, patterns = target.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def named(name: str | None, kind: str, shape: type[T], environ: Mapping[str, str] | None = None) -> T:
    """The connection with a name and a kind, decoded as `shape`; without a name, the only one of its kind.

    Raises:
        SetupError: the connection does not exist, or the file cannot be read.
    """
    path = (os.environ if environ is None else environ).get(VARIABLE)
    if path is None:
        raise SetupError(
            f"No connections are known, so that {name or kind.capitalize()} cannot be reached.",
            f"Let {VARIABLE} name a JSON file of connections; docs/guide/kafka.md shows one.",
        )
    try:
        connections = _of_kind(kind, path)
        if name is None and len(connections) == 1:
            (name,) = connections
        if name in connections:
            return msgspec.json.decode(connections[name], type=shape)
    except msgspec.MsgspecError as error:
        raise _malformed(path, error) from error
    what = f"There is no connection {name}" if name is not None else "No connection is named, of several"
    has = f"{path} has {', '.join(sorted(connections)) or 'none'} of the kind {kind}"
    raise SetupError(f"{what}; {has}.", "Name one of them.")


def _of_kind(kind: str, place: str) -> dict[str, msgspec.Raw]:
    """The connections of a kind in a file, as JSON by name."""
    texts = msgspec.json.decode(_text(place), type=dict[str, msgspec.Raw])
    return {one: text for one, text in texts.items() if msgspec.json.decode(text, type=_Kind).kind == kind}


def _offers(kind: str, environ: Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """The connections that the operator offers, with their targets; none if there is no file of connections.

    Raises:
        SetupError: the file cannot be read.
    """
    path = (os.environ if environ is None else environ).get(VARIABLE)
    if path is None:
        return {}
    try:
        decoded = {name: msgspec.json.decode(text, type=_Offers) for name, text in _of_kind(kind, path).items()}
    except msgspec.MsgspecError as error:
        raise _malformed(path, error) from error
    if kind in _TARGETS:
        return {name: found for name, one in decoded.items() if (found := getattr(one, f"{_TARGETS[kind]}s"))}
    return {name: () for name, one in decoded.items() if one.remote}


def _malformed(path: str, error: msgspec.MsgspecError) -> SetupError:
    return SetupError(f"{path} is no file of connections: {error}.", _CURE)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name, its address, or because it is a folder of sockets.

    >>> is_loopback("127.0.0.5"), is_loopback("[::1]"), is_loopback("/run/postgresql"), is_loopback("db.example")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or host.startswith("/") or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Reached(msgspec.Struct, frozen=True):
    """The fields of Millpond's own kinds that say which host a connection reaches and whether it is encrypted."""

    security: str = "plaintext"
    servers: str = ""
    host: str = ""
    url: str = ""
    registry: SchemaRegistry | None = None

    def plain_hosts(self, kind: str) -> tuple[set[str], str]:
        """The hosts to which data goes in plain text, and the cure."""
        urls = [self.url, *([] if self.registry is None else [self.registry.url])]
        hosts = {urlsplit(url).hostname or "" for url in urls if url.startswith("http://")}
        if kind == "http" or self.security.endswith("ssl"):
            return hosts, "Use https://."
        if kind == "postgres":
            return hosts | {self.host}, 'Set "security": "ssl".'
        servers = {server.rpartition(":")[0] for server in self.servers.split(",")}
        return hosts | servers, 'Set "security": "ssl" or "sasl_ssl".'


def unencrypted(environ: Mapping[str, str] | None = None) -> list[str]:
    """One sentence with advice for each connection that sends data and passwords in plain text to another host.

    Only Kafka, PostgreSQL and HTTP are judged: what the fields of another kind mean is known to its package only.

    Raises:
        SetupError: the file of connections cannot be read.
    """
    path = (os.environ if environ is None else environ).get(VARIABLE)
    if path is None:
        return []
    warnings = []
    try:
        for name, text in msgspec.json.decode(_text(path), type=dict[str, msgspec.Raw]).items():
            kind = msgspec.json.decode(text, type=_Kind).kind
            if kind not in ("kafka", "postgres", "http"):
                continue
            hosts, cure = msgspec.json.decode(text, type=_Reached).plain_hosts(kind)
            far = sorted(host for host in hosts if host and not is_loopback(host))
            if far:
                what = f"The connection {name} ({kind}) is not encrypted on its way to {', '.join(far)}"
                warnings.append(f"{what}: others may read data and passwords. {cure}")
    except msgspec.MsgspecError as error:
        raise SetupError(f"{path} is no file of connections: {error}.", _CURE) from error
    return warnings


def _quoted(text: str) -> str:
    """The text escaped for use between double quotes in a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _text(path: str) -> str:
    try:
        return local_path(path, "The file").read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}.", _CURE) from error
