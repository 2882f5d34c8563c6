"""Excludes long-lived objects from Python's garbage collection (`gc.freeze`)."""

from __future__ import annotations

import gc


def pass_by_what_is_loaded() -> None:
    """Let later collections pass by all that this process has loaded: to go through its modules takes 20 to 100 ms, as
    long as an epoch. For processes that are Millpond's own: what is thrown away later of this is not given back.
    """
    gc.collect()
    gc.freeze()
