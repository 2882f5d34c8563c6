"""Paths of this machine, checked: a path with the scheme of another file system is refused, and never made a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from millpond.errors import PlaceError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)


def scheme_of(path: str | os.PathLike[str]) -> str | None:
    """The scheme that a path begins with, in lower case; None: it has none, so it is a path of this machine.

    >>> scheme_of("s3a://bucket/p"), scheme_of(Path("hdfs://host/p")), scheme_of("/a:/b"), scheme_of("a:b")
    ('s3a', 'hdfs', None, None)
    """
    found = _SCHEME.match(os.fspath(path))
    return None if found is None else found[1].lower()


def local_path(path: str | os.PathLike[str], what: str, home: str | os.PathLike[str] | None = None) -> Path:
    """The absolute path on this machine that a path means; `file:///x` is `/x`, and a relative one begins at `home`.

    `what` names what is there, at the beginning of the message: "The pond's folder". `home` None: the current folder.

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
        shown = re.sub(":/+", "://", text, count=1)  # a Path has one slash left of two
        raise PlaceError(
            f"{what}, {shown}, is not local: {scheme}:// is not supported there.",
            "Name a path of this machine, or one where the file system is mounted.",
        )
    return Path(os.path.abspath(os.path.join(home or os.curdir, text)))
