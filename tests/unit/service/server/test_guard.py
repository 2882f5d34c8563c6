"""The guard of the service accepts the right requests, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest

from millpond.service.api.sessions import Sessions
from millpond.service.server.guard import GUESS_COSTS, Guard, Limits, Rates, Receive, Scope, Send

TOKEN = "a-token-of-some-length"
HOSTS = frozenset({"localhost", "127.0.0.1"})


class Echo:
    """An application that answers with what it was sent."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"]})


@pytest.fixture
def client(http_client: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda echo, **how: http_client(Guard(echo, TOKEN, HOSTS, **how))


def headers(**more: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {TOKEN}"} | {name.replace("_", "-"): value for name, value in more.items()}


def check_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["what"] and answer.json()["cure"]
    assert answer.headers["cache-control"] == "no-store"


def test_only_the_token_grants_access(client: Callable[..., Any]) -> None:
    echo = Echo()
    http = client(echo)
    for wrong in ({}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"}, {"authorization": "Bearer "},
                  {"authorization": f"Bearer {TOKEN}x"}, {"authorization": f"Bearer {TOKEN[:-1]}"}):  # fmt: skip
        check_refused(http.get("/v1/queries", headers=wrong), 401, "MP-ACCESS")
    assert not echo.paths
    assert http.get("/v1/queries", headers=headers()).status_code == 200


def test_a_path_that_does_not_exist_is_denied_before_it_is_looked_for(client: Callable[..., Any]) -> None:
    check_refused(client(Echo()).get("/anything"), 401, "MP-ACCESS")
    check_refused(client(Echo()).get("/openapi.json"), 401, "MP-ACCESS")


def test_health_needs_no_token(client: Callable[..., Any]) -> None:
    assert client(Echo()).get("/v1/health").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.2:1234"])
def test_a_host_that_is_not_allowed_is_refused_even_with_the_token(client: Callable[..., Any], host: str) -> None:
    echo = Echo()
    check_refused(client(echo).get("/v1/queries", headers=headers(host=host)), 403, "MP-ACCESS")
    assert not echo.paths


def test_hosts_are_known_by_name_whatever_their_port(client: Callable[..., Any]) -> None:
    assert client(Echo()).get("/v1/queries", headers=headers(host="LOCALHOST:99")).status_code == 200


def test_pages_of_browsers_are_refused_unless_allowed(client: Callable[..., Any]) -> None:
    sent = headers(origin="https://page.example")
    check_refused(client(Echo()).get("/v1/queries", headers=sent), 403, "MP-ACCESS")
    allowed = client(Echo(), origins=frozenset({"https://page.example"}))
    assert allowed.get("/v1/queries", headers=sent).status_code == 200
    check_refused(allowed.get("/v1/queries", headers=headers(origin="null")), 403, "MP-ACCESS")


def test_a_body_has_a_longest_size_whether_declared_or_not(client: Callable[..., Any]) -> None:
    echo = Echo()
    http = client(echo, limits=Limits(body_bytes=100))
    sent = headers(content_type="application/json")
    assert http.post("/v1/queries", headers=sent, content=b"x" * 100).content == b"x" * 100
    check_refused(http.post("/v1/queries", headers=sent, content=b"x" * 101), 413, "MP-REQUEST")

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 60
        yield b"x" * 60

    check_refused(http.post("/v1/queries", headers=sent, content=parts()), 413, "MP-REQUEST")
    assert len(echo.paths) == 1


def test_a_body_is_json_and_its_length_a_number(client: Callable[..., Any]) -> None:
    http = client(Echo())
    check_refused(http.post("/v1/queries", headers=headers(), content=b"{}"), 415, "MP-REQUEST")
    form = headers(content_type="application/x-www-form-urlencoded")
    check_refused(http.post("/v1/queries", headers=form, content=b"a=b"), 415, "MP-REQUEST")
    check_refused(http.post("/v1/queries", headers=headers(content_length="-1")), 400, "MP-REQUEST")


def test_a_header_that_decides_comes_once(client: Callable[..., Any]) -> None:
    doubled = [("host", "localhost"), *headers().items(), ("Host", "evil.example")]
    check_refused(client(Echo()).get("/v1/queries", headers=doubled), 400, "MP-REQUEST")


def test_an_address_has_a_rate(client: Callable[..., Any]) -> None:
    now = [0]
    http = client(Echo(), limits=Limits(per_second=2, burst=3), clock=lambda: now[0])
    assert [http.get("/v1/health").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert http.get("/v1/health").headers["retry-after"] == "1"
    now[0] += 500_000
    assert [http.get("/v1/health").status_code for _ in range(2)] == [200, 429]


def test_a_wrong_token_costs_more_than_a_request(client: Callable[..., Any]) -> None:
    http = client(Echo(), limits=Limits(per_second=1, burst=2 * GUESS_COSTS), clock=lambda: 0)
    assert [http.get("/v1/queries").status_code for _ in range(3)] == [401, 401, 429]


def test_clients_without_a_token_use_no_slots_of_authorized_ones(client: Callable[..., Any]) -> None:
    http = client(Echo(), limits=Limits(per_second=1, burst=3), clock=lambda: 0)
    assert [http.get(path).status_code for path in ("/v1/health", "/v1/queries", "/v1/health")] == [200, 401, 429]
    assert [http.get("/v1/queries", headers=headers()).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_a_missing_body_is_not_waited_for(client: Callable[..., Any]) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    http = client(Echo(), limits=Limits(body_seconds=0.05))
    sent = headers(content_type="application/json")
    check_refused(http.post("/v1/queries", headers=sent, content=parts()), 408, "MP-REQUEST")


def test_no_more_than_some_addresses_are_remembered() -> None:
    rates = Rates(Limits(per_second=1, burst=1), clock=lambda: 0)
    for i in range(5000):
        assert rates.take(f"10.0.{i >> 8}.{i & 255}")
    assert len(rates._known) <= 1024


SESSIONS = Sessions(TOKEN)
SAME = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
OWN = {"origin": "http://localhost:1234"}


def cookie(session: str = "") -> dict[str, str]:
    return {"cookie": f"other=x; {SESSIONS.cookie}={session or SESSIONS.issue('session')}"}


def test_a_session_opens_the_console_and_not_the_api(client: Callable[..., Any]) -> None:
    echo = Echo()
    http = client(echo, sessions=SESSIONS)
    assert http.get("/console/", headers=cookie() | SAME).status_code == 200
    assert http.get("/console/", headers=cookie() | VISIT).status_code == 200, "a visit reads, and changes nothing"
    sent = {"content": b"4x", "headers": cookie() | SAME | OWN | {"content-type": "text/plain"}}
    assert http.post("/console/_socket", **sent).status_code == 200
    check_refused(http.get("/v1/status", headers=cookie() | SAME), 401, "MP-ACCESS")
    assert echo.paths == ["/console/", "/console/", "/console/_socket"]
    for wrong in ({}, cookie("x"), cookie(SESSIONS.issue("code")), {"cookie": SESSIONS.cookie}):
        check_refused(http.get("/console/", headers=wrong | SAME), 401, "MP-ACCESS")
    check_refused(client(Echo()).get("/console/", headers=cookie() | SAME), 401, "MP-ACCESS")


def test_other_pages_may_not_use_a_session(client: Callable[..., Any]) -> None:
    http = client(Echo(), sessions=SESSIONS, origins=frozenset({"https://page.example"}))
    for site in ("same-site", "cross-site"):
        check_refused(http.get("/console/", headers=cookie() | SAME | {"sec-fetch-site": site}), 403, "MP-ACCESS")
        check_refused(http.post("/sign-in", headers=VISIT | OWN | {"sec-fetch-site": site}), 403, "MP-ACCESS")
    for origin in ("http://localhost:1235", "null", "https://page.example", "http://localhost:1234.evil.example"):
        check_refused(http.get("/console/", headers=cookie() | {"origin": origin}), 403, "MP-ACCESS")
    check_refused(http.post("/console/x", headers=cookie()), 403, "MP-ACCESS")


def test_a_browser_without_a_session_is_sent_to_the_sign_in(client: Callable[..., Any]) -> None:
    http = client(Echo(), sessions=SESSIONS)
    found = http.get("/console/queries", headers=VISIT)
    assert (found.status_code, found.headers["location"]) == (303, "/sign-in?page=/console/queries")
    assert http.get("/", headers=VISIT).status_code == http.get("/sign-in", headers=VISIT).status_code == 200
    sending = {"content": b"token=x", "headers": OWN | {"content-type": "application/x-www-form-urlencoded"}}
    slow = client(Echo(), sessions=SESSIONS, limits=Limits(per_second=1, burst=2 * GUESS_COSTS), clock=lambda: 0)
    assert [slow.post("/sign-in", **sending).status_code for _ in range(3)] == [200, 200, 429], "a guess costs more"
