"""A Kafka broker for tests and tutorials: one node of Apache Kafka (KRaft) on loopback ports; it stops with its parent.

`python -m kit.servers.kafka_server --port 9092 --topic orders:3` runs one until Ctrl-C; `--fetch` only fetches its
jars, and those of Spark's connector and of its decoder of Avro.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kit.servers.servers import JAVA_FLAGS, Watched, free_ports, until
from millpond.errors import JavaError, SetupError
from millpond.spark.session.jars import avro, connector, fetched, listed
from millpond.spark.session.java import find_java

JARS = listed(Path(__file__).with_name("kafka_jars.txt"))
"""Apache Kafka and what it needs to run."""

_SECONDS = 120.0
_USER, _PASSWORD, _MECHANISM = "pond", "secret-of-tests", "SCRAM-SHA-512"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_FLAGS = ("-Xmx256m", "-Xss512k", *JAVA_FLAGS)


class Message(NamedTuple):
    """A record of a topic as a consumer sees it; `headers` by name, `timestamp_ms` since 1970 UTC."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    timestamp_ms: int | None


@cache
def kafka_jars() -> tuple[Path, ...] | str:
    """The jars of the broker, downloaded if necessary; or a text: why the broker or Spark's connector is missing."""
    if shutil.which("openssl") is None:
        return "no openssl, which makes the broker's certificate"
    try:
        find_java()
        connector()
        avro()
        return tuple(fetched(JARS))
    except (JavaError, SetupError) as error:
        return str(error)


class KafkaServer(Watched):
    """One broker, which is also its controller; a context manager that stops it. It stores its data in `folder`."""

    out = "server.out 2>&1"
    patience = _SECONDS

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None, port: int | None = None) -> None:
        jars = kafka_jars()
        if isinstance(jars, str):
            raise FileNotFoundError(jars)
        super().__init__()
        self._folder = folder
        free, self._secure_port, controller = free_ports(3)
        self._port = free if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "password").write_text(_PASSWORD)
        _certify(folder)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{self._listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": self._listeners,
            "sasl.enabled.mechanisms": _MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.retention.check.interval.ms": "1000",
            "log.initial.task.delay.ms": "500",
            **(options or {}),
        }
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._java = [str(find_java().executable), *_FLAGS, "-cp", ":".join(map(str, jars))]

    @property
    def servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def secured(self) -> dict[str, Any]:
        """The connection to the second listener, which uses TLS and requires a password."""
        return {
            "servers": f"127.0.0.1:{self._secure_port}", "security": "sasl_ssl", "mechanism": _MECHANISM, "user": _USER,
            "password": {"file": str(self._folder / "password")}, "ca": str(self._folder / "cert.pem"),
        }  # fmt: skip

    @property
    def _listeners(self) -> str:
        return f"PLAINTEXT://127.0.0.1:{self._port},SASL_SSL://127.0.0.1:{self._secure_port}"

    def start(self) -> KafkaServer:
        """Start the broker, on its stored data if there are any, and wait until it answers."""
        if not (self._folder / "data").exists():
            name = base64.urlsafe_b64encode(uuid.UUID(int=1).bytes).decode().rstrip("=")
            words = ["kafka.tools.StorageTool", "format", "-t", name, "-c", str(self._settings)]
            words += ["--add-scram", f"{_MECHANISM}=[name={_USER},password={_PASSWORD}]"]
            subprocess.run([*self._java, *words], check=True, capture_output=True, cwd=self._folder)
        self.launch([*self._java, "kafka.Kafka", str(self._settings)], self._folder)
        until(self._answers, f"the Kafka at {self._port} answers", _SECONDS)
        return self

    def client(self, **more: Any) -> dict[str, Any]:
        """The settings of a client."""
        return {"bootstrap.servers": self.servers, "log_level": 0, **more}

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic with `settings`, which have `_` for the dots in their names."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        requested = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        admin = AdminClient(self.client())  # keep a reference: the pending results are lost with the client
        for made in admin.create_topics([requested]).values():
            made.result(_SECONDS)

    @contextmanager
    def removing(self, *topics: str) -> Iterator[None]:
        """A context whose end removes topics, so that another test can create topics with their names.

        If the context raises an error, it is the one that is reported, also if topics cannot be removed.
        """
        try:
            yield
        except BaseException:
            with suppress(KafkaException):
                self._remove(topics)
            raise
        self._remove(topics)

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        admin = AdminClient(self.client())
        for made in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            made.result(_SECONDS)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        admin = AdminClient(self.client())
        for done in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            done.result(_SECONDS)

    def produce(
        self, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]],
        timestamp_ms: int = TIMESTAMP_NOT_AVAILABLE,
    ) -> None:  # fmt: skip
        """Append records, as (partition, key, value)."""
        producer = Producer(self.client(**{"enable.idempotence": True}))
        for partition, key, value in records:
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
            producer.poll(0)
        assert producer.flush(_SECONDS) == 0, f"{topic} was not written"

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Every record of a topic, by partition and offset."""
        consumer = Consumer(self.client(**{"group.id": "reader", "isolation.level": isolation}))
        try:
            places = consumer.list_topics(topic, _SECONDS).topics[topic].partitions
            ends = {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), _SECONDS) for number in places
            }
            found: list[Message] = []
            for number, (low, high) in ends.items():
                consumer.assign([TopicPartition(topic, number, low)])
                at = low
                while at < high:
                    for message in consumer.consume(1000, 0.2):
                        if message.error() is None:
                            found.append(_message(message))
                    at = consumer.position([TopicPartition(topic, number)])[0].offset
            return sorted(found, key=lambda message: message[:2])
        finally:
            consumer.close()

    def _remove(self, topics: Sequence[str]) -> None:
        admin = AdminClient(self.client())
        for removed in admin.delete_topics([*topics]).values():
            removed.result(_SECONDS)

    def _answers(self) -> bool:
        with suppress(KafkaException):
            return bool(AdminClient(self.client()).list_topics(timeout=1.0).brokers)
        return False


def _certify(folder: Path) -> None:
    """Create a private key and a self-signed certificate, unless they exist."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    if certificate.exists():
        return
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([str(shutil.which("openssl")), *words], check=True, capture_output=True)
    (folder / "server.pem").write_text(key.read_text() + certificate.read_text())


