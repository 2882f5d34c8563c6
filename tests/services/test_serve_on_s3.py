"""A served pond in a bucket: its leader's network is cut, healed and cut again, its host ends, and a standby goes on.

A host is a process of `millpond serve` with a Java machine, a temporary folder and a way to the bucket of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kit.programs.forked_program import ForkedProgram
from kit.servers.network_link import NetworkLink
from kit.servers.s3_server import S3Server
from kit.servers.servers import until
from millpond.errors import MillpondError, NotServingError
from millpond.service.api.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.slow]

ROWS, KEYS, LIMIT = 120, 4, 300.0
TOKEN = "the-token-of-the-test"
"""`LIMIT`: the longest wait in seconds, for a machine that does much else."""

SQL = """
CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json
OPTIONS (path '{base}/in', maxFilesPerTrigger '1') TBLPROPERTIES ('max_ahead' = '2 hours');
CREATE STREAMING TABLE counts USING json TBLPROPERTIES ('path' = '{base}/counts', 'serve' = 'true') AS
SELECT k, window(ts, '1 minute').start AS start, count(*) AS c, sum(n) AS s
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY k, window(ts, '1 minute');
"""
SEVENS = "SELECT n FROM STREAM ev WHERE n % 7 = 0"


class Host:
    """A host that serves the pond at `address`; `link` is its way to the store."""

    def __init__(self, name: str, base: Path, address: str, link: NetworkLink, store: S3Server) -> None:
        self.base, self.folder, self.link = base, base / name, link
        self._log = base / f"{name}.log"
        (self.folder / "tmp").mkdir(parents=True)
        variables = store.environment | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{link.port}", "TMPDIR": str(self.folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"), "MILLPOND_TOKEN": TOKEN,
        }  # fmt: skip
        words = ["serve", str(base / "ev.sql"), "--checkpoint", address, "--out", str(base / "added")]
        options = ["--master", "local[1]", "--memory", "700m", "--patience", "5"]
        with self._log.open("wb") as log:
            self.process = ForkedProgram(
                ["-m", "millpond", *words, *options], stdout=log, stderr=log, cwd=self.folder,
                env=os.environ | variables, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return self._log.read_text()

    def waits_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that this host does."""

        def holds() -> object:
            assert self.process.poll() is None, self.said()
            with suppress(NotServingError):
                return condition()
            return False

        try:
            until(holds, what, LIMIT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from error

    def kill(self) -> None:
        """End the host: the service, its Java machine and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def client(self) -> Client:
        """Of this host, whatever its role is."""
        return Client(self.url(), TOKEN, who="ann")

    def url(self) -> str:
        """Where this host is served."""
        return re.findall(r"served at (\S+)", self.said())[0]


class Pond:
    """The pond at an address, whose leader may change at any time: a busy host may give no sign of life for long."""

    def __init__(self, address: str, hosts: list[Host]) -> None:
        self._address, self._hosts = address, hosts

    def client(self) -> Client:
        """Of the leader that the bucket names."""
        return Client.of(self._address, who="ann")

    def leader(self) -> Host | None:
        """The host that the bucket names, if it says that it leads."""
        client = self.client()
        named = next(host for host in self._hosts if host.url() == client.url)
        return named if client.health().role == "leader" else None

    def hosts_by_role(self) -> tuple[Host, Host]:
        """The host that leads, and the other one."""
        found: list[Host] = []
        self._hosts[0].waits_for(lambda: (leader := self.leader()) and not found.append(leader), "a host leads")
        return found[0], next(host for host in self._hosts if host is not found[0])

    def change(self, kind: str, name: str) -> None:
        """Add or drop a query, if need be by the next leader; a change whose reply was lost is in the log already."""

        def made() -> bool:
            client = self.client()
            try:
                client.drop(name) if kind == "drop" else client.add(name, SEVENS, sink="json")
            except MillpondError:
                newest = client.history(1)
                if not newest or (newest[0].kind, newest[0].name) != (kind, name):
                    raise
            return True

        self._hosts[0].waits_for(made, f"{kind} {name}")

    def added(self, query: str) -> Counter[int]:
        """The numbers that a query which was added has emitted."""
        return Counter(int(str(row["n"])) for row in rows(self._hosts[0].base / "added" / query))


class Input:
    """Files of events, one of each minute."""

    def __init__(self, base: Path) -> None:
        self.folder, self.files = base / "in", 0
        self.folder.mkdir()

    def add(self) -> None:
        first = self.files * ROWS
        lines = [
            json.dumps({"k": f"k{n % KEYS}", "n": n, "ts": f"2024-01-01T00:{self.files:02}:{n * 60 // ROWS % 60:02}Z"})
            for n in range(first, first + ROWS)
        ]
        draft = self.folder / f".{self.files}"
        draft.write_text("\n".join(lines))
        os.utime(draft, (1_704_067_200 + self.files,) * 2)
        draft.rename(self.folder / f"{self.files:03}.json")
        self.files += 1

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Add a file each second in another thread."""
        ended = threading.Event()

        def flow() -> None:
            while not ended.wait(1) and self.files < 58:
                self.add()

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for part in folder.glob("part-*") for line in part.read_text().splitlines()]


