"""The name of the user of this process, for histories."""

from __future__ import annotations

import getpass
from contextlib import suppress


def user_name() -> str:
    """The name of this process's user; empty if it has none."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return ""
