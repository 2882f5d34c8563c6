"""Checks local paths: no schemes of other file systems, and no symbolic links that another user made.

A folder below a pond's folder may be a link, for example to another disk, if this user, root or the owner of the pond's
folder made it. A file that Millpond opens in place may not be a link, because Millpond would then write elsewhere.
Files that are replaced as a whole need no check, because the link itself is replaced.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millpond.errors import PlaceError
from millpond.tokens import writer_token

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)


def scheme_of(path: str | os.PathLike[str]) -> str | None:
    """The scheme of a path in lower case; None if it has no scheme and so is a local path.

    >>> scheme_of("s3a://bucket/p"), scheme_of(Path("hdfs://host/p")), scheme_of("/a:/b"), scheme_of("a:b")
    ('s3a', 'hdfs', None, None)
    """
    found = _SCHEME.match(os.fspath(path))
    return None if found is None else found[1].lower()


def local_path(path: str | os.PathLike[str], what: str, home: str | os.PathLike[str] | None = None) -> Path:
    """The absolute local path of a path; `file:///x` is `/x`, and a relative path is resolved against `home`.

    `what` names the object at the beginning of the message, such as "The pond's folder". If `home` is None, the current
    folder is used.

    Raises:
        PlaceError: the path has the scheme of another file system, or the host of another machine.

    >>> str(local_path("file:///a/b", "It")), str(local_path("b", "It", "/a")), str(local_path("/c/../d", "It", "/a"))
    ('/a/b', '/a/b', '/d')
    """
    text = os.fspath(path)
    scheme = scheme_of(text)
    if scheme == "file":
        given, text = text, _FILE.sub("", text)
        if text.startswith("//"):
            raise PlaceError(f"{what}, {given}, is on another host.", "Name a path of this machine.")
    elif scheme is not None:
        shown = re.sub(":/+", "://", text, count=1)  # a `Path` reduces two slashes to one
        raise PlaceError(
            f"{what}, {shown}, is not local: {scheme}:// is not supported there.",
            "Name a path of this machine, or one where the file system is mounted.",
        )
    return Path(os.path.abspath(os.path.join(home or os.curdir, text)))


def no_link(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file, unless its name is a symbolic link; also an `opener` for `open`.

    Raises:
        PlaceError: it is a link. OSError: as `os.open`.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _linked(path, "Millpond does not open this file through a link") from error
        raise


def check_own_link(path: Path) -> None:
    """Check that a path below a pond's folder is not a symbolic link that another user made.

    Raises:
        PlaceError: neither this user, root nor the owner of the folder made it.
    """
    if path.is_symlink() and (maker := _maker(path)) not in (os.getuid(), 0, path.parent.stat().st_uid):
        raise _linked(path, f"the user with the number {maker} made it")


def check_own_links(folder: Path) -> None:
    """Apply `check_own_link` to every name in a folder, which may be missing.

    Raises:
        PlaceError: as `check_own_link`. OSError: the folder cannot be read.
    """
    if folder.is_dir():
        for path in folder.iterdir():
            check_own_link(path)


def real_file(path: Path, *beside: str) -> Path:
    """The resolved path of a file, for a library that opens it by its name.

    `beside` are suffixes of further files that the library creates in the same folder.

    Raises:
        PlaceError: another user made the link, or one of the further files is a link.
    """
    check_own_link(path)
    real = Path(os.path.realpath(path))
    for end in beside:
        with suppress(FileNotFoundError):
            os.close(no_link(real.with_name(real.name + end)))
    return real


def _maker(link: Path) -> int:
    return link.lstat().st_uid


def _linked(path: str | os.PathLike[str], why: str) -> PlaceError:
    what = f"{os.fspath(path)} is a symbolic link to {os.readlink(path)}, and {why}."
    return PlaceError(what, "Remove the link, or replace it by its target.")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside `path`; the file that is written there replaces `path` at the end, unless an error is raised."""
    draft = path.with_name(f".{path.name}-{writer_token()}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
