"""Card fraud from Kafka to Kafka: starts a broker, pays with cards, asks eight questions, shows the alerts.

    pip install '.[kafka]'
    python run.py            # the first time it fetches Kafka and Spark's connector from Maven
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from millpond import Pond
from millpond.control.dead_letters import kinds
from millpond.runtime.connections import VARIABLE
from millpond.testing.kafka_server import KafkaServer

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
PARTITIONS = 3
CARDS = 40
STOLEN = 7
"""The card that somebody else has, from the tenth minute on."""


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


def run(server: KafkaServer, folder: Path) -> Counter[tuple[str, str]]:
    """Ask the questions in `folder`; returns how many alerts each has for each card."""
    server.create("payments", PARTITIONS)
    server.create("alerts", PARTITIONS)
    server.produce("payments", payments())
    connections = folder / "connections.json"
    connections.write_text(json.dumps({"local": {"servers": server.servers}}))
    os.environ[VARIABLE] = str(connections)
    text = Path(__file__).with_name("pond.sql").read_text().replace("'out/dead'", f"'{folder}/dead'")
    with Pond(path=folder / "pond") as pond:
        pond.load(text)
        pond.run(drain=True)
        print("the stolen card, latest window:", pond.lookup("spend", f"card-{STOLEN:02}").document)
    for kind in kinds(folder / "dead"):
        print(f"{kind.letters} dead letters of {kind.topic}: {kind.reason}")
    found: Counter[tuple[str, str]] = Counter()
    for message in server.read("alerts"):
        alert = json.loads(message.value or b"")
        found[message.headers["query"].decode(), alert["card"]] += 1
    return found


def main() -> None:
    """The whole example, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as place, KafkaServer(Path(place) / "kafka") as server:
        for (query, card), count in sorted(run(server, Path(place)).items()):
            print(f"{query:10} {card}  {count:4} alerts")


if __name__ == "__main__":
    main()
