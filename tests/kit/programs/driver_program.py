"""A program that runs Spark's driver on a cluster for other programs: `driver_program.py MASTER SETTINGS`.

SETTINGS is a JSON object. Each line of the input is a JSON object with settings for the coming jobs; the answer to it
is a line with the environment variables by which another program joins the driver (`kit.programs.shared_java`).
"""

from __future__ import annotations

import json
import sys

from kit.programs.shared_java import joining
from millpond.spark.session.session import spark_session


def main(master: str, settings: str) -> None:
    """Answer each line of the input; the driver ends with the input."""
    session = spark_session(master, driver_memory="1g", extra=json.loads(settings), mllib=False)
    conf = session._jsc.sc().conf()
    for line in sys.stdin:
        for name, value in json.loads(line).items():
            conf.set(name, value)
        print(json.dumps(joining(session)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
