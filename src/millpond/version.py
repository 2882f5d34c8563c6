"""Provides the version of this package, which a driver writes into the log when it takes over, and install commands."""

from __future__ import annotations

import re

VERSION = "0.3.0.dev0"


def install(extra: str) -> str:
    """The command that installs the libraries of an extra, independent of where this package was installed from.

    >>> install("kafka")
    "pip install 'confluent-kafka>=2.6'"
    """
    from importlib import metadata  # in here, as each process of a user's function imports this module

    try:
        needs = metadata.requires("millpond") or []
    except metadata.PackageNotFoundError:  # the package runs from its source folder
        needs = []
    found = [need.partition(";")[0].strip() for need in needs if re.search(rf"extra == ['\"]{extra}['\"]", need)]
    return f"pip install {' '.join(map(repr, found)) or repr(f'millpond[{extra}]')}"
