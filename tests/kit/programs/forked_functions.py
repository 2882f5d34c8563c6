"""Child processes of user functions that are forked from a process which has already imported Arrow and pandas.

A new interpreter costs a child half a second of a core.
"""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

from kit.programs.forked_program import ForkedProgram
from millpond.runtime.functions import process


class ForkedFunction(ForkedProgram):
    """The process of one function."""

    modules = ("pandas", "millpond.runtime.functions.kinds", "millpond.runtime.functions.wire")
    variables = process.ONE_THREAD

    def __init__(self, command: list[str], **how: Any) -> None:
        super().__init__(command[1:], **how)


FORKING = SimpleNamespace(Popen=ForkedFunction, PIPE=subprocess.PIPE)
"""What takes the place of the module `subprocess` in `millpond.runtime.functions.process`."""
