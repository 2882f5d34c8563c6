"""Card fraud from Kafka to Kafka: pays with cards, registers eight queries, shows the alerts.

    pip install '.[kafka]'
    docker run --rm -p 9092:9092 apache/kafka:4.1.0    # or any broker of yours
    python run.py localhost:9092                       # the first time it fetches Spark's connector from Maven

It creates the topics `payments` and `alerts`, and leaves them there.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millpond import Pond
from millpond.connections import VARIABLE
from millpond.control.diagnose.dead_letters import kinds

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
PARTITIONS = 3
CARDS = 40
STOLEN = 7
"""The card that somebody else has, from the tenth minute on."""
SECONDS = 60.0


def payments(count: int = 3000) -> Iterator[tuple[int, bytes, bytes]]:
    """(partition, key, value) of each payment; one in 300 is no JSON."""
    dice = random.Random(17)
    for number in range(count):
        at = START + timedelta(seconds=number * 1800 / count)
        card = STOLEN if at > START + timedelta(minutes=10) and dice.random() < 0.08 else dice.randrange(CARDS)
        thief = card == STOLEN and at > START + timedelta(minutes=10)
        amount = dice.choice((0.01, 900.0, 3500.0)) if thief else round(dice.lognormvariate(3, 1), 2)
        value = {
            "card": f"card-{card:02}",
            "ts": (at - timedelta(seconds=dice.choice((0, 0, 0, 2, 15)))).isoformat(),
            "amount": amount,
            "country": dice.choice(("DE", "US", "BR", "JP")) if thief else "DE",
            "declined": thief and dice.random() < 0.4,
        }
        text = "oops" if number % 300 == 299 else json.dumps(value)
        yield card % PARTITIONS, value["card"].encode(), text.encode()


def create(servers: str, *topics: str) -> None:
    """Create the topics."""
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        made.result(SECONDS)


def produce(servers: str, topic: str) -> None:
    """Write all payments to a topic."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for partition, key, value in payments():
        producer.produce(topic, value, key, partition)
        producer.poll(0)
    if producer.flush(SECONDS):
        raise TimeoutError(f"{servers} did not take all payments in {SECONDS:.0f} seconds")


def read(servers: str, topic: str) -> Iterator[Message]:
    """Every message that a topic holds now."""
    settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    try:
        for number in range(PARTITIONS):
            at, end = consumer.get_watermark_offsets(TopicPartition(topic, number), SECONDS)
            consumer.assign([TopicPartition(topic, number, at)])
            while at < end:
                yield from (message for message in consumer.consume(1000, 0.2) if message.error() is None)
                at = consumer.position([TopicPartition(topic, number)])[0].offset
    finally:
        consumer.close()


def run(servers: str, folder: Path) -> Counter[tuple[str, str]]:
    """Answer the queries in `folder`; returns how many alerts each has for each card."""
    create(servers, "payments", "alerts")
    produce(servers, "payments")
    connections = folder / "connections.json"
    connections.write_text(json.dumps({"local": {"servers": servers}}))
    os.environ[VARIABLE] = str(connections)
    text = Path(__file__).with_name("pond.sql").read_text().replace("'out/dead'", f"'{folder}/dead'")
    with Pond(path=folder / "pond") as pond:
        pond.load(text)
        pond.run(drain=True)
        print("the stolen card, latest window:", pond.lookup("spend", f"card-{STOLEN:02}").document)
    for kind in kinds(folder / "dead"):
        print(f"{kind.letters} dead letters of {kind.topic}: {kind.reason}")
    found: Counter[tuple[str, str]] = Counter()
    for message in read(servers, "alerts"):
        alert = json.loads(message.value() or b"")
        found[dict(message.headers() or ())["query"].decode(), alert["card"]] += 1
    return found


def main() -> None:
    """The whole example, in a folder that is deleted afterwards."""
    if len(sys.argv) != 2:
        sys.exit("Name your broker: python run.py localhost:9092")
    with tempfile.TemporaryDirectory() as folder:
        for (query, card), count in sorted(run(sys.argv[1], Path(folder)).items()):
            print(f"{query:10} {card}  {count:4} alerts")


if __name__ == "__main__":
    main()
