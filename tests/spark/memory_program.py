"""A pond whose limits are off, so that a query may end the JVM's memory.

Usage: `memory_program.py FOLDER [NAME TEXT [SECONDS]]`. The query NAME is added once all input has been read, before
more comes. An epoch that makes no progress for SECONDS is ended.

It prints one line of JSON: the error, the queries that are quarantined, and the files of rows of the other query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millpond import Pond
from millpond.errors import MillpondError
from millpond.spark.catalyst import value_bounds
from millpond.spark.session.session import spark_session


def main() -> None:
    # in here, as a run of doctests imports this file in the process of other tests
    value_bounds.VALUE_BYTES = value_bounds.CONSTANT_BYTES = 1 << 62
    folder, (name, text, *seconds) = Path(sys.argv[1]), sys.argv[2:] or ("", "")
    after = float(seconds[0]) if seconds else 540.0
    spark, error = spark_session("local[2]", driver_memory="512m", mllib=False), ""
    with Pond(spark, folder / "pond", instances=1, stalled_after=after) as pond:
        pond.load((folder / "pond.sql").read_text(), queries=not (folder / "pond" / "pond.id").is_file())
        pond.open()
        try:
            pond.run()
            if text:
                pond.add(name, text)
                (folder / "in" / f"{name}.json").write_text((folder / "more.json").read_text())
            pond.run()
        except MillpondError as found:
            error = str(found)
        halted = {one.change.name: one.change.why for one in pond.history() if type(one.change).__name__ == "Halt"}
        rows = sorted(path.name for path in (folder / "out").rglob("*.parquet"))
        print(json.dumps([error, halted, rows]), flush=True)


if __name__ == "__main__":
    main()
