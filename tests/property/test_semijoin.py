"""The sides of a join are reduced to possible partners: none is missing, and few others are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_joins import PAID, TS, K, started

from kit.inputs.cases import SECOND
from millpond.kernels.semijoin import Live, reduced
from millpond.model.expressions import Column
from millpond.model.join import LEFT, RIGHT, Join, Side, Within
from millpond.model.query import Named
from millpond.runtime.joins import fold_joins
from millpond.state.layout.event_log import Events

EVENT = st.tuples(st.integers(-3, 3), st.booleans(), st.booleans(), st.booleans())
SECTIONS = st.lists(st.lists(EVENT, max_size=12), max_size=4)


@given(st.fixed_dictionaries({LEFT: SECTIONS, RIGHT: SECTIONS}), st.sampled_from((1, 1 << 20, (1 << 40) + 1)))
def test_exactly_the_needed_and_requested_events_are_read(
    given_sections: dict[str, list[list[tuple[int, bool, bool, bool]]]], spread: int
) -> None:
    def live(section: list[tuple[int, bool, bool, bool]]) -> Live:
        hashes = np.array([one[0] * spread for one in section], np.int64)
        nth = pa.array(np.arange(len(section)))
        events = Events(hashes, np.zeros(len(section), np.int64), np.zeros(len(section), np.int64), {"nth": nth})
        return Live(events, *(np.array([one[i] for one in section], bool) for i in (1, 2, 3)))

    found = reduced({side: [live(section) for section in sections] for side, sections in given_sections.items()})
    for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
        wanted = {code for section in given_sections[other] for code, requests, *_ in section if requests}
        alike = wanted if spread != 1 << 20 else range(-3, 4 if wanted else -3)  # of one place in the table
        for section, events in zip(given_sections[side], found[side], strict=True):
            expected = [
                i for i, (code, _, needed, possible) in enumerate(section) if needed or (possible and code in alike)
            ]
            assert events.columns["nth"].to_pylist() == expected
            assert events.slots.tolist() == [section[i][0] * spread for i in expected]


@pytest.mark.parametrize("kind", ["inner", "left", "full"])
def test_an_epoch_reads_few_of_the_events_that_are_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [Side(stream, "ts", 0, (K,), (K, TS)) for stream in ("events", "paid")]
    output = (Named("k", Column("left:0", "string")), Named("paid", Column("right:1", "timestamp")))
    join = Join("j", sides[0], sides[1], kind, Within(0, 3600 * SECOND), output)
    read: list[int] = []

    def counting(live: dict[str, list[Live]]) -> dict[str, list[Events]]:
        found = reduced(live)
        read.append(sum(events.rows for sections in found.values() for events in sections))
        return found

    monkeypatch.setattr(fold_joins, "reduced", counting)
    run, same = started(tmp_path, [join], 1), {"g": 1, "f": 1.0, "v": 1, "amount": 1.0, "p": None, "d": None}
    for epoch in range(20):
        rows = [same | {"k": f"k{epoch}-{i}", "ts": (epoch * 100 + i) * SECOND} for i in range(100)]
        run.epoch_of({PAID.name: [rows], "events": [rows]})
    read.clear()
    rows = [same | {"k": f"k3-{i}", "ts": (2000 + i) * SECOND} for i in range(3)]
    run.epoch_of({PAID.name: [rows], "events": [rows]})
    assert len(read) == 1 and 0 < read[0] <= 20, "of 4,000"
