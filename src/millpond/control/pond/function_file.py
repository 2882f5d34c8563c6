"""Loads the operator's functions: `MILLPOND_FUNCTIONS` names a JSON file of installed functions.

    {"skewness": {"module": "rules.shape:skewness", "kind": "holistic", "takes": ["double"], "returns": "double",
                  "version": "2", "deadline": "1 second"}}

Authors of queries call the functions by name and cannot name a module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from millpond.errors import SetupError
from millpond.local_path import local_path
from millpond.spark.frontend.frontend import FrontEnd

VARIABLE = "MILLPOND_FUNCTIONS"
"""The environment variable that names the file."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function, with the arguments of `Pond.function`."""

    module: str
    kind: str
    takes: tuple[str, ...] | dict[str, str]
    returns: str | dict[str, str]
    version: str = "1"
    deadline: str = "5 seconds"
    memory: str = "256 MB"
    form: str = "arrow"
    state: dict[str, str] | None = None
    ttl: str | None = None
    timers: str | None = None


def declared_functions(environ: Mapping[str, str] | None = None) -> dict[str, Declared]:
    """The functions in the file, by name; empty if the variable is not set.

    Raises:
        SetupError: the file cannot be read.
    """
    place = (os.environ if environ is None else environ).get(VARIABLE)
    if place is None:
        return {}
    try:
        return msgspec.json.decode(local_path(place, "The file of functions").read_bytes(), type=dict[str, Declared])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SetupError(
            f"{place} is no file of functions: {error}.", f"Mend what {VARIABLE} names; docs/functions.md shows one."
        ) from error


def load_functions(front: FrontEnd) -> None:
    """Declare the functions in the file, and new versions of functions that are declared already.

    Raises:
        SetupError: the file cannot be read. QueryTypeError, UserFunctionError: see `FrontEnd.function`.
    """
    for name, declared in declared_functions().items():
        front.function(name, **msgspec.structs.asdict(declared))
