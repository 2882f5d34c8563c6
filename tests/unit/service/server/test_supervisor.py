"""A pond is run again after failures, with growing delays; waits while another leads; stops in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.servers.servers import until
from millpond.control.commands.watchdog import Watchdog
from millpond.errors import (
    CorruptError,
    FencedError,
    MillpondError,
    NotServingError,
    SourceError,
    SparkError,
    StoreError,
    UnreachableError,
)
from millpond.service.api.messages import Failure
from millpond.service.api.service_files import Leader, Places
from millpond.service.server import leadership, supervisor
from millpond.service.server.leader_progress import EPOCH_SECONDS, StepDeadline
from millpond.service.server.leadership import LeadershipHints
from millpond.service.server.restart import RestartNeeded
from millpond.service.server.serve_process import Web, check_web
from millpond.service.server.supervisor import RESTART_AFTER, RESTART_SECONDS, Supervisor


class FakePond:
    """A pond whose runs raise or call as given."""

    def __init__(self, runs: list[MillpondError | Callable[[], None]]) -> None:
        self.runs, self.did = runs, list[str]()
        self.stopped = threading.Event()

    def open(self) -> None:
        self.did.append("open")

    def run(self, *, once: bool) -> bool:
        self.did.append("run")
        todo = self.runs.pop(0)
        if isinstance(todo, MillpondError):
            raise todo
        todo()
        return False

    def stop(self) -> None:
        self.stopped.set()

    def end(self) -> None:
        self.did.append("end")


class Bench:
    """A supervisor of fake ponds."""

    def __init__(
        self, folder: Path, *ponds: FakePond, begins: bool = True, gone: MillpondError | None = None,
        restarts: int = 0,
    ) -> None:  # fmt: skip
        self.ponds, self.said, self.levels, self.now = list(ponds), list[str](), list[int](), 0
        places = Places(folder)
        places.make()
        hint = LeadershipHints(places, Leader("http://me", 1, "me"), patience=2)
        self.places, self.hint, waiting = places, hint, iter(ponds)
        self.ready, self.warmed_up = list[str](), list[str]()
        self.it = Supervisor(
            lambda: next(waiting), lambda pond: begins, hint, self._say,
            lambda: self.ready.append(self.it.role), lambda: gone, restarts=restarts,
            warm_up=lambda: self.warmed_up.append(self.it.role),
        )  # fmt: skip

    def _say(self, line: str, level: int = logging.INFO) -> None:
        self.said.append(line)
        self.levels.append(level)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_DELAY", 0.02)


def test_a_failed_read_is_retried_and_its_reason_reported_until_an_epoch(tmp_path: Path) -> None:
    seen = []

    def look() -> None:
        seen.append(bench.it.failure)
        bench.it.committed()
        seen.append(bench.it.failure)
        bench.it.stop()

    bench = Bench(tmp_path, pond := FakePond([SourceError("No file.", "Mend it."), SourceError("None.", "So."), look]))
    bench.it.run()
    assert pond.did == ["open", "run", "run", "run", "end"]
    assert pond.stopped.is_set()
    assert (seen[0].code, seen[0].what, seen[0].failures, seen[1]) == ("MP-SOURCE", "None.", 2, None)
    assert bench.it.role == "stopping"
    levels = {level for line, level in zip(bench.said, bench.levels, strict=True) if "Trying again in 0.0 s" in line}
    assert levels == {logging.WARNING}


def test_a_fenced_leader_becomes_a_standby_and_leads_again_when_the_other_ends(tmp_path: Path) -> None:
    first = FakePond([FencedError("Record 7 is another's.", "Stop.")])
    second = FakePond([lambda: bench.it.stop()])
    bench = Bench(tmp_path, first, second)
    bench.places.write_leader(Leader("http://other", 2, "other", 5))
    bench.it.run()
    assert (first.did, second.did) == (["open", "run", "end"], ["open", "run", "end"])
    assert bench.warmed_up == [], "epochs have warmed it up"
    assert "[MP-FENCED] Record 7 is another's. Stop." in bench.said


def test_a_service_that_cannot_open_the_pond_frees_the_lead(tmp_path: Path) -> None:
    class Closed(FakePond):
        def open(self) -> None:
            raise StoreError("Away.", "Wait.")

    bench = Bench(tmp_path, first := Closed([]), FakePond([lambda: bench.it.stop()]))
    other, seen = LeadershipHints(bench.places, Leader("http://other", 2, "other")), list[bool]()

    def say(_line: str, _level: int = logging.INFO) -> None:
        if not seen:
            seen.append(other.try_take_over())
            other.leave()

    bench.it._say = say
    bench.it.run()
    assert (seen, first.did) == ([True], ["end"])
    assert not [thread for thread in threading.enumerate() if thread.name == "millpond-leader"]


def test_a_failure_during_a_stop_is_reported_and_not_retried(tmp_path: Path) -> None:
    def stopped() -> None:
        bench.it.stop()
        raise StoreError("A sink is away.", "Mend it.")

    bench = Bench(tmp_path, pond := FakePond([stopped]))
    bench.it.run()
    assert (bench.said[-1], bench.it.failure, pond.did[-1]) == ("[MP-STORE] A sink is away. Mend it.", None, "end")


def test_what_no_try_can_mend_ends_the_process(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([CorruptError("Damaged.", "Restore it.")]))
    with pytest.raises(CorruptError):
        bench.it.run()
    assert pond.did[-1] == "end"


def test_a_java_machine_that_has_ended_ends_the_process(tmp_path: Path) -> None:
    gone = SparkError("The Java machine has ended.", "Start again.")
    bench = Bench(tmp_path, FakePond([SourceError("No file.", "Mend it.")]), gone=gone)
    with pytest.raises(SparkError):
        bench.it.run()


SPARK = SparkError("Spark failed: EOFException.", "Run with -v.")


def test_failures_of_this_process_restart_it_and_free_the_lead(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([SPARK] * 9))
    with pytest.raises(RestartNeeded):
        bench.it.run()
    assert pond.did == ["open", *["run"] * RESTART_AFTER, "end"]
    assert bench.it.restarts == 1
    assert "5 times without an epoch: starting anew" in bench.said[-1]
    assert LeadershipHints(bench.places, Leader("http://other", 2, "other")).try_take_over()


def test_a_restart_that_did_not_help_is_not_repeated_as_soon(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([SPARK] * 99), restarts=2)
    with pytest.raises(RestartNeeded):
        bench.it.run()
    assert pond.did.count("run") == 4 * RESTART_AFTER
    assert bench.it.restarts == 3


def test_an_epoch_between_failures_keeps_the_process(tmp_path: Path) -> None:
    def committed() -> None:
        bench.it.committed()

    runs: list[MillpondError | Callable[[], None]] = [SPARK, SPARK, SPARK, SPARK, committed] * 3
    bench = Bench(tmp_path, FakePond([*runs, lambda: bench.it.stop()]), restarts=0)
    bench.it.run()
    assert bench.it.restarts == 0


@pytest.mark.parametrize("away", [SourceError("Kafka is away.", "Wait."), StoreError("Redis is away.", "Wait.")])
def test_what_is_away_is_waited_for_in_the_same_process(away: MillpondError, tmp_path: Path) -> None:
    lasting = [away] * 6 * RESTART_AFTER
    bench = Bench(tmp_path, pond := FakePond([*lasting, lambda: bench.it.stop()]))
    bench.it.run()
    assert pond.did.count("run") == len(lasting) + 1


SILENT = UnreachableError("The object store does not answer.", "Check the network.")


def test_a_leader_that_cannot_reach_the_log_steps_back_and_leads_again_when_it_can(tmp_path: Path) -> None:
    roles, frees = list[str](), list[bool]()

    def say(line: str, _level: int = logging.INFO) -> None:
        if "MP-UNREACHABLE" in line:
            roles.append(bench.it.role)
            other = LeadershipHints(bench.places, Leader("http://other", 2, "other"))
            frees.append(other.try_take_over())
            other.leave()

    bench = Bench(tmp_path, first := FakePond([SILENT]), second := FakePond([lambda: bench.it.stop()]))
    make, tries = bench.it._make, iter([None, SILENT, SILENT, None])

    def made() -> supervisor.Runs:
        if (error := next(tries)) is not None:
            raise error
        return make()

    bench.it._make, bench.it._say = made, say
    bench.it.run()
    assert (first.did, second.did) == (["open", "run", "end"], ["open", "run", "end"])
    assert (roles, frees) == (["starting"] * 3, [True] * 3), "after an epoch, and after two preparations"


def test_a_service_that_never_reached_the_log_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def made() -> supervisor.Runs:
        raise SILENT

    bench.it._make = made
    with pytest.raises(UnreachableError):
        bench.it.run()


def test_a_process_that_was_restarted_tries_again_if_java_does_not_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakePond([lambda: bench.it.stop()]), restarts=1)
    make, tries = bench.it._make, iter([SPARK, None])

    def made() -> supervisor.Runs:
        if (error := next(tries)) is not None:
            raise error
        return make()

    bench.it._make = made
    bench.it.run()
    assert any("Trying again" in line for line in bench.said)
    first = Bench(tmp_path / "first", FakePond([]))

    def raises() -> supervisor.Runs:
        raise SPARK

    first.it._make = raises
    with pytest.raises(SparkError):
        first.it.run()


def test_the_service_is_ready_when_it_leads_or_stands_by_and_not_when_it_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakePond([lambda: bench.it.stop()]))
    bench.it.run()
    assert (bench.ready, bench.warmed_up) == (["leader"], [])

    class Broken(FakePond):
        def open(self) -> None:
            raise CorruptError("Damaged.", "Restore it.")

    broken = Bench(tmp_path / "broken", Broken([]))
    with pytest.raises(CorruptError):
        broken.it.run()
    assert broken.ready == []


def test_a_leader_that_has_stalled_gives_no_sign_of_life_until_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "BEAT_SECONDS", 0.01)

    def beat() -> int:
        found = bench.places.leader()
        return -1 if found is None else found.beat

    def moves(seconds: float) -> bool:
        first, end = beat(), time.monotonic() + seconds
        while beat() == first and time.monotonic() < end:
            time.sleep(0.005)
        return beat() != first

    seen = []

    def run() -> None:
        seen.append(moves(60))
        bench.now += round(EPOCH_SECONDS * 1e6) + 1  # nothing comes from Spark
        until(lambda: any("no more signs of life" in line for line in bench.said), "the stall is noticed")
        seen.append(moves(0.3))
        bench.it.alive(None)
        seen.append(moves(60))
        bench.it.stop()

    bench = Bench(tmp_path, FakePond([run]))
    bench.it._deadline = StepDeadline(lambda: bench.now)
    bench.it.run()
    assert seen == [True, False, True]
    assert sum("no more signs of life" in line for line in bench.said) == 1


def test_a_leader_that_hangs_is_replaced_a_minute_after_its_stall_was_noticed(tmp_path: Path) -> None:
    replaced, seen, ends = list[int](), list[object](), list[MillpondError | None]()

    def run() -> None:
        dog = Watchdog(
            bench.it.count_stalled_check,
            lambda: (ends.append(bench.it.restart_or_error()), replaced.append(bench.it.restarts)),
        )
        for _ in range(5 * RESTART_SECONDS):
            dog.look()
        seen.append((list(replaced), bench.it.failure))
        bench.now += round(EPOCH_SECONDS * 1e6) + 1
        for _ in range(RESTART_SECONDS - 1):
            dog.look()
        seen.append((list(replaced), bench.it.failure))
        bench.it.alive((1, 17))  # a task has ended after all
        for _ in range(RESTART_SECONDS - 1):
            dog.look()
        seen.append((list(replaced), bench.it.failure))
        bench.now += round(EPOCH_SECONDS * 1e6) + 1
        for _ in range(RESTART_SECONDS):
            dog.look()
        bench.it.stop()

    bench = Bench(tmp_path, FakePond([run]), restarts=2)
    bench.it._deadline = StepDeadline(lambda: bench.now)
    bench.it.run()
    (quiet, stalled, alive), last = seen, bench.said[-1]
    assert (quiet, alive) == (([], None), ([], None))
    assert isinstance(stalled, tuple) and isinstance(stalled[1], Failure)
    assert (stalled[0], stalled[1].code, stalled[1].failures, stalled[1].retry_in_s) == ([], "MP-SPARK", 2, 1.0)
    assert (replaced, ends) == ([3], [None])
    assert "restart 3 without an epoch" in last


class HangsIn(FakePond):
    """A pond whose step `at` takes too long; `ends` is what the watchdog found after each second."""

    bench: Bench

    def __init__(self, at: str) -> None:
        super().__init__([lambda: self.step("run")])
        self.at, self.ends = at, list[MillpondError | None]()

    def step(self, name: str) -> None:
        if name == "run":
            self.bench.it.stop()
        if name == self.at:
            self.bench.now += round(EPOCH_SECONDS * 1e6) + 1
            for _ in range(RESTART_SECONDS):
                if self.bench.it.count_stalled_check():
                    self.ends.append(self.bench.it.restart_or_error())

    def open(self) -> None:
        self.step("open")

    def end(self) -> None:
        self.step("end")


@pytest.mark.parametrize(
    ("at", "step", "restarts"),
    [
        ("make", "The preparation of the pond", 1),
        ("open", "The opening of the pond", 1),
        ("run", "An epoch", 0),
        ("end", "The closing of the pond", 0),
    ],
)
def test_a_hang_in_any_step_ends_a_stopping_process_and_replaces_another(
    at: str, step: str, restarts: int, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, pond := HangsIn(at))
    pond.bench, bench.it._deadline = bench, StepDeadline(lambda: bench.now)
    make = bench.it._make

    def made() -> supervisor.Runs:
        pond.step("make")
        return make()

    bench.it._make = made
    bench.it.run()
    assert (len(pond.ends), bench.it.restarts) == (1, restarts)
    if restarts:
        assert pond.ends == [None]
        assert any(line.startswith(f"{step} has made no progress for a long time") for line in bench.said)
    else:
        assert str(pond.ends[0]).startswith(f"[MP-STALLED] {step} has made no progress for a long time")


@contextmanager
def standing_by(bench: Bench) -> Iterator[None]:
    """In this context another process leads and the bench's stands by; it is stopped at the end."""
    other = LeadershipHints(bench.places, Leader("http://other", 2, "other"))
    assert other.try_take_over()
    other.lead()
    try:
        thread = threading.Thread(target=bench.it.run)
        thread.start()
        while bench.it.role != "standby":
            thread.join(0.01)
        yield
        bench.it.stop()
        thread.join(60)
    finally:
        other.leave()


