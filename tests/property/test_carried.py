"""A store that carries files between hosts and loses some of them: the results are those of one folder, bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.inputs.cases import random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.simulator.changing_pond import ForgetfulFiles
from kit.simulator.memory_files import MemoryFiles
from millpond.errors import FilesLostError
from millpond.runtime.task.file_sync import Carrier, live_files
from millpond.state.ports.files import CarriedFiles


@pytest.mark.parametrize("first", seeds(0, 1, step=4))
def test_a_store_that_forgets_changes_no_answer(first: int, folders: Iterator[Path]) -> None:
    lost = compared = 0
    for seed in range(first, first + 4):
        case, dice = random_case(seed, 60, 5), random.Random(seed)
        instances, files = dice.randint(1, 3), ForgetfulFiles(seed)
        base = next(folders)
        plain, folder = Run(base / "plain", case.queries, instances), base / "carried"
        carried = Run(folder, case.queries, instances, file_store=files)
        for number, rows in enumerate(case.epochs):
            if number % 3 == 2:
                carried = Run(folder, case.queries, instances, file_store=files)
            for run, deal in ((plain, dealt(seed + number)), (carried, dealt(seed + number))):
                run.epoch(deal(rows))
        plain.pond.drain()
        carried.pond.drain()
        assert carried.pond.manifest.quarantined == plain.pond.manifest.quarantined
        carried = Run(folder, case.queries, instances, file_store=files)
        assert {*files.names()} == live_files(carried.pond.manifest)
        known, found = plain.answers().rows, carried.answers().rows
        for query in case.queries:
            assert sorted(map(repr, found[query.name])) == sorted(map(repr, known[query.name])), query
            compared += len(known[query.name])
        lost += files.lost
    assert lost > 5 and compared > 200


def test_a_host_fetches_missing_files_at_once_and_deletes_unneeded_ones(tmp_path: Path) -> None:
    store, requests = MemoryFiles(), []

    class Counting(MemoryFiles):
        def get_many(self, names):  # type: ignore[no-untyped-def]
            requests.append(list(names))
            return store.get_many(names)

    names = [f"delta/{n:020d}/0-a-{n}.0.arrow" for n in range(1, 200)]
    for name in names:
        store.put(name, [name.encode()])
    files = CarriedFiles(tmp_path, Counting())
    files.fetch(names)
    files.fetch(names)
    assert requests == [names]
    assert files.read(names[7], 0, 5).to_pybytes() == b"delta"
    files.sweep(129, lambda: set())
    assert len(list(tmp_path.glob("delta/*/*"))) == len(names)
    files.sweep(128, lambda: {names[3]})
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("delta/*/*")}
    assert left == {names[3], *names[63:]}
    assert files.read(names[7], 0, 5).to_pybytes() == b"delta", "what is mapped stays"
    assert CarriedFiles(tmp_path, store).read(names[9], 0, 5).to_pybytes() == b"delta"


def test_a_store_that_forgets_at_once_ends_the_epoch(tmp_path: Path) -> None:
    class Sieve(MemoryFiles):
        def take_many(self, names):  # type: ignore[no-untyped-def]
            return [None for _ in names]

    case = random_case(3, 60, 2)
    run = Run(tmp_path, case.queries, 1, file_store=Sieve())
    with pytest.raises(FilesLostError, match="has lost delta/"):
        for rows in case.epochs:
            run.epoch([rows])
    assert Carrier(tmp_path, MemoryFiles()).restore_missing(run.pond.manifest) == 0


def test_a_new_driver_does_not_need_what_the_previous_one_prunes(tmp_path: Path) -> None:
    case = random_case(3, 60, 2)
    run = Run(tmp_path, case.queries, 1, file_store=MemoryFiles())
    for rows in case.epochs[:2]:
        run.epoch([rows])
    early = run.pond.manifest
    gone, *left = sorted(live_files(early))
    (tmp_path / gone).unlink()
    store = MemoryFiles()
    Carrier(tmp_path, store).begin(early)
    assert store.names() == {*left}
