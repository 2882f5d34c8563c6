"""Finds what a pond file was compiled to, and has it compiled again, by another process, when the file has changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.errors import CorruptError, PlaceError, QueryTypeError, SetupError, SourceError, from_text
from millpond.model.compiled import Compiled, digest, from_json, read_if_of, stale
from millpond.version import VERSION


def load_compiled(file: Path, *, recompile: bool = True) -> Compiled:
    """What `file` means: a pond file, or a compiled one (`.json`), which is taken as it is.

    What a pond file was compiled to lies beside it, if `millpond compile` put it there, else in the user's cache; it
    is made again when it is not of the text as it is now. That starts Spark, in a process of its own, unless
    `recompile` is false.

    Raises:
        QueryTypeError: there is no such file.
        QueryError: a statement is wrong.
        StaleError: it must be compiled again, and cannot be here.
        CorruptError: the compiled file is something else.
        PlaceError: the user's cache cannot be written.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueryTypeError(f"{file} cannot be read: {error}.", "Name a pond file.") from error
    if file.suffix == ".json":
        return from_json(text)
    beside = file.with_suffix(".json")
    path = beside if _is_compiled(beside) or not recompile else _cached(file, text)
    found = read_if_of(path, text)
    if found is not None:
        return found
    if not recompile:
        raise stale(file, path)
    with _alone(_cached(file, text)):
        found = read_if_of(path, text)  # another process may have been first
        if found is None:
            _compile(file, path)
            found = read_if_of(path, text)
    if found is None:
        raise stale(file, path, f"the file changes, or {sys.executable} has another version of millpond.")
    return found


def _is_compiled(path: Path) -> bool:
    try:
        from_json(path.read_bytes())
    except (FileNotFoundError, CorruptError):
        return False
    return True


def _cached(file: Path, text: str) -> Path:
    """The file's place in the user's cache; other texts and versions have another."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(f"{VERSION} {file.resolve()} {digest(text)}".encode()).hexdigest()[:32]
    return home / "millpond" / "compiled" / f"{name}.json"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Only one process at a time is in here with `path`: tests in parallel start Spark once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise PlaceError(f"The cache {path.parent} cannot be used: {error}.", "Set XDG_CACHE_HOME.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(file: Path, path: Path) -> None:
    words = [sys.executable, "-m", "millpond", "compile", str(file), "-o", str(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 0:
        return
    error = from_text(done.stderr)
    if error is None or isinstance(error, SetupError | SourceError | PlaceError):
        said = str(error) if error is not None else (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise stale(file, path, said)
    raise error
