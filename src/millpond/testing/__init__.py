"""Tools for users' tests: `Trial` runs queries without Spark; row comparison, random events, conformance suites.

Imports `reconfigure`, `followers`, `runtime` and the parts below them; nothing in the package imports it. Begin with
`trial.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.testing.compare import Tolerance, assert_same_rows
    from millpond.testing.random_events import events
    from millpond.testing.sink_conformance import Target, check_sink
    from millpond.testing.trial import Trial

__all__ = ["Target", "Tolerance", "Trial", "assert_same_rows", "check_sink", "events"]

_HOMES = {
    "Target": "millpond.testing.sink_conformance",
    "Tolerance": "millpond.testing.compare",
    "Trial": "millpond.testing.trial",
    "assert_same_rows": "millpond.testing.compare",
    "check_sink": "millpond.testing.sink_conformance",
    "events": "millpond.testing.random_events",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used: `events` needs hypothesis, the others do not."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'millpond.testing' has no attribute {name!r}")
    return getattr(import_module(home), name)
