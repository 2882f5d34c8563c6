"""Checks whether an LMDB file is damaged, without risk for the calling process.

LMDB maps its file into memory and trusts its content. If a file was truncated, the first access to a lost page is a
SIGBUS, which ends the process without a message. So a child process reads every page first, at about a gigabyte per
second. This module is also the program of that child, so it imports nothing of Millpond.
"""

from __future__ import annotations

import errno
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

_META = struct.Struct("<16x II 16x 48s 48s QQ")
"""A meta page: magic and version, two databases, the last page, the transaction."""

_PAGE_SIZE = struct.Struct("<I")
_MAGIC = 0xBEEFC0DE
_LARGEST_PAGE = 1 << 16
_SECONDS = 600.0
_NO_SUCH_PAGE = os.strerror(errno.EFAULT)
_UNKNOWN = 77
"""The exit code of a child that cannot check the file."""


def damage_of(path: Path, *, thorough: bool) -> str | None:
    """Describes the damage of an LMDB file; None if none is found, or if it is missing, empty, or no LMDB file.

    Unless `thorough`, only a file that seems too short is checked. A check of more than ten minutes finds nothing.

    Raises:
        OSError: the file cannot be read.
    """
    whole = _whole_bytes(path)
    if whole is None:
        return None
    present = path.stat().st_size
    # pages at the end may be free pages that were never written
    if present >= whole and not thorough:
        return None
    try:
        done = subprocess.run(
            # -I, because the folder of this file contains another module named lmdb
            [sys.executable, "-I", __file__, str(path), *sys.path],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode in (0, _UNKNOWN):
        return None
    short = f"it has {present} bytes of {whole}" if present < whole else "a page of it is not what it should be"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"{short} ({said[-1]})" if done.returncode > 0 and said else short


def _whole_bytes(path: Path) -> int | None:
    """The size that a file should have according to its newer meta page, in bytes; None if it has no meta page."""
    try:
        with open(path, "rb") as file:
            head = file.read(_META.size)
            if len(head) < _META.size or _META.unpack(head)[0] != _MAGIC:
                return None
            (page,) = _PAGE_SIZE.unpack_from(_META.unpack(head)[2])
            page = page if 0 < page <= _LARGEST_PAGE else _PAGE_SIZE.size * 1024
            file.seek(page)
            second = file.read(_META.size)
    except FileNotFoundError:
        return None
    pages = [_META.unpack(one) for one in (head, second) if len(one) == _META.size]
    newest = max((one for one in pages if one[0] == _MAGIC), key=lambda one: int(one[5]))
    return (int(newest[4]) + 1) * page


def _read_all(path: str, modules: list[str]) -> None:
    sys.path[:] = modules
    try:
        import lmdb
    except ImportError:
        sys.exit(_UNKNOWN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        environment = lmdb.open(path, subdir=False, readonly=True, create=False, max_dbs=2)
        with open(os.devnull, "wb") as nowhere:
            environment.copyfd(nowhere.fileno(), compact=True)
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError):
        raise
    except lmdb.Error as error:
        if _NO_SUCH_PAGE in str(error):
            raise
        sys.exit(_UNKNOWN)  # missing permission, space or reader slots are no damage of the file


if __name__ == "__main__":
    _read_all(sys.argv[1], sys.argv[2:])
