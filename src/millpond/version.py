"""The version of this package, as it is written into claims, and the command that installs what an extra needs."""

from __future__ import annotations

import re
from importlib import metadata

VERSION = "0.2.0"


def install(extra: str) -> str:
    """The command that installs the libraries of an extra of this package, wherever the package came from.

    >>> install("kafka")
    "pip install 'confluent-kafka>=2.6'"
    """
    try:
        needs = metadata.requires("millpond") or []
    except metadata.PackageNotFoundError:  # run from its source
        needs = []
    found = [need.partition(";")[0].strip() for need in needs if re.search(rf"extra == ['\"]{extra}['\"]", need)]
    return f"pip install {' '.join(map(repr, found)) or repr(f'millpond[{extra}]')}"
