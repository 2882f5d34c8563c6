"""The log on a folder whose requests fail as in an object store: one winner, and records that never change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from kit.simulator.faulty_folder import FaultyFolder
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import PlaceError
from millpond.log.port import Log, Lost, Won, numbered_name

WRITERS = 3

BIDS = st.lists(st.tuples(st.integers(0, WRITERS - 1), st.integers(0, 3)), max_size=30)
"""Appends, each by a writer at a number."""


class RetriesWithoutCondition(FaultyFolder):
    """Repeats a put that failed, and no longer asks that the name does not exist."""

    def create(self, name: str, data: bytes) -> bool:
        try:
            return super().create(name, data)
        except PlaceError:
            self.inner.replace(name, data)
            return True


def appended(folder: type[FaultyFolder], bids: list[tuple[int, int]], seed: int) -> bool:
    """Whether records never change, and every reply to an append is true, with late puts between the appends."""
    random = Random(seed)
    late: list[Callable[[], object]] = []
    inner = MemoryFolder("memory:log")
    log = Log(folder(inner, random, 0.3, lambda _, put: late.append(put)))
    seen: dict[str, bytes] = {}
    for writer, n in bids:
        ours, name = b"writer %d" % writer, numbered_name(n)
        with suppress(PlaceError):
            reply = log.append(n, ours)
            if inner.files[name] != (ours if isinstance(reply, Won) else reply.winner):
                return False
        if late and random.random() < 0.5:
            late.pop(random.randrange(len(late)))()
        if any(inner.files[known] != data for known, data in seen.items()):
            return False
        seen = dict(inner.files)
    return True


@given(BIDS, st.integers(0, 1 << 32))
def test_records_never_change_and_replies_are_true(bids: list[tuple[int, int]], seed: int) -> None:
    assert appended(FaultyFolder, bids, seed)


def test_a_client_that_retries_without_its_condition_is_found() -> None:
    example = st.tuples(BIDS, st.integers(0, 1 << 32))
    found = find(
        example, lambda drawn: not appended(RetriesWithoutCondition, *drawn),
        settings=settings(max_examples=500, deadline=None, database=None),
    )  # fmt: skip
    assert appended(FaultyFolder, *found)


@given(st.integers(1, 40), st.integers(0, 1 << 32))
def test_an_old_listing_is_behind_and_a_hint_makes_up_for_it(length: int, seed: int) -> None:
    folder = FaultyFolder(MemoryFolder("memory:log"), Random(seed), 0.0, lambda _, __: None)
    log = Log(folder)
    for n in range(length):
        log.append(n, b"x")
    folder.rate = 0.1
    with suppress(PlaceError):
        assert (log.last() or 0) < length
    folder.rate = 0.0
    log.write_hint(length // 2)
    assert log.last() == length - 1, "with a hint the tail is probed, not listed"


@pytest.mark.parametrize(("fault", "reply"), [("reply lost", Lost(b"x")), ("throttled", Won())])
def test_after_a_failed_append_the_next_one_says_what_happened(fault: str, reply: Won | Lost) -> None:
    folder = FaultyFolder(MemoryFolder("memory:log"), Random(0), 0.0, lambda _, __: None)
    folder.plan(fault)
    log = Log(folder)
    with pytest.raises(PlaceError, match=fault):
        log.append(0, b"x")
    assert log.append(0, b"x") == reply
