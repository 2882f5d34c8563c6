"""Counts the instructions of Python that a call takes, which is the same number on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def counted_instructions(call: Callable[[], Any]) -> int:
    """How many instructions of Python's bytecode this thread runs until `call` returns. Loops in C are not counted."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
