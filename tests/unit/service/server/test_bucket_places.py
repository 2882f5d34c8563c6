"""The service of a pond in an object store: the hint at the leader is an object, the token is in the environment."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from millpond.errors import AccessError, NotServingError, PlaceError, SetupError, UnreachableError
from millpond.log.locations import address
from millpond.log.locations.address import address_of
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import Objects
from millpond.service.api.service_files import TOKEN_VARIABLE, BucketPlaces, Leader, places_of
from millpond.service.server.leadership import LeadershipHints

POND = "s3://bucket/pond"


class World:
    """A clock, and a store that can be out of reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.us, self.cut = 0, False
        store = MemoryStore()
        self.objects = StoreObjects(store, "pond/service", POND).list

        def opened(url: str, seconds: float | None = None) -> Objects:
            if self.cut:
                raise UnreachableError("cut", "wait")
            return StoreObjects(store, url.partition("://bucket/")[2], url)

        monkeypatch.setattr(address, "objects_at", opened)

    def places(self) -> BucketPlaces:
        return BucketPlaces(address_of(POND), lambda: self.us)

    def hint(self, token: str) -> LeadershipHints:
        return LeadershipHints(self.places(), Leader(f"http://{token}", 1, token), patience=10, clock=lambda: self.us)

    def passes(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_token_is_that_of_the_environment(world: World) -> None:
    places = places_of(POND)
    assert places.where == TOKEN_VARIABLE and places.secret({TOKEN_VARIABLE: "0123456789abcdef"}) == "0123456789abcdef"
    with pytest.raises(SetupError, match=f"The pond at {POND} keeps no token.*Set {TOKEN_VARIABLE}"):
        places.secret({})
    with pytest.raises(SetupError, match="shorter than 16"):
        places.secret({TOKEN_VARIABLE: "short"})
    with pytest.raises(AccessError, match=TOKEN_VARIABLE):
        places.known_secret()


def test_a_client_finds_the_leader_by_the_address(world: World) -> None:
    with pytest.raises(NotServingError, match=f"Nobody serves the pond at {POND}"):
        places_of(POND).known_leader()
    world.places().write_leader(Leader("http://a", 1, "a"))
    assert places_of(POND).known_leader().url == "http://a"
    world.cut = True
    with pytest.raises(PlaceError):
        places_of(POND).known_leader()
    world.places().write_leader(Leader("http://a", 1, "a", 2))


def test_a_standby_on_another_host_waits_for_the_number(world: World) -> None:
    first, standby = world.hint("a"), world.hint("b")
    assert first.try_take_over(), "nobody has ever led"
    leader = world.places()
    for beat in range(20):
        leader.write_leader(Leader("http://a", 1, "a", beat))
        world.passes(2)
        assert not standby.try_take_over()
    world.passes(9)
    assert not standby.try_take_over()
    world.passes(2)
    assert standby.try_take_over()


def test_standbys_are_listed_while_they_announce_themselves(world: World) -> None:
    """A standby writes once in 60 signs of life of the leader, and its object is read once a minute."""
    leading, waiting, killed = world.places(), world.places(), world.places()
    one, other = Leader("http://b", 1, "b"), Leader("http://c", 1, "c")
    listed = list[tuple[str, ...]]()
    for beat in range(600):
        leading.write_leader(Leader("http://a", 1, "a", beat))
        world.passes(1)
        for place, me in ((waiting, one), (killed, other)) if beat < 120 else ((waiting, one),):
            place.leader()
            place.write_standby(me)
        listed.append(leading.standbys())
    assert listed[0] == listed[200] == ("http://b", "http://c") and listed[400] == listed[-1] == ("http://b",)
    world.cut = True
    world.passes(100)
    waiting.leader()
    waiting.write_standby(one)
    assert leading.standbys() == ("http://b",), "the last known ones"
    world.cut = False
    waiting.remove_standby(one)
    world.passes(100)
    assert leading.standbys() == ()
    assert {name for name, _ in world.objects()} == {"leader.json", "standby-c"}
    for beat in (1, 3_601):  # of the next leader
        leading.write_leader(Leader("http://d", 1, "d", beat))
        world.passes(100)
        assert leading.standbys() == ()
    assert {name for name, _ in world.objects()} == {"leader.json"}, "that of the killed one is removed after an hour"


def test_announcements_are_few_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written, listings = list[str](), list[str]()
    put, listing = StoreObjects.put, StoreObjects.list
    monkeypatch.setattr(StoreObjects, "put", lambda self, name, data: (written.append(name), put(self, name, data)))
    monkeypatch.setattr(StoreObjects, "list", lambda self: (listings.append(""), listing(self))[1])
    standby = world.hint("b")
    leading = world.places()
    for beat in range(3_600):
        leading.write_leader(Leader("http://a", 1, "a", beat))
        world.passes(1)
        assert not standby.try_take_over()
        standby.stand_by()
        leading.standbys()
    assert (written.count("standby-b"), len(listings)) == (60, 60)


def test_a_standby_that_cannot_read_does_not_lose_its_patience(world: World) -> None:
    standby = world.hint("b")
    world.places().write_leader(Leader("http://a", 1, "a", 1))
    assert not standby.try_take_over() and standby.leader() == Leader("http://a", 1, "a", 1)
    world.cut = True
    world.passes(20)
    assert not standby.try_take_over() and standby.leader() is not None, "the leader may be well: this host is cut off"
    world.cut = False
    world.passes(2)
    assert not standby.try_take_over()
    world.passes(7)
    assert not standby.try_take_over()
    world.passes(2)
    assert standby.try_take_over()
    world.cut = True
    assert not world.hint("c").try_take_over(), "nothing was ever read"


def test_requests_and_looks_are_short_against_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, now = list[float | None](), [0]

    def opened(url: str, seconds: float | None = None) -> Objects:
        limits.append(seconds)
        return StoreObjects(MemoryStore(), "pond", url)

    monkeypatch.setattr(address, "objects_at", opened)
    places = BucketPlaces(address_of(POND), lambda: now[0], patience=2)
    for _ in range(20):
        places.leader()
        now[0] += 100_000
    places.write_leader(Leader("http://a", 1, "a"))
    assert limits == [0.4] * 6, "every fourth look, and the write"
    with pytest.raises(NotServingError):
        places_of(POND).known_leader()
    assert limits[-1] is None
