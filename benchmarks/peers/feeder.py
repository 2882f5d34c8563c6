"""Writes records of HiBench's user visits to a topic at a steady pace: `feeder.py SERVERS TOPIC PER_SECOND SECONDS`.

A record is a line of CSV of about 200 bytes: when it was made (milliseconds since 1970, and as a time), then what the
suite's generator of user visits writes. Records of ten milliseconds are sent together; if the feeder falls behind, it
says so at its end, and `made` is when a record was due, so that no delay is left out.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone

import numpy as np
from confluent_kafka import Producer

VISITORS = 10_000
COLUMNS = (
    "made BIGINT, ts TIMESTAMP, ip STRING, url STRING, revenue DOUBLE, agent STRING, country STRING, word STRING,"
    " seconds INT"
)
TICK = 0.01
PARTITIONS = 2


def tails(count: int = 20_000, seed: int = 1) -> list[str]:
    """Lines without their times, drawn once; the feeder goes through them again and again."""
    dice = np.random.default_rng(seed)
    people = dice.integers(0, VISITORS, count)
    pages, words = dice.zipf(1.5, count) % 100_000, dice.zipf(1.3, count) % 5_000
    agents = ["Mozilla/5.0 (iPhone; U; CPU like Mac OS X)", "Mozilla/5.0 (X11; Linux x86_64)", "Googlebot/2.1"]
    countries = ["GRC", "DEU", "FRA", "ESP", "USA"]
    return [
        f"{one >> 8}.{one & 255}.{one % 7}.{one % 11},http://example.org/{'path/' * 12}{page},{page % 977 / 1000:.3f},"
        f"{agents[one % 3]},{countries[one % 5]},word{word},{page % 10}"
        for one, page, word in zip(people.tolist(), pages.tolist(), words.tolist(), strict=True)
    ]


def main(servers: str, topic: str, per_second: int, seconds: float) -> None:
    """Feed; the last line says by how many milliseconds it was late at worst."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    lines, sent, worst = tails(), 0, 0.0
    each, began = max(1, round(per_second * TICK)), time.time()
    for tick in range(round(seconds / TICK)):
        due = began + tick * TICK
        time.sleep(max(0.0, due - time.time()))
        worst = max(worst, time.time() - due)
        moment = f"{datetime.fromtimestamp(due, timezone.utc):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        head = f"{int(due * 1000)},{moment}Z,"
        for number in range(sent, sent + each):
            producer.produce(topic, head + lines[number % len(lines)], partition=number % PARTITIONS)
        sent += each
        producer.poll(0)
    producer.flush()
    print(f"{sent} {worst * 1e3:.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
