"""A pond whose queries change as a script says, as a program to be killed: `change_program.py BASE`.

It joins the Java machine that the environment names (`kit.programs.shared_java`). BASE/in holds the input, BASE/pond
the pond, BASE/out/<query> the sinks. With BASE/within, all changes are requested by the thread that runs epochs. A pond
that has begun is opened without its queries: it goes on with those in force, and with the rest of the script.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millpond import Pond
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Stream
from millpond.reconfigure.changes import End
from millpond.spark.driver.epochs import Epoch

FIELDS = (Field("ts", "timestamp"), Field("k", "string"), Field("v", "bigint"), Field("w", "bigint"))
SPEND = """
    SELECT k, window.start AS at, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '20 seconds', '10 seconds')
"""
BIG = SPEND.replace("GROUP BY", "WHERE v > 50 GROUP BY")
WIDE = SPEND.replace("sum(v)", "sum(w)")
LATER = SPEND.replace("sum(v)", "median(w)").replace("5 SECONDS", "15 SECONDS")
WITHIN = "within"


def stream(folder: Path) -> Stream:
    """The files in a folder, one per epoch."""
    return Stream("tx", FIELDS, Source("parquet", (("maxFilesPerTrigger", "1"), ("path", str(folder)))))


def beside(pond: Pond, change: Callable[[], object]) -> None:
    """Ask for a change in another thread, so that it is recorded when the next epoch ends; returns when it waits."""
    opened = pond._lifetime.opened
    assert opened is not None
    waiting = opened.driver._changes._waiting
    before, thread = len(waiting), threading.Thread(target=change, daemon=True)
    thread.start()
    while len(waiting) == before and thread.is_alive():
        time.sleep(0.001)


class Script:
    """Changes, each requested after the epoch that read the file with its number, unless the log has it.

    One that comes later in the script waits until the log has those of earlier files.
    """

    def __init__(self, base: Path) -> None:
        self.pond: Pond | None = None
        self.requested = 0
        within = (lambda _pond, change: change()) if (base / WITHIN).exists() else beside
        sink = {name: Sink("json", str(base / "out" / name)) for name in ("big", "wide", "later")}
        self._steps = [
            (0, lambda pond: pond.add("big", BIG, sink=sink["big"])),
            (1, lambda pond: within(pond, lambda: pond.add("wide", WIDE, sink=sink["wide"]))),
            (3, lambda pond: pond.alter("big", BIG.replace("50", "20"))),
            (3, lambda pond: pond.scale(3)),
            (3, lambda pond: pond.add("later", LATER, sink=sink["later"], backfill=True)),
            (5, lambda pond: pond.pause("wide")),
            (6, lambda pond: pond.resume("wide")),
            (6, lambda pond: pond.scale(1)),
            (7, lambda pond: pond.drop("spend")),
        ]

    def __call__(self, epoch: Epoch) -> None:
        """An epoch was committed."""
        offset = epoch.record.end.get("tx")
        if self.pond is None or offset is None:
            return
        files, recorded = [file for file, _ in self._steps], changes(self.pond)
        while self.requested < len(files) and files[self.requested] <= json.loads(offset)["logOffset"]:
            if files.index(files[self.requested]) > recorded:
                break
            self._steps[self.requested][1](self.pond)
            self.requested += 1


def changes(pond: Pond) -> int:
    """How many changes of the script the log has."""
    return sum(not isinstance(recorded.change, End) for recorded in pond.history())


def answer(spark: SparkSession, base: str) -> dict[str, Any]:
    """Run the pond until its input is read, and return the outcome."""
    root, new = Path(base), not (Path(base) / "pond" / "pond.id").exists()
    script = Script(root)
    try:
        with Pond(spark, root / "pond", cache=root / "cache", instances=2, on_epoch=script) as pond:
            if new:
                pond.stream(stream(root / "in"))
                pond.add("spend", SPEND, sink=Sink("json", str(root / "out" / "spend")))
            script.requested, script.pond = changes(pond), pond
            pond.run(drain=True)
            return {"ok": True, "error": ""}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def main(base: str) -> None:
    """Run the pond of BASE in the joined Java machine."""
    from joined_session import joined_session  # in here, as a run of doctests imports this file from another folder

    print(json.dumps(answer(joined_session(), base)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
