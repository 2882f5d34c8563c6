"""The pump brings a follower to the head, in order, from any cursor; the follower guards itself."""

from __future__ import annotations

import pytest

from kit.inputs.log_examples import chain, change, claim, epoch
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import AheadError, StoreError
from millpond.log.cursor import Cursor
from millpond.log.follower import Pump, pump
from millpond.log.manifest import Manifest, Manifests, fold_all
from millpond.log.port import Log
from millpond.log.records import Entry, decode

HISTORY = chain(
    claim(),
    epoch(1, "", {}, {"tx": "5"}),
    change(2, ""),
    epoch(3, "", {"tx": "5"}, {"tx": "9"}),
    claim(writer="b"),
)


class Table:
    """A follower that keeps everything it was shown."""

    name = "table"

    def __init__(self) -> None:
        self.stored = -1
        self.shown: list[tuple[int, int]] = []
        self.broken = False

    def cursor(self) -> Cursor:
        return Cursor(self.stored)

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        if self.broken:
            raise StoreError("The table is gone.")
        if n <= self.stored:
            return
        assert n == self.stored + 1
        self.stored = n
        self.shown.append((record.n, manifest.n))


def stored(records: list[bytes]) -> tuple[Log, Manifests]:
    log = Log(MemoryFolder("memory:log"))
    for n, data in enumerate(records):
        log.append(n, data)
    return log, Manifests(MemoryFolder("memory:manifest"))


def test_every_record_is_applied_once_in_order_with_the_manifest_that_includes_it() -> None:
    log, manifests = stored(HISTORY)
    table = Table()
    driver = Pump(table.name)
    assert pump(driver, table, log, manifests) == 4
    assert table.shown == [(n, n) for n in range(5)]
    assert pump(driver, table, log, manifests) == 4
    assert len(table.shown) == 5


def test_a_limit_gives_every_client_a_turn() -> None:
    log, manifests = stored(HISTORY)
    table = Table()
    driver = Pump(table.name)
    assert [pump(driver, table, log, manifests, limit=2) for _ in range(4)] == [1, 3, 4, 4]


@pytest.mark.parametrize("cursor", range(-1, 5))
@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_new_pump_continues_from_the_stored_cursor(cursor: int, with_manifest: bool) -> None:
    log, manifests = stored(HISTORY)
    if with_manifest:
        manifests.save(fold_all(Manifest(), [decode(data) for data in HISTORY[:3]]))
    table = Table()
    table.stored = cursor
    assert pump(Pump(table.name), table, log, manifests) == 4
    assert table.shown == [(n, n) for n in range(cursor + 1, 5)]


def test_a_follower_that_lost_everything_is_rebuilt() -> None:
    log, manifests = stored(HISTORY)
    table = Table()
    driver = Pump(table.name)
    pump(driver, table, log, manifests)
    table.stored, table.shown = -1, []
    pump(driver, table, log, manifests)
    assert table.shown == [(n, n) for n in range(5)]


def test_another_publisher_may_have_moved_the_cursor() -> None:
    log, manifests = stored(HISTORY)
    table = Table()
    sleepy, awake = Pump(table.name), Pump(table.name)
    pump(sleepy, table, log, manifests, limit=1)
    pump(awake, table, log, manifests, limit=3)
    pump(sleepy, table, log, manifests)
    assert table.shown == [(n, n) for n in range(5)]


def test_a_follower_that_fails_is_tried_again_at_the_same_record() -> None:
    log, manifests = stored(HISTORY)
    table = Table()
    driver = Pump(table.name)
    pump(driver, table, log, manifests, limit=2)
    table.broken = True
    with pytest.raises(StoreError):
        pump(driver, table, log, manifests)
    table.broken = False
    pump(driver, table, log, manifests)
    assert table.shown == [(n, n) for n in range(5)]


def test_a_follower_ahead_of_the_log_has_to_rebuild() -> None:
    log, manifests = stored(HISTORY[:3])
    table = Table()
    table.stored = 4
    with pytest.raises(AheadError, match=r"record 4, but the log ends at record 2.*millpond repair"):
        pump(Pump(table.name), table, log, manifests)
