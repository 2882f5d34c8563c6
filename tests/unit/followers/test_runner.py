"""The runner: every follower at its own pace; a failing one is retried and does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kit.servers.servers import until
from millpond.errors import DiskFullError, MillpondError, PlaceError, StoreError
from millpond.followers.runner import RECORDS_PER_TURN, Runner, Runners
from millpond.log.cursor import Cursor
from millpond.log.manifest import Manifest
from millpond.log.records import Entry


class Recorder:
    """Records what it applied; fails a given number of times; an event can block it."""

    def __init__(self, name: str, at: int = -1) -> None:
        self.name = name
        self.at = at
        self.applied: list[int] = []
        self.failures = 0
        self.cursor_reads = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.entered = threading.Event()

    def cursor(self) -> Cursor:
        self.cursor_reads += 1
        return Cursor(self.at)

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        assert (record.n, manifest.n) == (n, n) and n == self.at + 1
        self.entered.set()
        self.go_on.wait(120)
        if self.failures:
            self.failures -= 1
            raise OSError(f"no luck with {n}")
        self.applied.append(n)
        self.at = n


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def head(pond: Any) -> int:
    pond.claim()
    for _ in range(2 * RECORDS_PER_TURN + 3):
        pond.epoch()
    return len(pond.entries) - 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(pond: Any, clock: Clock) -> Iterator[Any]:
    runners = []

    def make(*followers: Recorder, running: bool = True, **options: Any) -> Runner:
        runners.append(Runner(pond.log, pond.manifests, followers, **options))
        if running:
            runners[-1].start()
        return runners[-1]

    yield make
    for runner in runners:
        assert runner.stop(120)


def test_all_reach_the_head(start: Any, head: int) -> None:
    new, half, done = Recorder("new"), Recorder("half", 7), Recorder("done", head)
    runner = start(new, half, done)
    runner.notify(head)
    assert runner.wait(head, 120)
    assert new.applied == list(range(head + 1))
    assert half.applied == list(range(8, head + 1))
    assert done.applied == []
    assert runner.cursors() == {"new": head, "half": head, "done": head}
    assert new.cursor_reads == 1
    assert {(status.behind, status.error) for status in runner.status()} == {(0, None)}


def test_goes_no_further_than_the_given_record(start: Any, head: int) -> None:
    one = Recorder("one")
    runner = start(one)
    runner.notify(5)
    runner.notify(3)
    assert runner.wait(5, 120)
    assert one.applied == list(range(6))
    assert not runner.wait(6, 0.05)
    runner.notify(head)
    assert runner.wait(head, 120)


def test_turns_are_shared(start: Any, head: int) -> None:
    one, two = Recorder("one"), Recorder("two")
    runner = start(one, two, running=False)
    runner.notify(head)
    assert runner.turn() == 0
    assert one.applied == two.applied == list(range(RECORDS_PER_TURN))
    while runner.turn() is not None:
        pass
    assert runner.cursors() == {"one": head, "two": head}


def test_the_time_until_a_follower_has_caught_up_follows_from_its_rate(start: Any, head: int, clock: Clock) -> None:
    one = Recorder("one")
    runner = start(one, running=False, clock=clock)
    runner.notify(head)
    left = []
    for second in range(4):
        clock.us = second * 1_000_000
        (status,) = runner.status()
        left.append((status.behind, status.remaining_s))
        one.failures = int(second == 2)
        runner.turn()
    behind = head + 1 - RECORDS_PER_TURN
    assert left[:2] == [(head + 1, None), (behind, None)], "nothing is known before the first turn"
    assert left[2] == (behind - RECORDS_PER_TURN, (behind - RECORDS_PER_TURN) / RECORDS_PER_TURN)
    assert left[3] == (behind - RECORDS_PER_TURN, None), "it fails"


def test_records_are_read_once_for_all(start: Any, pond: Any, head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = pond.log.read
    monkeypatch.setattr(pond.log, "read", lambda n: (reads.append(n), original(n))[1])
    runner = start(*(Recorder(f"{i}") for i in range(20)), running=False)
    runner.notify(head)
    while runner.turn() is not None:
        pass
    assert reads == list(range(head + 1))


def test_failing_follower_waits_twice_as_long_each_time(
    start: Any, head: int, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Recorder("bad"), Recorder("good")
    bad.failures = 6
    runner = start(bad, good, running=False, clock=clock, first_delay=1, longest_delay=8)
    runner.notify(2)
    delays = []
    while (seconds := runner.turn()) is not None:
        delays.append(seconds)
        status = runner.status()[0]
        assert (status.failures, status.error) == (len(delays), "no luck with 0")
        assert status.retry_at_us == clock.us + seconds * 1_000_000
        assert runner.turn() == seconds, "not before its time"
        assert runner.cursors()["bad"] == -1, "what it needs is not known now, so nothing may be pruned"
        clock.us += round(seconds * 1_000_000)
    assert delays == [1, 2, 4, 8, 8, 8]
    assert good.applied == bad.applied == [0, 1, 2]
    assert bad.cursor_reads == 7, "it may have lost its effect, so its cursor is read again"
    status = runner.status()[0]
    assert (status.failures, status.error, status.retry_at_us) == (0, None, None)
    # once that it fails, which one failure does not show, and once that it is over
    assert caplog.messages == [f"{status.name} fails: no luck with 0", f"{status.name} continues after 6 failures."]


def test_a_failing_follower_does_not_stop_others(start: Any, head: int) -> None:
    bad, good = Recorder("bad"), Recorder("good")
    bad.failures = 1_000_000
    runner = start(bad, good, first_delay=0.001, longest_delay=0.01)
    runner.notify(head)
    assert not runner.wait(head, 0.2)
    assert good.at == head
    bad.failures = 1
    assert runner.wait(head, 120)


def test_a_panic_of_a_library_is_a_failure_like_others(start: Any, head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As PyO3 raises it if code in Rust panics."""

    bad, good = Recorder("bad"), Recorder("good")
    original, panics = bad.apply, [Panic("unwrap of None")]

    def apply(n: int, record: Entry, manifest: Manifest) -> None:
        if panics:
            raise panics.pop()
        original(n, record, manifest)

    monkeypatch.setattr(bad, "apply", apply)
    runner = start(bad, good, first_delay=0.001)
    runner.notify(head)
    assert runner.wait(head, 120) and bad.applied == good.applied == [*range(head + 1)]


