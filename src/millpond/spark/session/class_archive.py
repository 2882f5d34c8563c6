"""Makes an archive of Spark's classes that a JVM maps at its start, instead of verifying 300 jars (JEP 350).

The file contains the classes that were loaded in one exercise run. A JVM with another version or other jars ignores it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from millpond.errors import JavaError
from millpond.local_path import replaced
from millpond.spark.session.java import DUMP, Gateway, Java, find_java, spark_jars

_DUMP_SECONDS = 300
_KEPT = 3


def archive_path(java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the archive for this Java and Spark's jars, in the user's own cache; the file may not exist yet."""
    jars = ((jar, jar.stat()) for jar in spark_jars())
    parts = [f"{java.executable.resolve()}", *(f"{jar} {stat.st_size} {stat.st_mtime_ns}" for jar, stat in jars)]
    release = java.home / "release"
    parts.append(release.read_text(errors="replace") if release.is_file() else "")
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond" / f"classes-{name}.jsa"


def make_archive(exercise: Callable[[str], Gateway]) -> Path:
    """Return the archive; make it if it does not exist.

    `exercise` starts a JVM with the given option, lets it do the usual work of a JVM, and returns it.

    Raises:
        JavaError: this Java cannot make an archive.
    """
    path = archive_path(find_java())
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replaced(path) as draft:
        process = exercise(f"{DUMP}{draft}").process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_DUMP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not draft.is_file():
            raise JavaError("This Java keeps no archive of classes.", "Go on without, or use an OpenJDK 17 or 21.")
    # archives of another Java, another environment, or replaced jars
    for other in sorted(path.parent.glob("classes-*.jsa"), key=lambda one: -one.stat().st_mtime)[_KEPT:]:
        other.unlink(missing_ok=True)
    return path
