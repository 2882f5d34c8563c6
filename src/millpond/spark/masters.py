"""Distinguishes masters whose tasks run in the driver's process from those with executors."""

from __future__ import annotations


def is_local_master(master: str) -> bool:
    """Whether all tasks of this master run in the driver's process; those of `local-cluster[…]` do not.

    >>> [is_local_master(master) for master in ("local", "local[*,4]", "local-cluster[2,1,1024]", "spark://host:7077")]
    [True, True, False, False]
    """
    return master == "local" or master.startswith("local[")
