"""Checks that folders with predictable names, below `/dev/shm` or the temporary folder, belong to this user.

Otherwise another user who creates such a folder first, or a link of that name, could read and replace its content.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_PRIVATE = 0o700
_WRITABLE_BY_OTHERS = 0o022


def is_own(folder: Path) -> bool:
    """Whether a folder belongs to this user, is no link, and is not writable by others; creates a missing folder."""
    try:
        try:
            found = folder.lstat()
        except FileNotFoundError:
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & _WRITABLE_BY_OTHERS


@cache
def own_folder(base: Path) -> Path:
    """This user's private folder below `base`; it is always the same one, unless another user has taken its name."""
    folder = base / f"millpond-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=_PRIVATE)
    if is_own(folder):
        with suppress(OSError):
            folder.chmod(_PRIVATE)  # earlier versions created it with the permissions of the umask
        return folder
    made = tempfile.mkdtemp(prefix=f"{folder.name}-", dir=base if os.access(base, os.W_OK) else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
