"""Lists of files that were read: as columns and back, joined, and loaded from the log whatever of them is stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.log_examples import chain, change, claim, epoch
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import UnreachableError
from millpond.log.file_lists import ListedFile, ListWriter, file_list, files_in, joined, load_lists
from millpond.log.manifest import Manifest, Manifests, fold_all, load
from millpond.log.port import Log
from millpond.log.records import FileList, Record, SourceUpdate, decode

NAMES = st.text("ab/%.é", max_size=6)
FILES = st.builds(ListedFile, NAMES.map("file:///in/".__add__) | NAMES, st.integers(0, 2**60), st.integers(0, 9))
SOME = st.lists(FILES, max_size=12).map(lambda files: sorted(files, key=lambda one: one.batch))


@given(SOME)
def test_columns_give_the_files_back(files: list[ListedFile]) -> None:
    assert [*files_in(file_list(files))] == files


@given(st.lists(SOME, max_size=4))
def test_joined_lists_have_each_batch_once(lists: list[list[ListedFile]]) -> None:
    expected: list[ListedFile] = []
    for some in lists:
        newest = expected[-1].batch if expected else -1
        expected += [one for one in some if one.batch > newest]
    assert [*files_in(joined(file_list(some) for some in lists))] == expected


def listed(*batches: int) -> FileList:
    return file_list([ListedFile(f"file:///in/{batch}", batch, batch) for batch in batches])


class Pond:
    """A log in memory of epochs that each read one file, and its manifests."""

    def __init__(self, epochs: int) -> None:
        self.folder, self.records_read = MemoryFolder("memory:log"), 0
        self.manifest_folder = MemoryFolder("memory:manifest")
        self.log, self.manifests = Log(self.folder), Manifests(self.manifest_folder)
        self.records: list[Record] = [claim()]
        for n in range(epochs):
            begun = replace(epoch(n + 1, "", {}, {"ev": f'{{"logOffset":{n}}}'}, batch=n), start={})
            self.records.append(replace(begun, sources={"ev": SourceUpdate(listed(n))}))
        self.records.insert(2, change(2, ""))
        self.data = chain(*self.records)

    def append(self, upto: int) -> Manifest:
        for n in range(upto + 1):
            self.log.append(n, self.data[n])
        return load(self.log, Manifests(MemoryFolder("none")))


def test_lists_are_those_of_all_records_whatever_is_stored() -> None:
    pond = Pond(600)
    manifest = pond.append(10)
    writer = ListWriter(pond.log, pond.manifests, manifest, load_lists(pond.log, pond.manifests, manifest))
    entries = [decode(data) for data in pond.data]
    for n in range(11, len(pond.data)):
        pond.log.append(n, pond.data[n])
        manifest = fold_all(manifest, entries[n : n + 1])
        if n % 7:  # a record whose append seemed to fail is found by a later read
            writer.add(entries[n].record, manifest)
    assert manifest.known_sources["ev"].batch == 599
    expected = {"ev": listed(*range(600))}
    stored = pond.manifests.files()
    assert stored is not None and len(stored) < 4000
    assert load_lists(pond.log, pond.manifests, manifest) == expected
    early = fold_all(Manifest(), entries[:101])
    assert load_lists(pond.log, pond.manifests, early) == {"ev": listed(*range(99))}, "stored of later records"
    for damaged in (stored[:-1], b"", stored[:40] + b"?" + stored[41:]):
        pond.manifests.save_files(damaged)
        assert load_lists(pond.log, pond.manifests, manifest) == expected
    other = Pond(600)
    other.records[5] = replace(other.records[5], at=6)
    other.data = chain(*other.records)
    manifest = other.append(len(other.data) - 1)
    other.manifests.save_files(stored)
    assert load_lists(other.log, other.manifests, manifest) == expected, "stored for another log"


def test_nothing_is_read_without_a_source_of_files() -> None:
    log = Log(MemoryFolder("memory:log"))
    assert load_lists(log, Manifests(MemoryFolder("none")), Manifest(n=10_000)) == {}


def test_few_records_are_read_after_lists_were_stored() -> None:
    pond = Pond(300)
    manifest = pond.append(len(pond.data) - 1)
    ListWriter(pond.log, pond.manifests, manifest, load_lists(pond.log, pond.manifests, manifest))
    read: list[int] = []
    whole, pond.log.read = pond.log.read, lambda n: (read.append(n), whole(n))[1]  # type: ignore[method-assign]
    assert load_lists(pond.log, pond.manifests, manifest) == {"ev": listed(*range(300))}
    assert read == [manifest.n]


class Silent(MemoryFolder):
    """A folder that does not answer while `silent`."""

    silent = False

    def read(self, name: str) -> bytes | None:
        if self.silent:
            raise UnreachableError("It does not answer.")
        return super().read(name)


def test_a_record_is_added_although_the_lists_cannot_be_stored_now() -> None:
    pond, folder = Pond(300), Silent("memory:manifest")
    manifests, manifest = Manifests(folder), pond.append(0)
    writer = ListWriter(pond.log, manifests, manifest, {})
    for n in range(1, len(pond.data)):
        folder.silent = n < 290
        pond.log.append(n, pond.data[n])
        entry = decode(pond.data[n])
        manifest = fold_all(manifest, [entry])
        writer.add(entry.record, manifest)
    stored = manifests.files()
    assert stored is not None
    few = fold_all(Manifest(), [decode(data) for data in pond.data[:291]])
    pond.log.read = lambda n: pond.data[n] if n >= few.n else None  # type: ignore[method-assign]
    assert load_lists(pond.log, manifests, few) == {"ev": listed(*range(few.known_sources["ev"].batch + 1))}
