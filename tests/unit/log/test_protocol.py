"""The protocol's rules, one by one: take over, begin, drain, commit, and every way to be fenced."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kit.inputs.log_examples import change, epoch
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import FencedError, OffsetGapError, PlaceError
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log, Lost, Won
from millpond.log.protocol import (
    TICK,
    AlreadyTrue,
    Append,
    Committed,
    Reply,
    Run,
    Steps,
    Writer,
    perform,
    same_offset,
)
from millpond.log.records import ClaimRecord, EpochRecord, Offsets, decode


class Pond:
    """A log in memory, and what its writers have announced."""

    def __init__(self) -> None:
        self.log_folder = MemoryFolder("memory:log")
        self.manifest_folder = MemoryFolder("memory:manifest")
        self.log = Log(self.log_folder)
        self.manifests = Manifests(self.manifest_folder)
        self.announced: list[int] = []

    def run(self, steps: Steps[object]) -> object:
        return perform(steps, self.log, self.manifests, self.announced.append)

    def writer(self, token: str) -> Writer:
        """Start a driver, which takes over."""
        writer = Writer(token, load(self.log, self.manifests))
        self.run(writer.take_over(1, "host", 2, "0.1", lambda _: "{}"))
        return writer

    def begin(self, writer: Writer, batch: int, start: Offsets, end: Offsets, query: str = "query-1") -> object:
        return self.run(writer.begin(batch, start, end, query))

    def commit(self, writer: Writer, batch: int, start: Offsets, end: Offsets) -> object:
        begun = self.begin(writer, batch, start, end)
        assert isinstance(begun, Run)
        return self.run(writer.commit(made(begun, writer, batch, start, end)))


def made(run: Run, writer: Writer, batch: int, start: Offsets, end: Offsets) -> EpochRecord:
    return epoch(run.n, run.prev, start, end, writer=writer.token, batch=batch)


@pytest.fixture
def pond() -> Pond:
    return Pond()


def test_the_first_record_is_a_claim_and_every_take_over_adds_one(pond: Pond) -> None:
    for n, token in enumerate(("a", "b", "c")):
        writer = pond.writer(token)
        assert (writer.manifest.n, writer.manifest.writer) == (n, token)
        data = pond.log.read(n)
        assert data is not None
        record = decode(data).record
        assert isinstance(record, ClaimRecord)
        assert (record.host, record.pid, record.version, record.spec) == ("host", 2, "0.1", "{}")
    assert pond.announced == [0, 1, 2]
    assert pond.log.last() == 2


def test_batches_follow_each_other(pond: Pond) -> None:
    writer = pond.writer("a")
    assert pond.commit(writer, 0, {}, {"tx": "5"}) == Committed(1, writer.manifest)
    assert pond.commit(writer, 1, {"tx": "5"}, {"tx": "8"}) == Committed(2, writer.manifest)
    assert writer.manifest.offsets == {"tx": "8"}
    assert pond.announced == [0, 1, 2]


def test_a_batch_that_ends_where_the_log_ends_is_already_true(pond: Pond) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5"})
    pond.commit(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "8", TICK: "2"})
    assert pond.begin(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "8", TICK: "2"}) == AlreadyTrue(2)
    assert pond.begin(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "8", TICK: "7"}) == AlreadyTrue(2)
    assert pond.begin(pond.writer("b"), 0, {}, {"tx": "8"}, "query-2") == AlreadyTrue(2)


def test_what_is_already_true_is_announced_again(pond: Pond) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5"})
    pond.announced.clear()
    pond.begin(writer, 0, {}, {"tx": "5"})
    assert pond.announced == [1]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({}, {"tx": "9"}),
        ({"tx": "4"}, {"tx": "9"}),
        ({"tx": "6"}, {"tx": "9"}),
        ({"tx": "0"}, {"tx": "4"}),
        ({"tx": "5", "clicks": "1"}, {"tx": "9", "clicks": "3"}),
        ({"tx": "4", "clicks": "2"}, {"tx": "5", "clicks": "3"}),
    ],
)
def test_offsets_that_do_not_continue_the_log_are_a_gap(pond: Pond, start: Offsets, end: Offsets) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5", "clicks": "2", TICK: "1"})
    with pytest.raises(OffsetGapError) as gap:
        pond.begin(writer, 1, start, end)
    message = str(gap.value)
    assert message.startswith("[MP-OFFSET-GAP]")
    assert "Start the pond again" in message
    for offset in (*start.values(), *end.values(), "5", "2"):
        assert f'"{offset}"' in message


def test_the_same_batch_id_proves_nothing(pond: Pond) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5"})
    assert isinstance(pond.begin(writer, 0, {"tx": "5"}, {"tx": "6"}), Run)
    with pytest.raises(OffsetGapError):
        pond.begin(writer, 0, {}, {"tx": "6"})


def test_a_new_stream_may_start_anywhere_and_a_stream_may_be_left_out(pond: Pond) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5"})
    assert isinstance(pond.begin(writer, 1, {"tx": "5", "new": "77"}, {"tx": "6", "new": "80"}), Run)
    pond.commit(writer, 1, {"tx": "5"}, {"tx": "5", "new": "80"})
    pond.commit(writer, 2, {"new": "80"}, {"new": "81"})
    assert writer.manifest.offsets == {"tx": "5", "new": "81"}
    with pytest.raises(OffsetGapError):
        pond.begin(writer, 3, {"tx": "4", "new": "81"}, {"tx": "9", "new": "81"})


def test_a_batch_in_which_only_the_tick_moves_is_idle(pond: Pond) -> None:
    writer = pond.writer("a")
    first = pond.begin(writer, 0, {}, {TICK: "1"})
    assert isinstance(first, Run)
    assert first.idle
    pond.commit(writer, 0, {}, {"tx": "5", TICK: "1"})
    idle = pond.begin(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "5", TICK: "2"})
    assert isinstance(idle, Run)
    assert (idle.n, idle.idle, idle.manifest, idle.prev) == (2, True, writer.manifest, writer.manifest.digest)
    moved = pond.begin(writer, 2, {"tx": "5", TICK: "2"}, {"tx": "6", TICK: "3"})
    assert isinstance(moved, Run)
    assert not moved.idle


def test_a_committed_idle_batch_is_already_true_when_spark_repeats_it(pond: Pond) -> None:
    writer = pond.writer("a")
    pond.commit(writer, 0, {}, {"tx": "5", TICK: "1"})
    pond.commit(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "5", TICK: "2"})
    assert pond.begin(writer, 1, {"tx": "5", TICK: "1"}, {"tx": "5", TICK: "2"}) == AlreadyTrue(2)


def test_the_offsets_hold_over_a_claim_a_change_and_a_drain(pond: Pond) -> None:
    pond.commit(pond.writer("a"), 0, {}, {"tx": "5", TICK: "1"})
    writer = pond.writer("b")
    run = pond.run(writer.drain())
    assert isinstance(run, Run)
    pond.run(writer.commit(change(run.n, run.prev, writer="b")))
    run = pond.run(writer.drain())
    assert isinstance(run, Run)
    known = run.manifest.offsets
    drained = replace(made(run, writer, 0, known, known), drained=True, watermark_floor={"tx": 99})
    assert isinstance(pond.run(writer.commit(drained)), Committed)
    assert writer.manifest.watermark_floor == {"tx": 99}
    assert isinstance(pond.begin(writer, 1, {"tx": "5"}, {"tx": "6"}), Run)


def test_a_drain_reads_nothing(pond: Pond) -> None:
    writer = pond.writer("a")
    run = pond.run(writer.drain())
    assert isinstance(run, Run)
    with pytest.raises(ValueError, match="drains"):
        pond.run(writer.commit(replace(made(run, writer, 0, {}, {"tx": "1"}), drained=True)))


def test_a_claim_fences_the_older_driver_at_its_next_begin_drain_or_commit(pond: Pond) -> None:
    old = pond.writer("a")
    begun = pond.begin(old, 0, {}, {"tx": "5"})
    assert isinstance(begun, Run)
    pond.writer("b")
    with pytest.raises(FencedError, match=r"\[MP-FENCED\] Record 1"):
        pond.run(old.commit(made(begun, old, 0, {}, {"tx": "5"})))
    with pytest.raises(FencedError):
        pond.begin(old, 0, {}, {"tx": "5"})
    with pytest.raises(FencedError):
        pond.run(old.drain())
    assert pond.log.last() == 1


def test_an_epoch_that_beats_the_claim_counts_and_the_claim_goes_above_it(pond: Pond) -> None:
    old = pond.writer("a")
    begun = pond.begin(old, 0, {}, {"tx": "5"})
    assert isinstance(begun, Run)
    new = Writer("b", load(pond.log, pond.manifests))
    claiming = new.take_over(1, "host", 2, "0.1", lambda _: "{}")
    reply: Reply = None
    while not isinstance(effect := claiming.send(reply), Append):
        reply = pond.log.read(effect.n)  # type: ignore[union-attr]
    pond.run(old.commit(made(begun, old, 0, {}, {"tx": "5"})))
    lost = pond.log.append(effect.n, effect.record)
    assert isinstance(lost, Lost)
    again = claiming.send(lost)
    assert isinstance(again, Append)
    assert (again.n, new.manifest.offsets) == (2, {"tx": "5"})


class LosesReplies(MemoryFolder):
    """Does the write, then raises as if it had failed."""

    broken = False

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if self.broken:
            self.broken = False
            raise PlaceError("The reply was lost.")
        return created


class RetriesAlone(MemoryFolder):
    """Retries inside, as HTTP clients do, and so always meets its own file."""

    def create(self, name: str, data: bytes) -> bool:
        super().create(name, data)
        return False


def test_an_append_that_loses_against_itself_has_won(pond: Pond) -> None:
    pond.log = Log(RetriesAlone("memory:log"))
    writer = pond.writer("a")
    assert pond.commit(writer, 0, {}, {"tx": "5"}) == Committed(1, writer.manifest)


def test_a_lost_reply_is_found_out_at_the_next_begin(pond: Pond) -> None:
    folder = LosesReplies("memory:log")
    pond.log = Log(folder)
    writer = pond.writer("a")
    folder.broken = True
    with pytest.raises(PlaceError):
        pond.commit(writer, 0, {}, {"tx": "5"})
    assert pond.begin(writer, 0, {}, {"tx": "5"}) == AlreadyTrue(1)


def test_a_claim_whose_reply_was_lost_is_not_made_twice(pond: Pond) -> None:
    folder = LosesReplies("memory:log")
    folder.broken = True
    pond.log = Log(folder)
    writer = Writer("a", load(pond.log, pond.manifests))
    with pytest.raises(PlaceError):
        pond.run(writer.take_over(1, "host", 2, "0.1", lambda _: "{}"))
    assert pond.run(writer.take_over(1, "host", 2, "0.1", lambda _: "{}")) == Committed(0, writer.manifest)
    assert pond.log.last() == 0


@pytest.mark.parametrize("same_offsets", [True, False])
def test_an_own_append_that_arrives_late_counts_only_for_the_same_offsets(pond: Pond, same_offsets: bool) -> None:
    writer = pond.writer("a")
    begun = pond.begin(writer, 0, {}, {"tx": "5"})
    assert isinstance(begun, Run)
    late = epoch(begun.n, begun.prev, {}, {"tx": "5" if same_offsets else "4"}, writer="a", retired=("first try",))
    steps = Writer("a", begun.manifest).commit(late)
    effect = next(steps)
    assert isinstance(effect, Append)
    assert pond.log.append(effect.n, effect.record) == Won()
    second_try = writer.commit(made(begun, writer, 0, {}, {"tx": "5"}))
    if same_offsets:
        assert pond.run(second_try) == AlreadyTrue(1)
        assert writer.manifest.offsets == {"tx": "5"}
    else:
        with pytest.raises(FencedError):
            pond.run(second_try)


def test_a_record_made_for_another_place_is_refused_before_it_is_appended(pond: Pond) -> None:
    writer = pond.writer("a")
    begun = pond.begin(writer, 0, {}, {"tx": "5"})
    assert isinstance(begun, Run)
    good = made(begun, writer, 0, {}, {"tx": "5"})
    for bad in (replace(good, n=2), replace(good, prev=""), replace(good, writer="b")):
        with pytest.raises(ValueError, match="was not made for number 1"):
            pond.run(writer.commit(bad))
    assert pond.log.last() == 0


def test_hints_and_manifests_are_left_on_the_way_and_may_fail() -> None:
    class Full(MemoryFolder):
        def replace(self, name: str, data: bytes) -> None:
            raise PlaceError("The disk is full.")

    for folder_type in (MemoryFolder, Full):
        pond = Pond()
        pond.log_folder = folder_type("memory:log")
        pond.log = Log(pond.log_folder)
        pond.manifest_folder = folder_type("memory:manifest")
        pond.manifests = Manifests(pond.manifest_folder)
        writer = Writer("a", load(pond.log, pond.manifests), records_per_hint=4, records_per_manifest=10)
        pond.run(writer.take_over(1, "host", 2, "0.1", lambda _: "{}"))
        for batch in range(24):
            pond.commit(writer, batch, {"tx": str(batch)} if batch else {}, {"tx": str(batch + 1)})
        assert pond.log.last() == 24
        if folder_type is MemoryFolder:
            assert pond.log_folder.files["_last"] == b"24"
            assert sorted(pond.manifest_folder.files) == [*(f"{n:020d}" for n in (0, 10, 20)), "_last"]


def test_offsets_are_compared_by_meaning() -> None:
    assert same_offset('{"a":{"0":1,"1":2}}', '{"a": {"1": 2, "0": 1}}')
    assert same_offset("not json", "not json")
    assert not same_offset("not json", "other")
    assert not same_offset('{"a":{"0":1}}', '{"a":{"0":1,"1":0}}')
    assert not same_offset(None, "0")
    assert same_offset(None, None)


def test_a_claim_is_not_earlier_than_the_record_before_it(pond: Pond) -> None:
    first = pond.writer("a")
    run = pond.begin(first, 0, {}, {"tx": "5"})
    assert isinstance(run, Run)
    pond.run(first.commit(replace(made(run, first, 0, {}, {"tx": "5"}), at=7_000)))
    assert first.newest_at == 7_000
    for n, token in (
        (2, "b"),
        (3, "c"),
    ):  # their clocks are late; the second finds a stored manifest at the end of the log
        writer = pond.writer(token)
        assert (decode(pond.log.read(n) or b"").record.at, writer.newest_at) == (7_000, 7_000)