def _message(message: Any) -> Message:
    kind, time = message.timestamp()
    return Message(
        message.partition(), message.offset(), message.key(), message.value(), dict(message.headers() or ()),
        None if kind == TIMESTAMP_NOT_AVAILABLE else time,
    )  # fmt: skip


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m kit.servers.kafka_server", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a Kafka broker on this machine for a tutorial or a test, until Ctrl-C. Not for production: "
        "one node,\nno password on its port, reachable from this machine only.",
        epilog="Example: a broker with two topics, and the connection that a pond needs to read them:\n"
        "  python -m kit.servers.kafka_server --port 9092 --topic orders:3 --topic alerts\n"
        """  echo '{"local": {"servers": "127.0.0.1:9092"}}' > connections.json\n"""
        "  export MILLPOND_CONNECTIONS=$PWD/connections.json\n"
        "It needs Java, openssl, and about 60 MB of jars, fetched once from Maven Central into ~/.cache/millpond/jars.",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=9092, help="where it listens on 127.0.0.1 [default: 9092]")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME[:PARTITIONS]", type=_topic,
        help="create this topic if it does not exist; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep its records there [default: a folder that goes at the end]"
    )
    parser.add_argument("--fetch", action="store_true", help="only fetch the jars, then end")
    return parser.parse_args(words)


def _topic(text: str) -> tuple[str, int]:
    """A topic and its number of partitions.

    >>> _topic("orders:3"), _topic("alerts")
    (('orders', 3), ('alerts', 1))
    """
    name, divided, partitions = text.partition(":")
    if not name or (divided and not (partitions.isdecimal() and int(partitions))):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return name, int(partitions or 1)


def main(words: Sequence[str] | None = None) -> int:
    """Run a broker until Ctrl-C, or only download its jars; returns the exit status."""
    options = _parsed(sys.argv[1:] if words is None else words)
    print("Looking for the jars of Kafka, and fetching those that are missing …", flush=True)
    jars = kafka_jars()
    if isinstance(jars, str):
        print(f"No broker can be started: {jars}", file=sys.stderr)
        return 1
    if options.fetch:
        return 0
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", options.port)) == 0:
            print(f"Port {options.port} of 127.0.0.1 is in use: choose another one with --port.", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as temporary:
        broker = KafkaServer(options.folder or Path(temporary), port=options.port)
        with suppress(KeyboardInterrupt), broker.start():
            known = set(AdminClient(broker.client()).list_topics(timeout=_SECONDS).topics)
            for name, partitions in options.topic:
                if name not in known:
                    broker.create(name, partitions)
            topics = ", ".join(name for name, _ in options.topic) or "no topic"
            print(f"Kafka is at {broker.servers} with {topics}. Ctrl-C ends it.", flush=True)
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