def test_follower_that_lost_its_effect_is_replayed(start: Any, pond: Any, head: int) -> None:
    one = Recorder("one")
    runner = start(one, first_delay=0.001)
    runner.notify(head - 1)
    assert runner.wait(head - 1, 120)
    one.at, one.failures = 3, 0  # the next apply fails its assertion, and its cursor is read again
    runner.notify(head)
    assert runner.wait(head, 120)
    assert one.applied == [*range(head), *range(4, head + 1)]


def test_slow_follower_never_blocks_notify(start: Any, head: int) -> None:
    slow = Recorder("slow")
    slow.go_on.clear()
    runner = start(slow)
    runner.notify(3)
    assert slow.entered.wait(120)
    runner.notify(head)
    assert runner.status()[0].behind == head + 1
    slow.go_on.set()
    assert runner.wait(head, 120)


def test_followers_are_added_and_removed(start: Any, head: int) -> None:
    one, two = Recorder("one"), Recorder("two", 4)
    runner = start(one)
    runner.notify(head)
    assert runner.wait(head, 120)
    runner.add(two)
    with pytest.raises(ValueError, match="driven already"):
        runner.add(Recorder("two"))
    assert runner.wait(head, 120)
    assert two.applied == list(range(5, head + 1))
    runner.remove("one")
    runner.remove("nobody")
    assert list(runner.cursors()) == ["two"]


def test_a_runner_that_has_no_follower_any_more_ends(start: Any, head: int) -> None:
    runners = Runners(start(Recorder("stays"), running=False))
    runners.start()
    for _ in range(3):
        runners.join(start(Recorder("comes"), running=False))
        runners.notify(head)
        assert runners.wait(head, 120)
        runners.remove("comes")
        assert list(runners.cursors()) == ["stays"] and len(runners._runners) == 1
    until(lambda: sum(one.name == "millpond-followers" for one in threading.enumerate()) == 1, "threads have ended")
    assert runners.stop(120)


