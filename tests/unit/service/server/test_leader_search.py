"""A client of several services finds the one that leads, and never makes a request twice."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from millpond.errors import NotServingError
from millpond.service.api.client import Client
from millpond.service.api.messages import Changed


class Host:
    """A service with a role, or one that does not answer; `made` are the changes that it made."""

    def __init__(self, role: str) -> None:
        self.role, self.made, self.loses_reply = role, 0, False

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.role == "cut":
            raise httpx.ConnectTimeout("no route")
        if request.url.path == "/v1/health":
            return httpx.Response(200, json={"role": self.role})
        if request.method == "GET":
            return httpx.Response(200, json=[])
        if self.role != "leader":
            refusal = {"code": "MP-NOT-SERVING", "what": f"This service is {self.role}.", "cure": "Ask the leader."}
            return httpx.Response(503, json=refusal)
        self.made += 1
        if self.loses_reply:
            raise httpx.ReadError("connection reset")
        return httpx.Response(200, content=msgspec.json.encode(Changed("drop", "q", self.made)))


@pytest.fixture
def hosts() -> dict[str, Host]:
    return {"a": Host("standby"), "b": Host("leader"), "c": Host("standby")}


@pytest.fixture
def client(hosts: dict[str, Host]) -> Client:
    transport = httpx.MockTransport(lambda request: hosts[request.url.host].answer(request))
    return Client("http://a:1, http://b:1/,http://c:1", "token", transport=transport)


def test_requests_go_to_the_leader_wherever_it_is(client: Client, hosts: dict[str, Host]) -> None:
    assert client.drop("q").name == "q" and client.url == "http://b:1"  # type: ignore[union-attr]
    hosts["b"].role, hosts["c"].role = "cut", "leader"
    client.drop("q")
    assert client.history() == [] and client.url == "http://c:1"
    hosts["c"].role, hosts["a"].role, hosts["b"].role = "standby", "leader", "standby"
    client.drop("q")
    assert {name: host.made for name, host in hosts.items()} == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("role", ["cut", "standby", "starting"])
def test_without_a_leader_the_reason_is_that_of_the_last_one(client: Client, hosts: dict[str, Host], role: str) -> None:
    client.drop("q")
    hosts["b"].role = role
    with pytest.raises(NotServingError, match="Nobody answers at http://b:1" if role == "cut" else role):
        client.drop("q")
    hosts["b"].role = "leader"
    client.drop("q")
    assert hosts["b"].made == 2


def test_what_may_have_been_made_is_not_repeated(client: Client, hosts: dict[str, Host]) -> None:
    hosts["b"].loses_reply = True
    hosts["c"].role = "leader"  # both believe that they lead
    with pytest.raises(NotServingError, match="connection reset"):
        client.drop("q")
    assert (hosts["b"].made, hosts["c"].made) == (1, 0)


def test_one_address_is_used_without_a_search(hosts: dict[str, Host]) -> None:
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return hosts["b"].answer(request)

    with Client("http://b:1", "token", transport=httpx.MockTransport(answer)) as client:
        client.drop("q")
        hosts["b"].role = "standby"
        with pytest.raises(NotServingError, match="This service is standby"):
            client.drop("q")
    assert "/v1/health" not in paths
