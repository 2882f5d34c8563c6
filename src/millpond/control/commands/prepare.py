"""`millpond prepare`: runs a small pond so that later starts of Spark load their classes from one file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from millpond.control.pond.pond import Pond
from millpond.spark.session.class_archive import make_archive
from millpond.spark.session.java import Gateway
from millpond.spark.session.session import load_reflection, own_gateway, spark_session

_FILE = """
CREATE TABLE tx (at TIMESTAMP, id BIGINT, amount DOUBLE, kind STRING) USING json OPTIONS (path '{folder}/in');
CREATE STREAMING TABLE spend USING parquet TBLPROPERTIES ('path' = '{folder}/spend', 'serve' = 'true') AS
SELECT id, window(at, '1 minute', '10 seconds') AS w, sum(amount) AS total, max(kind) AS kind
FROM STREAM tx WATERMARK at DELAY OF INTERVAL 5 SECONDS WHERE amount > 0 GROUP BY ALL HAVING count(*) > 0;
CREATE STREAMING TABLE large USING json TBLPROPERTIES ('path' = '{folder}/large') AS
SELECT id, upper(kind) AS kind FROM STREAM tx WHERE amount > 90
"""


def prepare() -> Path:
    """Create the class archive unless it exists; returns its path.

    Raises:
        JavaError: no Java was found, or it does not support such archives.
    """
    return make_archive(_exercise)


def _exercise(option: str) -> Gateway:
    with tempfile.TemporaryDirectory(prefix="millpond-prepare-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        rows = ({"at": f"2026-01-01 00:00:{i % 60:02}", "id": i % 7, "amount": i / 2, "kind": "a"} for i in range(200))
        (folder / "in" / "0.json").write_text("\n".join(map(json.dumps, rows)))
        settings = {"spark.driver.extraJavaOptions": option}
        spark = spark_session("local[2]", driver_memory="1g", extra=settings, mllib=False)
        with Pond(spark, folder / "pond") as pond:
            pond.load(_FILE.format(folder=folder))
            pond.run(once=True, drain=True)
        load_reflection(spark)
        spark.stop()
    return own_gateway()
