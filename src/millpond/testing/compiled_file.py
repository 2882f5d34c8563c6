"""Loads the compiled form of a pond file; if the file has changed, another process compiles it again."""

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
from millpond.model.compiled_pond import Compiled, digest, from_json, read_if_of, stale
from millpond.version import VERSION


def load_compiled(file: Path, *, recompile: bool = True) -> Compiled:
    """Loads a pond file, or a compiled pond (`.json`), which is used as it is.

    The compiled form of a pond file is in the same folder if `millpond compile` has written it there, otherwise in the
    user's cache. If it does not belong to the current text, the file is compiled again. That starts Spark in another
    process, unless `recompile` is false.

    Raises:
        QueryTypeError: there is no such file.
        QueryError: a statement is wrong.
        StaleError: the file must be compiled again, and this is not possible here.
        CorruptError: the compiled file is not a compiled pond.
        PlaceError: the user's cache is not writable.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueryTypeError(f"{file} cannot be read: {error}.", "Name a pond file.") from error
    if file.suffix == ".json":
        return from_json(text)
    beside = file.with_suffix(".json")
    path = beside if _is_compiled(beside) or not recompile else _cached(file, text)
    compiled = read_if_of(path, text)
    if compiled is not None:
        return compiled
    if not recompile:
        raise stale(file, path)
    with _alone(_cached(file, text)):
        compiled = read_if_of(path, text)  # another process may have compiled it in the meantime
        if compiled is None:
            _compile(file, path)
            compiled = read_if_of(path, text)
    if compiled is None:
        raise stale(file, path, f"the file changes, or {sys.executable} has another version of millpond.")
    return compiled


def _is_compiled(path: Path) -> bool:
    try:
        from_json(path.read_bytes())
    except (FileNotFoundError, CorruptError):
        return False
    return True


def _cached(file: Path, text: str) -> Path:
    """The path of the compiled file in the user's cache, which depends on the text and on the version of Millpond."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(f"{VERSION} {file.resolve()} {digest(text)}".encode()).hexdigest()[:32]
    return home / "millpond" / "compiled" / f"{name}.json"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds a lock for `path`, so that parallel tests start Spark only once."""
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
