"""The service over HTTP: requests arrive as values, responses are typed, errors keep their code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from millpond.control.diagnose.letter_message import LetterKind, Sending
from millpond.control.diagnose.why_message import Cause, QueryFates, WhyShown
from millpond.errors import (
    ChangeRefused,
    CorruptError,
    MillpondError,
    NotServingError,
    QueryRefused,
    QuerySyntaxError,
    RequestError,
    StoreError,
)
from millpond.runtime.inspect.timeline import EpochTimeline, Trace, trace_of
from millpond.runtime.rows.window_rows import ARROW_WINDOW
from millpond.service.api.client import Client
from millpond.service.api.messages import (
    Changed,
    ColumnShown,
    Differs,
    Event,
    Feeds,
    Found,
    FunctionShown,
    Health,
    Instances,
    NewQuery,
    Parameter,
    Placed,
    Priced,
    Push,
    PushDone,
    QueryShown,
    Relocation,
    Replay,
    Status,
    StreamShown,
    Value,
    Version,
)
from millpond.service.server.app import make_app
from millpond.service.server.hosted_pond import arrow_stream
from millpond.spans import Span

TIMES = {
    name: datetime(2026, 1, 1, hour, tzinfo=timezone.utc) for name, hour in (("start", 10), ("end", 11))
}
ROWS = pa.table({"total": pa.array([Decimal("3.50")], pa.decimal128(9, 2)), "w": pa.array([TIMES], ARROW_WINDOW)})
DOCUMENT = Path(__file__).parents[4] / "docs" / "openapi.json"
QUERY = QueryShown(
    "spend", "windowed", "running", 2, "SELECT 1", ("tx",), (ColumnShown("n", "bigint"),), "noop", True, 7
)


class Fake:
    """A pond that records its requests, and raises a given error."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None

    def _did(self, *what: Any) -> None:
        self.calls.append(what)
        if self.error is not None:
            raise self.error

    def exposition(self, accept: str) -> tuple[bytes, str]:
        self._did("metrics", accept)
        return b"millpond_leader 1.0\n", "text/plain; version=1.0.0"

    def health(self) -> Health:
        return Health("leader")

    def status(self) -> Status:
        self._did("status")
        return Status("leader", "p", 9, 8, 1, events_per_s=1.5)

    def streams(self) -> list[StreamShown]:
        return [StreamShown("tx", "parquet", (ColumnShown("ts", "timestamp"),))]

    def queries(self) -> list[QueryShown]:
        return [QUERY]

    def parameters(self) -> list[Parameter]:
        return [Parameter("least", 7, "bigint")]

    def functions(self, reload: bool, who: str) -> list[FunctionShown]:
        self._did("functions", reload, who)
        return [FunctionShown("f", "2", "m:f", "holistic", ("double",), "double", "ab", True, ("spend",))]

    def history(self, limit: int) -> list[Event]:
        self._did("history", limit)
        return [Event(4, 1, "add", "spend", "ann@127.0.0.1", "SELECT 1")]

    def lookup(self, name: str, key: Sequence[str]) -> Found:
        self._did("lookup", name, tuple(key))
        return Found(5, {"n": 3}, (0, 10), 4)

    def table(self, name: str) -> Iterator[bytes]:
        return arrow_stream(ROWS)

    def trace(self, epochs: int) -> Trace:
        self._did("trace", epochs)
        return trace_of([EpochTimeline(7, 3, 100, 50, 90, (Span("fold 0", "fold", 60, 70),))])

    def placement(self) -> Placed:
        return Placed(0.5, ({"instance": 0, "buckets": 4, "home": "a", "local": 3},), 0.75, 1024)

    def diff(self, name: str) -> Differs:
        return Differs(3, 2, 1, 0, ("x",))

    def letters(self, stream: str, pending: bool) -> list[LetterKind]:
        self._did("letters", stream, pending)
        return [LetterKind("t", "bad", 2, 5, None, (Sending(7, "ann"),))]

    def why(self, name: str, width: int) -> WhyShown:
        self._did("why", name, width)
        causes = (Cause("window-open", "It waits."),)
        return WhyShown(name, 9, "It waits.\n", causes, "tx by c", "noop", QueryFates(3, 3), QueryFates(), 2, True)

    def add(self, body: NewQuery, who: str, dry_run: bool) -> Changed | Priced:
        self._did("add", body, who, dry_run)
        return Priced("complete later", 7, True, 5) if dry_run else Changed("add", body.name, 6, 7)

    def version(self, kind: str, name: str, version: Version, who: str, dry_run: bool) -> Changed | Priced:
        self._did(kind, name, version, who, dry_run)
        return Changed(kind, name, 7)

    def change_state(self, kind: str, name: str, who: str, dry_run: bool) -> Changed | Priced:
        self._did(kind, name, who, dry_run)
        return Changed(kind, name, 8)

    def scale(self, body: Instances, who: str, dry_run: bool) -> Changed | Priced:
        self._did("scale", body, who, dry_run)
        return Priced("state moves", None, False, 0, 4, 500, 11) if dry_run else Changed("scale", "instances", 9)

    def move_rows(self, body: Relocation, who: str, dry_run: bool) -> Changed | Priced:
        self._did("move_rows", body, who, dry_run)
        return Changed("move", "rows", 10)

    def set(self, name: str, value: Value, who: str) -> Changed:
        self._did("set", name, value, who)
        return Changed("param", name, 9)

    def unset(self, name: str, who: str) -> Changed:
        self._did("unset", name, who)
        return Changed("unset", name, 9)

    def replay(self, stream: str, request: Replay, who: str, dry_run: bool) -> Changed | Priced:
        self._did("replay", stream, request, who, dry_run)
        return Changed("replay", stream, what="2 dead letters sent")

    def push(self, name: str, request: Push) -> PushDone:
        self._did("push", name, request)
        return PushDone(name, len(request.events), False)

    def feed(self, name: str, feeds: Feeds, who: str) -> Changed:
        self._did("feed", name, feeds.query, feeds.column, who)
        return Changed("feed", name, 9)


