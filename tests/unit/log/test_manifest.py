"""The manifest is the fold of the log, however it is obtained; its files and hints may all be lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.log_examples import chain, change, claim, epoch, file_receipt, inline_receipt
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import CorruptError
from millpond.log.manifest import Change, Manifest, Manifests, encode_manifest, fold, fold_all, load, read_sections
from millpond.log.port import HINT_NAME, Log, numbered_name
from millpond.log.records import Record, decode

HISTORY: list[Record] = [
    claim(spec='{"v":1}'),
    epoch(
        1,
        "",
        {},
        {"tx": "5", "tick": "1"},
        receipts=(inline_receipt(0, at=100), file_receipt(1, "data/1/1-w-0")),
    ),
    change(2, ""),
    epoch(3, "", {"tx": "5", "tick": "1"}, {"tx": "9", "tick": "2", "clicks": "1"}, batch=1),
    epoch(4, "", {"tx": "9"}, {"tx": "9"}, batch=2, receipts=(inline_receipt(0, supersedes=("1/0/0",)),)),
    epoch(5, "", {"tx": "9"}, {"tx": "9"}, batch=2, retired=("1/1/0",), drained=True),
]


def folded(records: list[Record]) -> Manifest:
    return fold_all(Manifest(), [decode(data) for data in chain(*records)])


class Pond:
    """A log in memory, its manifests, and a count of what a load has read."""

    def __init__(self, records: list[Record]) -> None:
        self.log_folder = CountingFolder("memory:log")
        self.manifest_folder = CountingFolder("memory:manifest")
        self.log = Log(self.log_folder)
        self.manifests = Manifests(self.manifest_folder, keep=4)
        for n, data in enumerate(chain(*records)):
            self.log.append(n, data)


class CountingFolder(MemoryFolder):
    """Counts whole reads and listings."""

    reads = 0
    listings = 0

    def read(self, name: str) -> bytes | None:
        self.reads += 1
        return super().read(name)

    def names(self, after: str = "") -> list[str]:
        self.listings += 1
        return super().names(after)


def test_offsets_writer_spec_and_changes_are_the_newest() -> None:
    manifest = folded(HISTORY)
    assert (manifest.n, manifest.epoch_n, manifest.batch, manifest.spark_query) == (5, 5, 2, "query-1")
    assert manifest.offsets == {"tx": "9", "tick": "2", "clicks": "1"}
    assert (manifest.writer, manifest.spec) == ("writer-a", '{"v":1}')
    assert manifest.changes == (Change(2, '{"drop":"spend"}'),)


def test_a_claim_takes_the_writer_and_keeps_the_offsets() -> None:
    manifest = folded([*HISTORY, claim(writer="writer-b", spec='{"v":2}')])
    assert (manifest.writer, manifest.spec, manifest.changes) == ("writer-b", '{"v":2}', ())
    assert manifest.offsets == folded(HISTORY).offsets
    assert manifest.epoch_n == 5


def test_live_sections_are_those_not_superseded_or_retired_with_their_place() -> None:
    before = folded(HISTORY[:4])
    assert list(before.sections) == ["1/0/0", "1/0/1", "1/1/0"]
    (inline,) = before.live(0, "g", "segment")
    assert (inline.file, inline.n, inline.offset, inline.size, inline.rows) == (None, 1, 100, 13, 2)
    assert inline.info == {"first": 10, "last": 20, "slots": [1, 2]}
    (in_file,) = before.live(1, "g", "segment")
    assert (in_file.file, in_file.offset, in_file.size) == ("data/1/1-w-0", 5, 20)
    after = folded(HISTORY)
    assert list(after.sections) == ["1/0/1", "4/0/0", "4/0/1"]
    assert [section.id for section in after.live(0, "g", "rows")] == ["1/0/1", "4/0/1"]
    assert after.live(1, "g", "segment") == ()
    assert list(before.sections) == ["1/0/0", "1/0/1", "1/1/0"], "a fold leaves the manifest before it alone"


def test_times_and_floors_never_fall_and_idle_is_what_was_said_last() -> None:
    first = replace(
        epoch(1, "", {}, {}), max_time={"tx": {"0": 9, "1": 4}}, watermark_floor={"tx": 7}, idle={"tx": ["1"]}
    )
    second = replace(epoch(2, "", {}, {}), max_time={"tx": {"0": 3, "2": -8}}, watermark_floor={"tx": 5, "clicks": 1})
    manifest = folded([claim(), first, second])
    assert manifest.max_time == {"tx": {"0": 9, "1": 4, "2": -8}}
    assert manifest.watermark_floor == {"tx": 7, "clicks": 1}
    assert manifest.idle == {}


def test_a_quarantine_holds_over_claims_until_it_is_lifted() -> None:
    raised = replace(epoch(1, "", {}, {}), quarantined={"spend": "overflow"})
    lifted = replace(raised, quarantined={"spend": ""})
    assert folded([claim(), raised, claim()]).quarantined == {"spend": "overflow"}
    assert folded([claim(), raised, claim(), lifted]).quarantined == {}


@given(st.integers(0, len(HISTORY)))
def test_folding_one_by_one_or_all_at_once_is_the_same(cut: int) -> None:
    entries = [decode(data) for data in chain(*HISTORY)]
    one_by_one = Manifest()
    for entry in entries[:cut]:
        one_by_one = fold(one_by_one, entry)
    assert fold_all(one_by_one, entries[cut:]) == folded(HISTORY)


def test_a_record_that_does_not_follow_is_corrupt() -> None:
    entries = [decode(data) for data in chain(*HISTORY)]
    manifest = fold_all(Manifest(), entries[:3])
    other = decode(chain(claim(writer="other"), *HISTORY[1:])[3])
    for stranger in (entries[2], entries[4], other):
        with pytest.raises(CorruptError, match="does not follow record 2"):
            fold(manifest, stranger)


def test_a_restart_reads_one_manifest_the_record_it_ends_with_and_the_tail() -> None:
    pond = Pond(HISTORY)
    pond.manifests.save(folded(HISTORY[:4]))
    pond.log.write_hint(5)
    for folder in (pond.log_folder, pond.manifest_folder):
        folder.reads = folder.listings = 0
    assert load(pond.log, pond.manifests) == folded(HISTORY)
    assert (pond.manifest_folder.reads, pond.manifest_folder.listings) == (2, 0)
    assert (pond.log_folder.reads, pond.log_folder.listings) == (1 + 2 + 1 + 1, 0)  # last, tail, end, hint


@pytest.mark.parametrize("upto", range(-1, len(HISTORY)))
def test_the_manifest_at_an_earlier_record(upto: int) -> None:
    pond = Pond(HISTORY)
    for n in (1, 3, 5):
        pond.manifests.save(folded(HISTORY[: n + 1]))
    for known in (None, *(folded(HISTORY[:count]) for count in range(len(HISTORY) + 1))):
        assert load(pond.log, pond.manifests, upto, known) == folded(HISTORY[: upto + 1])


def test_from_a_manifest_of_before_only_what_came_since_is_read() -> None:
    pond = Pond(HISTORY)
    pond.manifests.save(folded(HISTORY[:2]))
    pond.log.write_hint(5)
    for folder in (pond.log_folder, pond.manifest_folder):
        folder.reads = folder.listings = 0
    assert load(pond.log, pond.manifests, known=folded(HISTORY[:5])) == folded(HISTORY)
    assert (pond.manifest_folder.reads, pond.manifest_folder.listings) == (0, 0)
    assert (pond.log_folder.reads, pond.log_folder.listings) == (1 + 1 + 1 + 1, 0)  # known, tail, end, hint


def test_the_last_record_of_a_manifest_of_before_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pond, decoded = Pond(HISTORY), list[int]()
    monkeypatch.setattr("millpond.log.manifest.decode", lambda data, what="": decoded.append(1) or decode(data, what))
    assert load(pond.log, pond.manifests, known=folded(HISTORY)) == folded(HISTORY)
    assert decoded == []
    assert load(pond.log, pond.manifests, known=folded(HISTORY[:-1])) == folded(HISTORY)
    assert decoded == [1]


def test_a_manifest_of_before_is_passed_over_if_it_is_of_another_log() -> None:
    pond = Pond(HISTORY)
    other = folded([claim(writer="other"), *HISTORY[1:3]])
    assert load(pond.log, pond.manifests, known=other) == folded(HISTORY)


DAMAGES = [
    "none",
    "hint garbage",
    "hint ahead",
    "hint lost",
    "newest flipped",
    "all flipped",
    "newest cut",
    "all lost",
]


@pytest.mark.parametrize("log_hint", [None, b"garbage", b"0", b"5", b"77"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_load_survives_the_loss_of_all_that_is_derived(damage: str, log_hint: bytes | None) -> None:
    pond = Pond(HISTORY)
    for n in (1, 3):
        pond.manifests.save(folded(HISTORY[: n + 1]))
    if log_hint is not None:
        pond.log_folder.replace(HINT_NAME, log_hint)
    files = pond.manifest_folder.files
    newest = numbered_name(3)
    match damage:
        case "hint garbage":
            files[HINT_NAME] = b"\xff"
        case "hint ahead":
            files[HINT_NAME] = b"12345"
        case "hint lost":
            del files[HINT_NAME]
        case "newest flipped":
            files[newest] = files[newest][:40] + b"\0" + files[newest][41:]
        case "all flipped":
            files.update({name: data[:-1] + b"\0" for name, data in files.items()})
        case "newest cut":
            files[newest] = files[newest][:-5]
        case "all lost":
            files.clear()
    assert load(pond.log, pond.manifests) == folded(HISTORY)


def test_a_manifest_of_another_log_or_of_the_future_is_passed_over() -> None:
    pond = Pond(HISTORY[:4])
    pond.manifests.save(folded([claim(writer="other"), *HISTORY[1:3]]))
    pond.manifests.save(folded(HISTORY))
    assert load(pond.log, pond.manifests) == folded(HISTORY[:4])


def test_an_empty_pond_has_the_empty_manifest() -> None:
    pond = Pond([])
    assert load(pond.log, pond.manifests) == Manifest()
    assert Manifest().n == -1


def test_a_hole_in_the_log_is_corrupt_and_not_its_end() -> None:
    pond = Pond(HISTORY)
    pond.log.write_hint(5)
    pond.log_folder.remove(numbered_name(4))
    with pytest.raises(CorruptError, match="Record 4 is missing in memory:log"):
        load(pond.log, pond.manifests)


@pytest.mark.parametrize("n", range(len(HISTORY)))
def test_a_damaged_record_is_corrupt(n: int) -> None:
    pond = Pond(HISTORY)
    data = bytearray(pond.log_folder.files[numbered_name(n)])
    data[len(data) // 2] ^= 1
    pond.log_folder.files[numbered_name(n)] = bytes(data)
    with pytest.raises(CorruptError):
        load(pond.log, pond.manifests)


def test_a_replaced_record_breaks_the_chain() -> None:
    pond = Pond(HISTORY)
    pond.log_folder.files[numbered_name(2)] = chain(claim(writer="other"), *HISTORY[1:])[2]
    with pytest.raises(CorruptError, match="does not follow"):
        load(pond.log, pond.manifests)


def test_only_the_newest_manifests_are_kept() -> None:
    pond = Pond(HISTORY)
    for n in range(6):
        pond.manifests.save(folded(HISTORY[: n + 1]))
    assert sorted(pond.manifest_folder.files) == [*(numbered_name(n) for n in range(2, 6)), HINT_NAME]
    assert pond.manifest_folder.files[numbered_name(5)] == encode_manifest(folded(HISTORY))


def test_what_an_older_manifest_names_may_be_gone_and_what_the_newest_names_may_not() -> None:
    pond = Pond(HISTORY)
    tried: list[int] = []

    def read(manifest: Manifest) -> int:
        tried.append(manifest.n)
        if manifest.n < least:
            raise CorruptError("It is gone.", "Restore it.")
        return manifest.n

    least = 5
    assert read_sections(pond.log, pond.manifests, folded(HISTORY[:3]), read) == 5
    assert read_sections(pond.log, pond.manifests, folded(HISTORY), read) == 5
    least = 6
    for known in (folded(HISTORY[:3]), folded(HISTORY)):
        with pytest.raises(CorruptError, match="It is gone"):
            read_sections(pond.log, pond.manifests, known, read)
    assert tried == [2, 5, 5, 2, 5, 5]
