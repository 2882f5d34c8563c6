"""Card fraud: features of each card for a model, kept up to date, and looked up by key. With Spark SQL.

    python examples/card_fraud.py

Four queries over the same payments: the last hour, the last day, payments abroad, and an alarm. They share one
read, one shuffle and one state; the alarm uses numbers that are already stored.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond import Pond, spark_session

STOLEN = "card-13"
MIDNIGHT = datetime(2026, 3, 2, tzinfo=timezone.utc)

PAYMENTS = """
CREATE TABLE payments (card STRING, amount DOUBLE, country STRING, ts TIMESTAMP)
USING json OPTIONS (path '{folder}/payments', maxFilesPerTrigger '1')
"""
LAST_HOUR = """
SELECT card, window(ts, '1 hour', '15 minutes') AS w, count(*) AS payments, sum(amount) AS spent, max(amount) AS largest
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 5 MINUTES
GROUP BY card, window(ts, '1 hour', '15 minutes')
"""
LAST_DAY = """
SELECT card, window(ts, '1 day', '6 hours') AS w, count(*) AS payments, avg(amount) AS mean, stddev(amount) AS spread
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 5 MINUTES
GROUP BY card, window(ts, '1 day', '6 hours')
"""
ABROAD = """
SELECT card, window(ts, '1 day', '6 hours') AS w, count(*) AS payments, sum(amount) AS spent
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 5 MINUTES
WHERE country <> 'CH'
GROUP BY card, window(ts, '1 day', '6 hours')
"""
ALARM = """
SELECT card, window(ts, '1 hour', '15 minutes') AS w, count(*) AS payments, sum(amount) AS spent
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 5 MINUTES
GROUP BY card, window(ts, '1 hour', '15 minutes')
HAVING count(*) >= 5 AND sum(amount) > 2000
"""


def write_payments(folder: Path) -> None:
    """A day of 20 cards, about one payment in two hours each; one card is stolen at 15:10. The same each time."""
    chance = random.Random(4711)
    payments: list[dict[str, Any]] = []
    for minute in range(0, 24 * 60, 6):
        country = "CH" if chance.random() < 0.9 else "FR"
        card, amount = f"card-{int(chance.random() * 20):02}", round(5 + 120 * chance.random() ** 2, 2)
        payments.append({"card": card, "amount": amount, "country": country, "minute": minute})
    for i in range(8):
        payments.append({"card": STOLEN, "amount": 390.0 + i, "country": "US", "minute": 15 * 60 + 10 + 4 * i})
    payments.sort(key=lambda payment: payment["minute"])
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, len(payments), 90)):
        part = payments[first : first + 90]
        lines = [json.dumps({**one, "ts": (MIDNIGHT + timedelta(minutes=one["minute"])).isoformat()}) for one in part]
        file = folder / f"payments-{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark reads files in the order of these times


def run(spark: SparkSession, folder: Path) -> dict[str, pa.Table]:
    """Run to the end of the input; features of the stolen card are looked up as a model would."""
    write_payments(folder / "payments")
    with Pond(spark, folder / "pond") as pond:
        pond.load(PAYMENTS.format(folder=folder))
        pond.add("last_hour", LAST_HOUR, serve=True)
        pond.add("last_day", LAST_DAY, serve=True)
        pond.add("abroad", ABROAD)
        pond.add("alarm", ALARM)
        pond.run(once=True)
        pond.drain()  # the day is over: close every window
        for name in ("last_hour", "last_day"):
            found = pond.lookup(name, STOLEN)
            assert found.document is not None
            print(f"{STOLEN} {name}: {found.document['row']}, as of record {found.n}")
        return {query.name: pond.table(query.name) for query in pond.queries}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables = run(spark_session(), Path(folder))
    print("alarms")
    for row in tables["alarm"].to_pylist():
        spent = row["spent"]
        print(f"  {row['w']['end']:%H:%M} {row['card']} {row['payments']:>2} {spent:>8,.2f} {'█' * int(spent / 100)}")


if __name__ == "__main__":
    main()
