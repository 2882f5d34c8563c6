"""When a standby should try to take over: a lock that ends with its process, a number that changes."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from kit.servers.servers import until
from millpond.errors import AccessError, NotServingError, PlaceError, SetupError
from millpond.service.api.service_files import Leader, Places
from millpond.service.server.leadership import LeadershipHints

SECOND = 1_000_000


class Bench:
    """A pond's folder, and a clock for all hints."""

    def __init__(self, folder: Path) -> None:
        self.places, self.now = Places(folder), 0
        self.places.make()

    def hint(self, name: str) -> LeadershipHints:
        return LeadershipHints(self.places, Leader(f"http://{name}", 1, name), patience=10, clock=lambda: self.now)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "pond")


def test_the_first_one_leads_and_the_second_waits_until_it_leaves(bench: Bench) -> None:
    first, second = bench.hint("first"), bench.hint("second")
    assert first.try_take_over()
    first.lead()
    try:
        assert not second.try_take_over()
        assert bench.places.known_leader().url == "http://first"
        assert bench.places.standbys() == ()
        second.stand_by()
        irremovable = bench.places.folder / "standby-0"
        irremovable.mkdir()
        os.utime(irremovable, (0, 0))
        assert bench.places.standbys() == ("http://second",)
        irremovable.rmdir()
        (standby,) = bench.places.folder.glob("standby-*")
        ago = standby.stat().st_mtime - 60
        os.utime(standby, (ago, ago))
        assert bench.places.standbys() == () and standby.exists(), "it gave no sign of life for long"
        os.utime(standby, (0, 0))
        assert bench.places.standbys() == () and not standby.exists(), "it was killed"
        second.leave()
        assert bench.places.standbys() == ()
    finally:
        first.leave()
    assert second.try_take_over()
    second.leave()


def test_clients_find_a_process_that_starts_unless_another_one_leads(bench: Bench) -> None:
    killed, starting = bench.hint("killed"), Leader("http://starting", os.getpid(), "s")
    killed.lead()
    bench.places.write_starting(starting)
    assert killed.try_take_over() and bench.places.known_leader().url == "http://killed", "it holds the lock"
    killed.leave()
    assert bench.places.known_leader() == starting
    bench.places.remove_starting(Leader("http://other", 1, "o"))
    assert bench.places.known_leader() == starting, "only its own file is removed"
    bench.places.remove_starting(starting)
    assert bench.places.known_leader().url == "http://killed"
    ended = subprocess.Popen(["true"])
    ended.wait()
    bench.places.write_starting(Leader("http://ended", ended.pid, "e"))
    assert bench.places.known_leader().url == "http://killed", "it does not run any more"
    bench.places.write_starting(starting)
    elsewhere = Leader("http://elsewhere", 1, "other host")
    bench.places.write_leader(elsewhere)
    assert bench.places.known_leader() == elsewhere, "its lock is not seen here, but its file is newer"


def test_a_leader_announces_all_that_clients_need(bench: Bench) -> None:
    me = Leader("https://me", 1, "me", 0, "me.pem", "127.0.0.1:5433")
    hint = LeadershipHints(bench.places, me)
    hint.lead()
    hint.leave()
    assert bench.places.known_leader() == me


def test_a_leader_that_is_stopped_is_gone_when_its_number_has_not_moved_for_long(bench: Bench) -> None:
    first, second = bench.hint("first"), bench.hint("second")
    assert first.try_take_over()
    bench.places.write_leader(Leader("http://first", 1, "first", 1))
    assert not second.try_take_over()
    bench.now += 9 * SECOND
    assert not second.try_take_over()
    bench.places.write_leader(Leader("http://first", 1, "first", 2))
    assert not second.try_take_over()
    bench.now += 9 * SECOND
    assert not second.try_take_over()
    bench.now += SECOND
    assert second.try_take_over()
    first.leave()


def test_a_fenced_process_ignores_the_lock(bench: Bench) -> None:
    stopped, other = bench.hint("stopped"), bench.hint("other")
    assert stopped.try_take_over()
    other.lead()  # by patience, without the lock
    try:
        stopped.leave(fenced=True)
        assert not stopped.try_take_over()
        assert other._lock()
        assert not stopped.try_take_over()
    finally:
        other.leave()
    assert stopped.try_take_over()
    stopped.leave()


def test_a_leader_lives_on_although_its_lock_cannot_be_opened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hint, tries = LeadershipHints(bench.places, Leader("http://a", 1, "a"), patience=0.05), list[int]()

    def lock() -> bool:
        tries.append(1)
        raise PlaceError("The lock cannot be opened.")

    monkeypatch.setattr(hint, "_lock", lock)
    hint.lead()
    try:
        until(lambda: len(tries) > 1, "it tries again")
    finally:
        hint.leave()


def test_the_token_is_made_once_for_its_owner_alone(bench: Bench) -> None:
    token = bench.places.secret({})
    file = bench.places.folder / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(bench.places.folder.stat().st_mode) == 0o700
    assert len(token) >= 40
    assert bench.places.secret({}) == bench.places.known_secret() == token
    assert bench.places.secret({"MILLPOND_TOKEN": "one-of-the-operators"}) == "one-of-the-operators"


def test_a_token_that_others_may_read_or_that_is_short_is_refused(bench: Bench) -> None:
    bench.places.secret({})
    os.chmod(bench.places.folder / "token", 0o644)
    with pytest.raises(SetupError, match="Others may read"):
        bench.places.secret({})
    with pytest.raises(SetupError, match="shorter than 16"):
        bench.places.secret({"MILLPOND_TOKEN": "short"})


def test_a_client_learns_what_is_missing(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with pytest.raises(NotServingError, match="Nobody serves the pond"):
        places.known_leader()
    with pytest.raises(AccessError, match="No token in"):
        places.known_secret()
    with pytest.raises(NotServingError, match=r"The folder .*/nowhere does not exist"):
        Places(tmp_path / "nowhere").known_leader()


def test_a_leader_can_start_on_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_leader: Leader) -> None:
        raise OSError("no room")

    monkeypatch.setattr(bench.places, "write_leader", full)
    first = bench.hint("first")
    assert first.try_take_over()
    first.lead()
    assert not bench.hint("second").try_take_over()
    first.leave()


def test_a_damaged_hint_is_no_hint(bench: Bench) -> None:
    (bench.places.folder / "leader.json").write_bytes(b'{"url":')
    assert bench.places.leader() is None
