"""A pond is run again after a failure, more slowly each time; stood by for when another leads; stopped in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import (
    CorruptError,
    FencedError,
    MillpondError,
    NotServingError,
    SourceError,
    SparkError,
    StoreError,
)
from millpond.service import supervisor
from millpond.service.leader import Hint
from millpond.service.places import Leader, Places
from millpond.service.serving import Web, check_web
from millpond.service.supervisor import Supervisor


class FakePond:
    """A pond whose runs do what they are told: raise, or call."""

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

    def __init__(self, folder: Path, *ponds: FakePond, begins: bool = True, gone: MillpondError | None = None) -> None:
        self.ponds, self.said = list(ponds), list[str]()
        places = Places(folder)
        places.make()
        hint = Hint(places, Leader("http://me", 1, "me"), patience=2)
        self.places, waiting = places, iter(ponds)
        self.it = Supervisor(
            lambda: next(waiting), lambda pond: begins, hint, places, self.said.append, lambda: gone
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)


def test_a_failed_read_is_run_again_and_the_reason_told_until_an_epoch(tmp_path: Path) -> None:
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
    assert any("Trying again in 0.0 s" in line for line in bench.said)


def test_whoever_is_fenced_stands_by_and_leads_again_when_the_other_is_gone(tmp_path: Path) -> None:
    first = FakePond([FencedError("Record 7 is another's.", "Stop.")])
    second = FakePond([lambda: bench.it.stop()])
    bench = Bench(tmp_path, first, second)
    bench.places.tell(Leader("http://other", 2, "other", 5))
    bench.it.run()
    assert (first.did, second.did) == (["open", "run", "end"], ["open", "run", "end"])
    assert "[MP-FENCED] Record 7 is another's. Stop." in bench.said


def test_who_cannot_open_the_pond_lets_another_try(tmp_path: Path) -> None:
    class Closed(FakePond):
        def open(self) -> None:
            raise StoreError("Away.", "Wait.")

    bench = Bench(tmp_path, first := Closed([]), FakePond([lambda: bench.it.stop()]))
    other, seen = Hint(bench.places, Leader("http://other", 2, "other")), list[bool]()

    def say(_line: str) -> None:
        if not seen:
            seen.append(other.gone())
            other.leave()

    bench.it._say = say
    bench.it.run()
    assert (seen, first.did) == ([True], ["end"])
    assert not [thread for thread in threading.enumerate() if thread.name == "millpond-leader"]


def test_what_fails_while_it_stops_is_told_and_not_tried_again(tmp_path: Path) -> None:
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


def test_a_pond_without_queries_leads_and_runs_once_it_is_woken(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([lambda: bench.it.stop()]), begins=False)
    with pytest.raises(NotServingError, match="This service is starting"):
        bench.it.leading()
    thread = threading.Thread(target=bench.it.run)
    thread.start()
    while bench.it.role != "leader":
        thread.join(0.01)
    assert bench.it.leading() is pond
    assert pond.did == []
    bench.it.wake()
    thread.join(10)
    assert pond.did == ["run", "end"]


def test_a_standby_may_be_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pond := FakePond([]))
    other = Hint(bench.places, Leader("http://other", 2, "other"))
    assert other.gone()
    other.lead()
    try:
        thread = threading.Thread(target=bench.it.run)
        thread.start()
        while bench.it.role != "standby":
            thread.join(0.01)
        with pytest.raises(NotServingError) as told:
            bench.it.leading()
        assert "http://other" in told.value.cure
        bench.it.stop()
        thread.join(10)
    finally:
        other.leave()
    assert pond.did == ["end"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "pond.example"])
def test_an_address_that_others_reach_needs_tls(host: str, tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match="must be encrypted"):
        check_web(Web(host))
    with pytest.raises(MillpondError, match="cannot be read"):
        check_web(Web(host, certificate=tmp_path / "none", key=tmp_path / "none"))
    for mine in ("127.0.0.1", "localhost", "::1", "127.0.0.5"):
        check_web(Web(mine))