class Connected(Recorder):
    """Tells whether it was closed while it was at work."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.working, self.closed = False, list[bool]()

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        self.working = True
        super().apply(n, record, manifest)
        self.working = False

    def close(self) -> None:
        self.closed.append(self.working)
        raise OSError("gone already")


def test_a_removed_follower_releases_its_resources(start: Any, head: int) -> None:
    leaves, stays = Connected("leaves"), Connected("stays")
    leaves.go_on.clear()
    runner = start(leaves, stays)
    runner.notify(head)
    assert leaves.entered.wait(120)
    runner.forget("leaves")
    assert not leaves.closed
    leaves.go_on.set()
    until(lambda: leaves.closed, "it is closed")
    assert runner.wait(head, 120) and not stays.closed
    assert runner.stop(120)
    assert (leaves.closed, stays.closed) == ([False], [False])


def test_a_removed_follower_is_closed(start: Any, head: int) -> None:
    runners, comes = Runners(start(Recorder("stays"), running=False)), Connected("comes")
    runners.start()
    runners.join(start(comes, running=False))
    runners.notify(head)
    assert runners.wait(head, 120)
    runners.remove("comes")
    until(lambda: comes.closed == [False], "it is closed")
    assert runners.stop(120)


def at_work(start: Any, head: int) -> tuple[Any, Recorder]:
    """A runner, and its follower, which is held up in its first record."""
    slow = Recorder("slow")
    slow.go_on.clear()
    runner = start(slow)
    runner.notify(head)
    assert slow.entered.wait(120)
    return runner, slow


def test_a_runner_that_never_started_releases_its_followers(start: Any) -> None:
    follower = Connected("read")
    assert start(follower, running=False).stop()
    assert follower.closed == [False]


def test_remove_waits_for_the_record_at_hand(start: Any, head: int) -> None:
    runner, slow = at_work(start, head)
    threading.Timer(0.05, slow.go_on.set).start()
    runner.remove("slow")
    at = slow.at
    assert at >= 0
    runner.add(Recorder("next"))
    assert runner.wait(head, 120)
    assert slow.at == at


def test_forget_does_not_wait(start: Any, head: int) -> None:
    runner, slow = at_work(start, head)
    at = len(slow.applied)
    runner.forget("slow")
    runner.forget("nobody")
    assert len(slow.applied) == at and not runner.cursors()
    slow.go_on.set()
    runner.add(Recorder("next"))
    assert runner.wait(head, 120)
    assert len(slow.applied) == at + 1, "the record at hand, and no more"


def test_follower_ahead_of_the_log_and_missing_record_are_reported(start: Any, head: int, clock: Clock) -> None:
    ahead = Recorder("ahead", head + 5)
    runner = start(ahead, Recorder("fine"), running=False, clock=clock)
    runner.notify(head + 1)
    for _ in range(4):
        runner.turn()
    errors = [status.error or "" for status in runner.status()]
    assert "the log ends at record" in errors[0] and "MP-AHEAD" in errors[0]
    assert "was announced" in errors[1]


def test_stop_ends_between_records(pond: Any, head: int) -> None:
    one = Recorder("one")
    one.go_on.clear()
    runner = Runner(pond.log, pond.manifests, [one])
    runner.start()
    with pytest.raises(RuntimeError):
        runner.start()
    runner.notify(head)
    assert one.entered.wait(120)
    assert not runner.stop(0.01)
    one.go_on.set()
    assert runner.stop(120)
    assert len(one.applied) == 1


@pytest.mark.parametrize("error", [DiskFullError("Nothing can be written to /out.", "Make room."), PlaceError("x")])
def test_what_only_a_person_can_mend_ends_the_wait(start: Any, head: int, error: MillpondError) -> None:
    class Full(Recorder):
        def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
            raise error

    runner = start(Recorder("fine"), Full("full"), first_delay=0.001)
    runner.notify(head)
    with pytest.raises(type(error)) as caught:
        runner.wait(head, 120)
    assert caught.value is error


def test_what_may_pass_is_waited_for(start: Any, head: int) -> None:
    class Gone(Recorder):
        def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
            raise StoreError("It has vanished.")

    runner = start(Gone("gone"), first_delay=0.001)
    runner.notify(head)
    assert not runner.wait(head, 0.2)
    assert runner.status()[0].failures >= 3


def test_what_was_lost_in_silence_is_found(start: Any, head: int) -> None:
    forgetful = Recorder("forgetful")
    runner = start(forgetful, look_every=0.02)
    runner.notify(head)
    assert runner.wait(head, 120)
    forgetful.at = 3
    again = threading.Event()
    apply = forgetful.apply
    forgetful.apply = lambda *given: (apply(*given), given[0] == head and again.set())  # type: ignore[method-assign]
    assert again.wait(120)
    assert forgetful.applied == [*range(head + 1), *range(4, head + 1)]


def test_several_runners_are_one(start: Any, head: int) -> None:
    ahead, held = Recorder("ahead"), Recorder("held")
    held.go_on.clear()
    runners = Runners(start(ahead, running=False), start(held, running=False))
    runners.start()
    runners.notify(head)
    until(lambda: runners.cursors()["ahead"] == head, "the one ahead")
    assert not runners.wait(head, 0.2)
    assert {status.name for status in runners.status() if status.behind} == {"held"}
    held.go_on.set()
    assert runners.wait(head, 120)
    assert runners.cursors() == {"ahead": head, "held": head}
    assert runners.stop(120)


class Waiting(Recorder):
    """Waits for a server until it is interrupted, and fails then."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.interrupted = threading.Event()

    def cursor(self) -> Cursor:
        self.entered.set()
        assert self.interrupted.wait(120)
        raise StoreError("No server can be reached.", "")

    def interrupt(self) -> None:
        self.interrupted.set()


def test_an_impatient_wait_ends_when_all_lagging_followers_keep_failing(start: Any, head: int) -> None:
    waiting, other = Waiting("waiting"), Recorder("other")
    runner = start(waiting, other, first_delay=0.001)
    runner.notify(head)
    assert waiting.entered.wait(120)
    assert not runner.wait(head, 0.05), "a patient wait interrupts nobody"
    assert not waiting.interrupted.is_set()
    assert not runner.wait(head, patient=False)
    assert other.at == head
    assert [status.error for status in runner.status()] == ["[MP-STORE] No server can be reached.", None]


def test_a_stop_does_not_wait_for_servers_that_cannot_be_reached(start: Any, head: int) -> None:
    waiting = Waiting("waiting")
    runner = start(waiting)
    runner.notify(head)
    assert waiting.entered.wait(120)
    assert runner.stop(120) and waiting.interrupted.is_set()
