"""Many continuous queries over one event stream in one Spark application."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millpond.version import VERSION as __version__

if TYPE_CHECKING:
    from millpond.control.pond.pond import Pond
    from millpond.control.wiring.latest_rows import LatestRows
    from millpond.model.endpoints import Sink
    from millpond.service.api.client import Client
    from millpond.spark.frontend.match_recognize import match_recognize
    from millpond.spark.frontend.window_functions import count_window, cumulate_window, window
    from millpond.spark.session.session import spark_session

__all__ = [
    "Client",
    "LatestRows",
    "Pond",
    "Sink",
    "__version__",
    "count_window",
    "cumulate_window",
    "match_recognize",
    "spark_session",
    "window",
]

_HOMES = {
    "Client": "millpond.service.api.client",
    "LatestRows": "millpond.control.wiring.latest_rows",
    "Pond": "millpond.control.pond.pond",
    "Sink": "millpond.model.endpoints",
    "count_window": "millpond.spark.frontend.window_functions",
    "cumulate_window": "millpond.spark.frontend.window_functions",
    "match_recognize": "millpond.spark.frontend.match_recognize",
    "spark_session": "millpond.spark.session.session",
    "window": "millpond.spark.frontend.window_functions",
}


def __dir__() -> list[str]:
    """List only public names, so that completion shows them although they are loaded later."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, because Spark's workers import this package and need none of the names."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    return getattr(import_module(home), name)
