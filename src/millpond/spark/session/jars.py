"""Downloads jars from Maven: fixed lists with digests, fetched once, kept outside the pond and the repository.

A list has a line per jar: `group:artifact:version` and the SHA-256 of the file. Nothing is resolved. A jar that is
not in a list is not fetched, and a file with another digest is not used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millpond.errors import SetupError
from millpond.local_path import replaced

MAVEN = "https://repo1.maven.org/maven2"
"""The repository from which jars are fetched, unless `MILLPOND_MAVEN` names a mirror."""

FOLDER = "MILLPOND_JARS"
"""The environment variable with a folder that is searched for jars first."""

_SECONDS = 60.0
_CURE = f"Put the jars into a folder that {FOLDER} names, or name a mirror of Maven Central by MILLPOND_MAVEN."


class Jar(NamedTuple):
    """One file of a Maven repository, and its required SHA-256 in hexadecimal."""

    group: str
    artifact: str
    version: str
    digest: str

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The file's path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


def listed(path: Path) -> tuple[Jar, ...]:
    """The jars of a list."""
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines() if line.strip())
    return tuple(Jar(group, artifact, version, digest) for group, artifact, version, digest in lines)


CONNECTOR = listed(Path(__file__).with_name("kafka_jars.txt"))
"""Spark's connector to Kafka, and its dependencies outside of Spark."""

AVRO = listed(Path(__file__).with_name("avro_jars.txt"))
"""Spark's decoder of Avro; Spark contains its dependencies."""


def cache_folder() -> Path:
    """The folder in which fetched jars are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond" / "jars"


def given_folder() -> Path | None:
    """The folder named by the environment variable, or None."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


def kept(jar: Jar) -> Path | None:
    """The jar on this machine, if the file exists and its digest matches; otherwise None."""
    given = given_folder()
    for folder in (cache_folder(),) if given is None else (given, cache_folder()):
        path = folder / jar.file
        if path.is_file() and _digest(path) == jar.digest:
            return path
    return None


def fetched(jars: Sequence[Jar]) -> list[Path]:
    """The jars on this machine; missing ones are fetched.

    Raises:
        SetupError: a jar cannot be fetched, or has another digest.
    """
    return [kept(jar) or _fetch(jar, cache_folder()) for jar in jars]


def connector() -> list[Path]:
    """The jars of Spark's connector to Kafka.

    They come from the named folder if it has a connector, of any version, and otherwise from the list.

    Raises:
        SetupError: they cannot be fetched.
    """
    return given_jars(CONNECTOR) or fetched(CONNECTOR)


def avro() -> list[Path]:
    """The jar of Spark's decoder of Avro, found like the jars of the connector.

    Raises:
        SetupError: it cannot be fetched.
    """
    return given_jars(AVRO) or fetched(AVRO)


def given_jars(jars: Sequence[Jar]) -> list[Path]:
    """The jars of a list, of any version, in the folder named by the environment; none if the first one is missing."""
    given = given_folder()
    found = [] if given is None else [path for jar in jars for path in sorted(given.glob(f"{jar.artifact}-*.jar"))]
    return found if any(path.name.startswith(jars[0].artifact) for path in found) else []


def connector_origin() -> str:
    """A text on where the connector and the decoder of Avro come from."""
    return f"{_origin('connector', CONNECTOR, 'a Kafka stream')}; {_origin('decoder of Avro', AVRO, 'Avro')}"


def _origin(what: str, jars: Sequence[Jar], when: str) -> str:
    if given := given_jars(jars):
        return f"Spark's {what} is {given[0]}, from {FOLDER}"
    name = jars[0].file
    if all(kept(jar) for jar in jars):
        return f"Spark's {what} is {name}, already downloaded"
    return f"Spark's {what} {name} is downloaded from Maven when {when} is first read"


def _fetch(jar: Jar, folder: Path) -> Path:
    address = f"{os.environ.get('MILLPOND_MAVEN') or MAVEN}/{jar.path}"
    if not address.startswith(("https://", "file://")):
        raise SetupError(f"{address} is not fetched.", "Let MILLPOND_MAVEN begin with https:// or file://.")
    target = folder / jar.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(target) as draft:
            with urllib.request.urlopen(address, timeout=_SECONDS) as answer, open(draft, "wb") as file:
                shutil.copyfileobj(answer, file)
            found = _digest(draft)
            if found != jar.digest:
                raise SetupError(f"{address} has the digest {found}, not {jar.digest}.", "Use another mirror.")
    except (OSError, urllib.error.URLError) as error:
        raise SetupError(f"{address} cannot be fetched: {error}.", _CURE) from error
    return target


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