class Bench:
    """A fake pond, raw HTTP and the typed client of its service."""

    def __init__(self, http_client: Callable[[Any], Any]) -> None:
        self.fake = Fake()
        self.http = http_client(make_app(self.fake, self.fake, self.fake.exposition))
        self.client = Client("http://localhost", "token", who="ann", transport=self._transport())

    def _transport(self) -> httpx.BaseTransport:
        def answer(request: httpx.Request) -> httpx.Response:
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            done = self.http.request(request.method, str(request.url), headers=headers, content=request.content)
            return httpx.Response(done.status_code, headers=dict(done.headers), content=done.content)

        return httpx.MockTransport(answer)


@pytest.fixture
def bench(http_client: Callable[[Any], Any]) -> Bench:
    return Bench(http_client)


def test_the_client_sends_what_the_pond_receives(bench: Bench) -> None:
    client, who = bench.client, "ann@testclient"
    assert client.add("spend", "SELECT 1", sink="json", serve=True, deduplicate=["id"]) == Changed("add", "spend", 6, 7)
    assert client.add("spend", "SELECT 1", dry_run=True, incomplete=True) == Priced("complete later", 7, True, 5)
    assert client.alter("spend", "SELECT 2") == Changed("alter", "spend", 7)
    assert client.shadow("spend", "SELECT 3") == Changed("shadow", "spend", 7)
    for kind in ("drop", "pause", "resume", "promote", "rollback", "discard"):
        assert client.move(kind, "spend") == Changed(kind, "spend", 8)
    assert client.param("least", 7) == Changed("param", "least", 9)
    assert client.scale(3) == Changed("scale", "instances", 9)
    assert client.relocate("0-7", "lmdb:b") == Changed("move", "rows", 10)
    assert client.scale(3, dry_run=True) == Priced("state moves", None, False, 0, 4, 500, 11)
    assert client.scale(shards=["h:1", "h:2"]) == Changed("scale", "instances", 9)
    assert client.param("names", ["a"], new=True) == Changed("param", "names", 9)
    assert client.unset("names") == Changed("unset", "names", 9)
    sent = Changed("replay", "tx", what="2 dead letters sent")
    assert client.replay("tx", reason="bad", timeless=True, dry_run=True) == sent
    assert client.feed("names", "top", "k") == Changed("feed", "names", 9)
    assert client.lookup("spend", "ann", 7) == Found(5, {"n": 3}, (0, 10), 4)
    assert client.push("tx", [{"v": Decimal("1.50")}], key="k") == PushDone("tx", 1, False)
    client.history(3)
    assert client.trace(4) == bench.fake.trace(4)
    assert bench.fake.calls == [
        ("add", NewQuery("spend", "SELECT 1", "json", True, deduplicate=("id",)), who, False),
        ("add", NewQuery("spend", "SELECT 1", incomplete=True), who, True),
        ("alter", "spend", Version("SELECT 2"), who, False),
        ("shadow", "spend", Version("SELECT 3"), who, False),
        *((kind, "spend", who, False) for kind in ("drop", "pause", "resume", "promote", "rollback", "discard")),
        ("set", "least", Value(7), who),
        ("scale", Instances(3), who, False),
        ("move_rows", Relocation("0-7", "lmdb:b"), who, False),
        ("scale", Instances(3), who, True),
        ("scale", Instances(None, ("h:1", "h:2")), who, False),
        ("set", "names", Value(["a"], new=True), who),
        ("unset", "names", who),
        ("replay", "tx", Replay("bad", timeless=True), who, True),
        ("feed", "names", "top", "k", who),
        ("lookup", "spend", ("ann", "7")),
        ("push", "tx", Push("k", [{"v": msgspec.Raw(b"1.50")}])),
        ("history", 3),
        ("trace", 4),
        ("trace", 4),
    ]


