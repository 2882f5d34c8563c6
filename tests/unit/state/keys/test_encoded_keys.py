"""Keys with a dictionary are the same keys as those without one: hash, text, bucket, slot and bytes of a packet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays import Ints
from millpond.kernels.key_codes import encode
from millpond.runtime.keys.buckets import buckets_by
from millpond.runtime.packets.packet import GroupPart, Header, decode_packet, encode_packet
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.keys.keys import equal_keys, hashes_of, plain, texts_of
from millpond.state.layout.event_log import Events

TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "merchant-17", "ü" * 200]), st.text(max_size=20))
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.integers(-3, 3)), min_size=1, max_size=40, unique=True)
Row = tuple[str | None, str | None, int]


def both(rows: Sequence[Row]) -> tuple[list[pa.Array], list[pa.Array]]:
    """Key columns as they are, and with texts as a slice of a dictionary that has values that no key uses."""
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.string())]
    numbers = pa.array([row[2] for row in rows], pa.int64())
    encoded = []
    for column in columns:
        codes, values = encode(pa.concat_arrays([pa.array(["unused", None]), column]))
        encoded.append(pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), values).slice(2))
    return [*columns, numbers], [*encoded, numbers]


@given(ROWS)
def test_encoded_keys_have_the_same_hashes_texts_and_buckets(rows: list[Row]) -> None:
    keys, encoded = both(rows)
    count = len(rows)
    assert [plain(key).to_pylist() for key in encoded] == [key.to_pylist() for key in keys]
    assert hashes_of(encoded, count).tolist() == hashes_of(keys, count).tolist()
    assert texts_of(encoded, count).equals(texts_of(keys, count))
    assert equal_keys(encoded, keys, count).all()
    for spread in (None, 1):
        assert buckets_by(spread, encoded, count, 1024).tolist() == buckets_by(spread, keys, count, 1024).tolist()


@given(ROWS, st.integers(1, 40))
def test_encoded_keys_get_the_same_slots_and_are_stored_as_they_are(rows: list[Row], known: int) -> None:
    keys, encoded = both(rows)

    def buckets(columns: Sequence[pa.Array], count: int) -> Ints:
        return buckets_by(None, columns, count, 64)

    def sent(columns: Sequence[pa.Array], count: int) -> Ints:
        raise AssertionError("the buckets of the keys are known")

    numbered = []
    for some, bucket_of in ((keys, buckets), (encoded, buckets), (encoded, sent)):
        dictionary = KeyDictionary([key.type for key in keys], [], None, bucket_of)
        both_times = [[key.slice(0, known) for key in some], some]
        of_each = [buckets(one, len(one[0])) if bucket_of is sent else None for one in both_times]
        slots = [dictionary.number(one, buckets=own) for one, own in zip(both_times, of_each, strict=True)]
        arrived = dictionary.batch(0)
        moved = dictionary.by_bucket()
        numbered.append(([part.tolist() for part in slots], arrived, dictionary.batch(0), dictionary.number(some)))
        assert moved is None or numbered[-1][3].tolist() == moved[slots[1]].tolist()
    for other in numbered[1:]:
        assert numbered[0][0] == other[0]
        assert numbered[0][1].equals(other[1])
        assert numbered[0][2].equals(other[2])


@given(ROWS, st.integers(1, 20))
def test_a_packet_has_the_values_of_a_dictionary_that_its_keys_use(rows: list[Row], times: int) -> None:
    repeated = [(first, second, number * times + i) for first, second, number in rows for i in range(times)]
    keys, encoded = both(repeated)
    zeros = np.zeros(1, np.int64)
    body = Events(zeros, zeros, zeros, {})
    buckets = buckets_by(None, keys, len(repeated), 1024)
    sent = encode_packet(Header("tx", 0, 0, {}, {}), [GroupPart("g", encoded, len(repeated), body, buckets)])
    _, [part] = decode_packet(pa.py_buffer(sent))
    assert part.buckets is not None and part.buckets.tolist() == buckets.tolist()
    assert [plain(key).to_pylist() for key in part.keys] == [key.to_pylist() for key in keys]
    for key in part.keys[:2]:
        if pa.types.is_dictionary(key.type):
            assert set(key.dictionary.to_pylist()) == set(plain(key).to_pylist())


@given(ROWS, st.lists(st.integers(0, 40), max_size=3), st.integers(0, 40), st.integers(0, 40))
def test_consecutive_slots_have_the_keys_of_each_slot(rows: list[Row], cuts: list[int], first: int, end: int) -> None:
    keys, encoded = both(rows)
    dictionary = KeyDictionary([key.type for key in keys], [], None, lambda _keys, count: np.zeros(count, np.int64))
    borders = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for low, high in pairwise(borders):
        dictionary.number([key.slice(low, high - low) for key in (encoded if low % 2 else keys)])
    slots = np.arange(min(first, len(rows)), min(end, len(rows)))
    expected = [[key[slot].as_py() for slot in slots.tolist()] for key in keys]
    assert [column.to_pylist() for column in dictionary.take(slots)] == expected
    assert [column.to_pylist()[::-1] for column in dictionary.take(slots[::-1])] == expected
