"""Spark's daemon of Python workers, with the modules of Millpond's tasks loaded once, before it forks the workers.

With Spark's own daemon each worker imports them in its first task, which takes a second of a core. Spark also places
pyspark's zip and a jar of 6,000 entries first on the path: every process compiles the modules that it imports from a
zip, and reads the table of contents of the zip and the jar. The session names this module (`spark.session.session`);
Spark runs it with `python -m`. Forking is safe although NumPy and Arrow have started a thread each: OpenBLAS (NumPy)
and jemalloc (Arrow) stop and restart theirs around a fork.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

MODULES = ("pandas", "pyspark.sql.pandas.types", "pyspark.sql.types", "pyspark.worker", "millpond.spark.driver.tasks")
"""What the tasks of an epoch need."""


def without_zips(path: Sequence[str]) -> list[str]:
    """The path without the zips and jars of the installed pyspark; unchanged if pyspark is only in another Spark's zip.

    >>> without_zips(["", "/usr/share/other.zip"])
    ['', '/usr/share/other.zip']
    """
    found = PathFinder.find_spec("pyspark", [entry for entry in path if Path(entry or ".").is_dir()])
    if found is None or found.origin is None:
        return list(path)
    home = Path(found.origin).parent
    packed = (home / "python" / "lib", home / "jars")
    return [entry for entry in path if Path(entry).parent not in packed]


def main() -> None:
    """Load everything, and serve Spark until it closes the pipe."""
    sys.path[:] = without_zips(sys.path)
    for name in MODULES:
        import_module(name)
    import_module("millpond.gc_freeze").freeze_loaded_objects()
    import_module("millpond.spark.session.worker").hide_lost_connections()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