def test_a_standby_may_wait_without_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakePond([]))
    bench.it._deadline = StepDeadline(lambda: bench.now)
    with standing_by(bench):
        bench.now += round(100 * EPOCH_SECONDS * 1e6)
        assert not any(bench.it.count_stalled_check() for _ in range(2 * RESTART_SECONDS))


def test_a_pond_without_queries_leads_and_runs_once_it_is_woken(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([lambda: bench.it.stop()]), begins=False)
    bench.it._clock = lambda: bench.it._began + 12_000_000
    with pytest.raises(NotServingError, match=r"The pond is starting \(since 12 s\)"):
        bench.it.leading()
    thread = threading.Thread(target=bench.it.run)
    thread.start()
    while bench.it.role != "leader":
        thread.join(0.01)
    assert bench.it.leading() is pond
    assert pond.did == []
    bench.it.wake()
    thread.join(60)
    assert pond.did == ["run", "end"]


def test_a_former_leader_says_since_when_it_starts_again_and_who_may_lead(tmp_path: Path) -> None:
    def fenced() -> None:
        bench.now += 86_400_000_000
        raise FencedError("Record 7 is a claim by another driver.", "Ask it.")

    class Ending(FakePond):
        def end(self) -> None:
            super().end()
            bench.now += 3_000_000
            bench.places.write_leader(Leader("http://other", 2, "other"))
            with pytest.raises(NotServingError, match=r"since 3 s\).*send it to the last known leader at http://other"):
                bench.it.leading()
            bench.it.stop()

    bench = Bench(tmp_path, pond := Ending([fenced]))
    bench.it._clock = lambda: bench.now
    bench.it.run()
    assert pond.did[-1] == "end"


def test_a_standby_may_be_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([]))
    with standing_by(bench):
        with pytest.raises(NotServingError) as error:
            bench.it.leading()
        assert "http://other" in error.value.cure
        until(lambda: bench.warmed_up, "it warms up")
    assert (pond.did, bench.warmed_up) == (["end"], ["standby"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "pond.example"])
def test_an_address_that_others_reach_needs_tls(host: str, tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match="must be encrypted"):
        check_web(Web(host))
    with pytest.raises(MillpondError, match="cannot be read"):
        check_web(Web(host, certificate=tmp_path / "none", key=tmp_path / "none"))
    for mine in ("127.0.0.1", "localhost", "::1", "127.0.0.5"):
        check_web(Web(mine))
