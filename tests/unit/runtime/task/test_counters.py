"""Counters: sums of packets and folds, and the form in which receipts and records store them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.runtime.task.counters import FATES, WHOLE_POND, Counters, Counts, in_receipt

FIELDS = Counts.__struct_fields__
NUMBERS = st.integers(0, 2**40)
COUNTS = st.lists(NUMBERS, min_size=len(FIELDS), max_size=len(FIELDS)).map(lambda numbers: Counts(*numbers))
COUNTERS = st.dictionaries(st.sampled_from(["q", "a:b", "stream s", WHOLE_POND]), COUNTS).map(Counters)


def plain(counters: Counters) -> dict[str, dict[str, int]]:
    return {name: msgspec.structs.asdict(counts) for name, counts in counters.items()}


@given(st.lists(COUNTERS, max_size=4))
def test_counters_add_up_field_by_field(parts: list[Counters]) -> None:
    total = Counters()
    for part in parts:
        total.add(part)
    names = {name for part in parts for name in part}
    assert plain(total) == {
        name: {field: sum(getattr(part[name], field) for part in parts if name in part) for field in FIELDS}
        for name in names
    }


@given(COUNTERS)
def test_a_packet_and_a_receipt_bring_all_counts(sent: Counters) -> None:
    packed = msgspec.json.decode(msgspec.json.encode(sent), type=dict[str, Counts])
    found = Counters()
    found.add_receipt(Counters(packed).to_receipt({"tx": {"0": -5}}))
    assert {name: counts for name, counts in found.items() if counts != Counts()} == {
        name: counts for name, counts in sent.items() if counts != Counts()
    }


def test_adding_does_not_change_what_is_added() -> None:
    part, total = Counters(q=Counts(read=1)), Counters()
    total.add(part)
    total.add(part)
    assert (total["q"].read, part["q"].read) == (2, 1)


def test_the_fates_of_events_are_stored_together() -> None:
    assert Counts(read=3, applied=3).stored() == {**dict.fromkeys(FATES, 0), "read": 3, "applied": 3}
    assert Counts(rows=2).stored() == {"rows": 2}
    assert Counts().stored() == {}


def test_a_receipt_also_has_the_newest_times() -> None:
    stored = Counters(q=Counts(rows=2)).to_receipt({"tx": {"*": 7, "topic-0": -1}})
    assert stored == {"rows:q": 2, "max_time:tx:*": 7, "max_time:tx:topic-0": -1}
    found = Counters()
    assert found.add_receipt(stored) == {"tx": {"*": 7, "topic-0": -1}}
    assert found == {"q": Counts(rows=2)}
    assert in_receipt("rows", "q") in stored


def test_a_record_counts_no_rows_of_a_query_that_failed() -> None:
    counters = Counters(q=Counts(rows=2, withheld=1, late_rows=3, raised=1), other=Counts(raised=1))
    assert counters.to_record({"q"}) == {"q": {"late_rows": 3}}


def test_an_unknown_count_is_an_error() -> None:
    with pytest.raises(TypeError):
        Counters().add_receipt({"rowz:q": 1})