def expected(files: int) -> Counter[tuple[str, str, int, int]]:
    """A row for each minute that has ended, and each key, by a loop over all events."""
    windows: dict[tuple[str, int], list[int]] = {}
    for n in range((files - 1) * ROWS):
        windows.setdefault((f"k{n % KEYS}", n // ROWS), []).append(n)
    return Counter(
        (key, f"2024-01-01T00:{minute:02}:00.000Z", len(of), sum(of)) for (key, minute), of in windows.items()
    )


def test_hosts_that_are_cut_off_or_end_lose_nothing_and_repeat_nothing(
    s3_connected: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_TOKEN", TOKEN)
    address = f"s3://{s3_connected.bucket()}/ponds/cut"
    (tmp_path / "ev.sql").write_text(SQL.format(base=tmp_path))
    events = Input(tmp_path)
    events.add()
    with ExitStack() as ends:
        hosts = []
        for name in "ab":
            link = ends.enter_context(NetworkLink(s3_connected.port))
            hosts.append(Host(name, tmp_path, address, link, s3_connected))
            ends.callback(hosts[-1].kill)
        pond = Pond(address, hosts)
        for host in hosts:
            host.waits_for(lambda host=host: host.said().count("Leading") + host.said().count("Standing"), "it starts")
        for turn in range(2):  # the first leader is cut off and healed, then the second one
            cut, other = pond.hosts_by_role()
            with events.flowing():
                pond.change("add", f"before{turn}")
                listed = other.url()
                cut.waits_for(lambda of=cut, url=listed: of.client().status().standbys == (url,), "it is listed")
                cut.link.cut()
                other.waits_for(lambda of=other: pond.leader() is of, "the other host leads")
                pond.change("add", f"after{turn}")
                pond.change("drop", f"before{turn}")
                cut.link.heal()
                cut.waits_for(lambda of=cut: of.client().health().role == "standby", "the healed host stands by")
            assert re.search(r"\[MP-(FENCED|UNREACHABLE)\]", cut.said()), cut.said()
        killed, last = pond.hosts_by_role()
        with events.flowing():
            killed.kill()
            last.waits_for(lambda: pond.leader() is last, "the last host leads")
        events.add()
        last_event = (events.files * ROWS - 1) // 7 * 7
        last.waits_for(lambda: len(rows(tmp_path / "counts")) >= KEYS * (events.files - 1), "all windows are emitted")
        last.waits_for(lambda: all(last_event in pond.added(f"after{turn}") for turn in range(2)), "rows of events")
        history = [(event.kind, event.name) for event in reversed(pond.client().history())]
    each = (("add", "before"), ("add", "after"), ("drop", "before"))
    assert history == [(kind, f"{name}{turn}") for turn in range(2) for kind, name in each]
    assert Counter((row["k"], row["start"], row["c"], row["s"]) for row in rows(tmp_path / "counts")) == expected(
        events.files
    )
    for query in ("before0", "after0", "before1", "after1"):
        emitted = pond.added(query)
        assert emitted == Counter(range(min(emitted), max(emitted) + 1, 7)), query