def test_the_client_reads_what_the_pond_answers(bench: Bench) -> None:
    client, fake = bench.client, bench.fake
    assert client.health() == fake.health()
    assert client.status() == fake.status()
    assert client.streams() == fake.streams()
    assert client.queries() == [QUERY]
    assert client.queries().records() == [msgspec.to_builtins(QUERY)], "as pandas.DataFrame takes them"
    shown = client.queries()._repr_html_()
    assert "<th>name</th>" in shown and f"<td>{QUERY.name}</td>" in shown
    assert client.show("spend") == QUERY
    assert client.params() == fake.parameters()
    assert client.functions() == client.functions(reload=True) == fake.functions(False, "")
    assert [one[1] for one in fake.calls if one[0] == "functions"] == [False, True, False]
    assert client.placement() == fake.placement()
    assert client.diff("spend") == fake.diff("spend")
    assert client.dead_letters("tx", pending=True) == client.dead_letters("tx") == fake.letters("tx", False)
    assert [one for one in fake.calls if one[0] == "letters"][:2] == [("letters", "tx", True), ("letters", "tx", False)]
    found = client.why("spend", width=80)
    assert str(found) == "It waits.\n" and fake.calls[-1] == ("why", "spend", 80)
    assert found == client.why("spend") and fake.calls[-1] == ("why", "spend", 100)
    assert client.table("spend") == ROWS
    flat = client.table("spend", flat_windows=True).to_pylist()
    assert flat == [{"total": Decimal("3.50"), "w_start": TIMES["start"], "w_end": TIMES["end"]}]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ChangeRefused("There is one.", "Use another name."), 409),
        (QuerySyntaxError("It does not parse.", "Mend it."), 422),
        (QueryRefused("It reads a file.", "Declare a stream."), 422),
        (NotServingError("This service is standby.", "Ask the leader."), 503),
        (StoreError("It vanished.", "Mend it."), 503),
        (CorruptError("It is damaged.", "Restore it."), 500),
    ],
)
def test_an_error_arrives_as_what_it_was(bench: Bench, error: MillpondError, status: int) -> None:
    bench.fake.error = error
    answer = bench.http.request("DELETE", "/v1/queries/spend")
    assert answer.status_code == status
    assert answer.json() == {"code": error.code, "what": error.what, "cure": error.cure, "retry": error.retry}
    with pytest.raises(type(error)) as found:
        bench.client.drop("spend")
    assert (found.value.what, found.value.cure) == (error.what, error.cure)


def test_a_defect_shows_only_its_kind(bench: Bench) -> None:
    bench.fake.error = ZeroDivisionError("a secret")
    answer = bench.http.get("/v1/status")
    assert (answer.status_code, answer.json()["code"]) == (500, "MP-ERROR")
    assert "ZeroDivisionError" in answer.text and "secret" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"name": "a"}',
        b'{"name": "a", "text": 7}',
        b'{"name": "a", "text": "SELECT 1", "path": "/etc"}',
        b'{"name": "a", "text": "SELECT 1", "sink": "console"}',
        b'{"name": "../a", "text": "SELECT 1"}',
        b'{"name": "a@2", "text": "SELECT 1"}',
        b'{"name": "a", "text": "\xff"}',
    ],
)
def test_a_body_that_is_no_query_is_refused_before_the_pond(bench: Bench, body: bytes) -> None:
    answer = bench.http.post("/v1/queries", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "MP-REQUEST")
    assert not bench.fake.calls


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/queries/nothing", 404),
        ("POST", "/v1/queries/spend/explode", 404),
        ("POST", "/v1/queries/sp%2e%2eend/pause", 400),
        ("PATCH", "/v1/queries", 405),
        ("GET", "/v1/history?limit=0", 400),
        ("GET", "/v1/history?limit=many", 400),
        ("GET", "/v1/lookup/spend", 400),
        ("DELETE", "/v1/queries/spend?dry_run=perhaps", 400),
    ],
)
def test_what_is_not_known_is_refused_in_our_words(bench: Bench, method: str, path: str, status: int) -> None:
    answer = bench.http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, "MP-REQUEST")
    assert not bench.fake.calls


def test_the_client_refuses_names_that_would_mean_other_paths(bench: Bench) -> None:
    with pytest.raises(RequestError, match="is no name"):
        bench.client.drop("../params/x")
    with pytest.raises(RequestError, match="cannot have 'sometimes' as its emit"):
        bench.client.add("a", "SELECT 1", emit="sometimes")
    assert not bench.fake.calls


def test_whoever_asks_cannot_break_the_history(bench: Bench) -> None:
    bench.http.request("DELETE", "/v1/queries/spend", headers={"millpond-who": "a\tb" + "c" * 100})
    who = bench.fake.calls[0][2]
    assert who == "ab" + "c" * 61 + "@testclient"


def test_a_missing_server_is_a_millpond_error() -> None:
    with pytest.raises(NotServingError, match="Nobody answers"):
        Client("http://127.0.0.1:9", "token").health()


def test_the_document_is_the_one_that_is_pinned(bench: Bench) -> None:
    made = make_app(bench.fake, bench.fake, bench.fake.exposition).openapi()
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == made
    assert made["security"] == [{"token": []}]
