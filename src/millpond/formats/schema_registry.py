"""Fetches schemas by number from a registry with Confluent's API; each is fetched once and cached for the process.

A number always means the same schema. A number that the registry does not know is cached too: records that contain it
stay malformed for the life of the process. After `PATIENCE` unknown numbers, new ones are no longer requested,
because the writer produces garbage and each request would start a read again.
"""

from __future__ import annotations

import base64
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from millpond.connections import SchemaRegistry, connection
from millpond.errors import SetupError, SourceError

MAGIC = 0
"""The first byte of a value with a schema number; the next four bytes are the number, big-endian."""

HEADER = 5
"""The number of bytes before the encoded value."""

PATIENCE = 16
"""The number of unknown schema numbers after which no new ones are requested."""

_SECONDS = 20.0
_MAX_BYTES = 16 << 20
_DEPTH = 16


class Registered(NamedTuple):
    """A schema of a registry: `kind` is AVRO, PROTOBUF or JSON; `imports` are pairs of a name and a text."""

    kind: str
    text: str
    imports: tuple[tuple[str, str], ...] = ()


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct):
    schema: str
    id: int = -1
    schemaType: str = "AVRO"
    references: list[_Reference] = []


class Schemas:
    """The cached schemas of one registry; thread-safe."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._known: dict[int, Registered | None] = {}
        self._versions: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def known(self) -> dict[int, Registered | None]:
        """All schemas requested until now, by number; None: the registry does not have it."""
        with self._lock:
            return dict(self._known)

    @property
    def requests_unknown(self) -> bool:
        """Whether new numbers are still requested."""
        return list(self.known().values()).count(None) < PATIENCE

    def learn(self, number: int) -> None:
        """Requests a schema by its number, unless it was requested before.

        Raises:
            SourceError: the registry does not answer.
        """
        if number in self.known():
            return
        found = self._get(f"/schemas/ids/{number}", _Answer)
        made = None if found is None else self._made(found)
        with self._lock:
            self._known[number] = made

    def learn_subjects(self, subjects: Iterable[str]) -> None:
        """Requests every version of some subjects; subjects that the registry does not have are skipped.

        Raises:
            SourceError: the registry does not answer.
        """
        for subject in subjects:
            path = f"/subjects/{quote(subject, safe='')}/versions"
            for version in self._get(path, list[int]) or ():
                if (subject, version) in self._versions:
                    continue
                found = self._get(f"{path}/{version}", _Answer)
                if found is not None:
                    made = self._made(found)
                    with self._lock:
                        self._known[found.id] = made
                        self._versions.add((subject, version))

    def _made(self, answer: _Answer) -> Registered:
        imports: dict[str, str] = {}
        self._collect(answer, imports, 0)
        return Registered(answer.schemaType, answer.schema, tuple(imports.items()))

    def _collect(self, answer: _Answer, imports: dict[str, str], depth: int) -> None:
        """Adds the schemas that a schema references to `imports`, each after its own references."""
        for reference in answer.references:
            if reference.name in imports or depth == _DEPTH:
                continue
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            found = self._get(path, _Answer)
            if found is not None:
                self._collect(found, imports, depth + 1)
                imports[reference.name] = found.schema

    def _get(self, path: str, kind: type[msgspec.Struct] | type[list[int]]) -> Any:
        address = self._registry.url.rstrip("/") + path
        call = urllib.request.Request(address, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
        if self._registry.user:
            secret = "" if self._registry.password is None else self._registry.password.value()
            credentials = base64.b64encode(f"{self._registry.user}:{secret}".encode()).decode()
            call.add_header("Authorization", f"Basic {credentials}")
        try:
            trust = ssl.create_default_context(cafile=self._registry.ca) if address.startswith("https:") else None
            with urllib.request.urlopen(call, timeout=_SECONDS, context=trust) as answer:
                return msgspec.json.decode(answer.read(_MAX_BYTES), type=kind)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise _unanswered(address, f"status {error.code}") from error
        except (OSError, HTTPException, msgspec.MsgspecError) as error:
            raise _unanswered(address, str(error)) from error


def _unanswered(address: str, why: str) -> SourceError:
    return SourceError(
        f"The schema registry does not answer at {address}: {why}.",
        "Check that it runs and that the connection has the right user. Committed results are not affected.",
    )


_SCHEMAS: dict[SchemaRegistry, Schemas] = {}
_LOCK = threading.Lock()


def schemas_of(name: str | None) -> Schemas:
    """The schemas of a connection's registry (None: of the only connection); the same object during the whole process.

    Raises:
        SetupError: there is no such connection, or it has no registry.
    """
    registry = connection(name).registry
    if registry is None:
        raise SetupError(
            f"The connection {name or 'of Kafka'} has no registry of schemas.",
            'Add "registry": {"url": "https://…"} to it; docs/guide/kafka.md shows one.',
        )
    with _LOCK:
        return _SCHEMAS.setdefault(registry, Schemas(registry))
