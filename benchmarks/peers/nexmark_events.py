"""Events of Nexmark as its generator defines them, in arrays: persons, auctions and bids of an online auction.

After the generator of Apache Beam's and github.com/nexmark/nexmark's configuration "default": of 50 events one is a
person, three are auctions, 46 are bids; 10,000 events per second of event time; half of the bids go to a hot auction,
three quarters come from a hot bidder, three quarters of the auctions are a hot seller's; 100 auctions are in flight and
1,000 people active; sizes are 200, 500 and 100 bytes on average. Numbers are drawn by NumPy, so events have the same
distribution as the generator's, not the same values. Two differences: `bidder` is moved by the first id once, as in
Beam, and each bid has `arrived`, the moment at which a broker would have taken it: the end of its tenth of a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PER_SECOND = 10_000
BASE_MS = 1_436_918_400_000
FIRST_ID, FIRST_CATEGORY = 1000, 10
PERSONS, AUCTIONS, ALL = 1, 3, 50
"""The number of persons and of auctions among a number of events; the rest are bids."""

IN_FLIGHT, ACTIVE, AUCTION_LEAD, PERSON_LEAD, HOT = 100, 1000, 10, 10, 100
SIZES = {"person": 200, "auction": 500, "bid": 100}
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
]  # fmt: skip
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]

SCHEMAS = {
    "person": "id BIGINT, name STRING, email STRING, card STRING, city STRING, state STRING, ts TIMESTAMP,"
    " extra STRING",
    "auction": "id BIGINT, item STRING, description STRING, initial_bid BIGINT, reserve BIGINT, ts TIMESTAMP,"
    " expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP, arrived TIMESTAMP,"
    " extra STRING",
}
"""Columns of each kind, as Spark and DuckDB read them."""

SIDE_INPUT, SIDE_ROWS = "side_key BIGINT, side_value STRING", 10_000
"""Columns and number of rows of the table that q13 joins."""

Longs = npt.NDArray[np.int64]
_POOL = 1 << 20


class Events(NamedTuple):
    """The events of a run of numbers, each kind in order of time."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


def events(first: int, count: int, seed: int = 1, per_second: int = PER_SECOND) -> Events:
    """The events with the numbers [first, first + count), `per_second` of them a second of event time."""
    dice = np.random.default_rng([seed, first])
    number = np.arange(first, first + count, dtype=np.int64)
    place = number % ALL
    is_person = place < PERSONS
    is_auction = ~is_person & (place < PERSONS + AUCTIONS)
    return Events(
        _persons(dice, number[is_person], per_second),
        _auctions(dice, number[is_auction], per_second),
        _bids(dice, number[~is_person & ~is_auction], per_second, seed),
    )


def write(folder: Path, count: int, files: int, per_second: int = PER_SECOND) -> Path:
    """A folder with `files` Parquet files of each kind, in order of time, and the table `side_input`; made once."""
    if not (folder / "_DONE").exists():
        key = pa.array(range(SIDE_ROWS))
        side = pa.table({"side_key": key, "side_value": key.cast(pa.string())})
        (folder / "side_input").mkdir(parents=True)
        pq.write_table(side, folder / "side_input" / "part-0.parquet")
        per = count // files
        for number in range(files):
            for kind, table in events(number * per, per, per_second=per_second)._asdict().items():
                (folder / kind).mkdir(parents=True, exist_ok=True)
                rows = max(1, len(table) // 4)
                pq.write_table(table, folder / kind / f"part-{number:04d}.parquet", row_group_size=rows)
        (folder / "_DONE").touch()
    return folder


def milliseconds(number: Longs, per_second: int) -> Longs:
    """When event `number` happens, in milliseconds since 1970."""
    return BASE_MS + number * (1_000_000 // per_second) // 1000


def last_person(number: Longs) -> Longs:
    """The newest person (from 0) when event `number` is made."""
    return number // ALL * PERSONS + np.minimum(number % ALL, PERSONS - 1)


def last_auction(number: Longs) -> Longs:
    """The newest auction (from 0) when event `number` is made; -1 before the first."""
    place = number % ALL
    inside = np.clip(place - PERSONS, 0, AUCTIONS - 1)
    before = place < PERSONS
    return (number // ALL - before) * AUCTIONS + np.where(before, AUCTIONS - 1, inside)


def _some_person(dice: np.random.Generator, number: Longs) -> Longs:
    people = last_person(number) + 1
    active = np.minimum(people, ACTIVE)
    return people - active + dice.integers(0, active + PERSON_LEAD)


def _some_auction(dice: np.random.Generator, number: Longs) -> Longs:
    newest = last_auction(number)
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    return oldest + dice.integers(0, np.maximum(newest - oldest + 1, 0) + AUCTION_LEAD)


def _prices(dice: np.random.Generator, count: int) -> Longs:
    return np.round(10.0 ** (dice.random(count) * 6) * 100).astype(np.int64)


def _persons(dice: np.random.Generator, number: Longs, per_second: int) -> pa.Table:
    count = len(number)
    names = pc.binary_join_element_wise(_one_of(dice, FIRST_NAMES, count), _one_of(dice, LAST_NAMES, count), " ")
    boxes, hosts = texts(dice, count, 7), texts(dice, count, 5)
    emails = pc.binary_join_element_wise(boxes, "@", hosts, ".com", "")
    digits = [pc.utf8_slice_codeunits(_text(dice.integers(10_000, 20_000, count)), 1) for _ in range(4)]
    columns = {
        "id": pa.array(last_person(number) + FIRST_ID),
        "name": names,
        "email": emails,
        "card": pc.binary_join_element_wise(*digits, " "),
        "city": _one_of(dice, CITIES, count),
        "state": _one_of(dice, STATES, count),
        "ts": _times(milliseconds(number, per_second)),
    }
    return pa.table(columns | {"extra": _extra(dice, columns, "person", ("name", "email", "card", "city", "state"))})


def _auctions(dice: np.random.Generator, number: Longs, per_second: int) -> pa.Table:
    count, now = len(number), milliseconds(number, per_second)
    hot = last_person(number) // HOT * HOT
    seller = np.where(dice.integers(0, 4, count) > 0, hot, _some_person(dice, number))
    initial = _prices(dice, count)
    horizon = milliseconds(number + IN_FLIGHT * ALL // AUCTIONS, per_second) - now
    expires = now + 1 + dice.integers(0, np.maximum(horizon * 2, 1))
    columns = {
        "id": pa.array(last_auction(number) + FIRST_ID),
        "item": texts(dice, count, 20),
        "description": texts(dice, count, 100),
        "initial_bid": pa.array(initial),
        "reserve": pa.array(initial + _prices(dice, count)),
        "ts": _times(now),
        "expires": _times(expires),
        "seller": pa.array(seller + FIRST_ID),
        "category": pa.array(FIRST_CATEGORY + dice.integers(0, 5, count)),
    }
    return pa.table(columns | {"extra": _extra(dice, columns, "auction", ("item", "description"), 40)})


def _bids(dice: np.random.Generator, number: Longs, per_second: int, seed: int) -> pa.Table:
    count, now = len(number), milliseconds(number, per_second)
    hot = last_auction(number) // HOT * HOT
    auction = np.where(dice.integers(0, 2, count) > 0, hot, _some_auction(dice, number))
    bidder = np.where(dice.integers(0, 4, count) > 0, last_person(number) // HOT * HOT + 1, _some_person(dice, number))
    names, urls = _channels(seed)
    cold = dice.integers(len(HOT_CHANNELS), len(names), count)
    channel = pa.array(np.where(dice.integers(0, 2, count) > 0, dice.integers(0, len(HOT_CHANNELS), count), cold))
    columns = {
        "auction": pa.array(auction + FIRST_ID),
        "bidder": pa.array(bidder + FIRST_ID),
        "price": pa.array(_prices(dice, count)),
        "channel": names.take(channel),
        "url": urls.take(channel),
        "ts": _times(now),
        "arrived": _times((now // 100 + 1) * 100),
    }
    return pa.table(columns | {"extra": _extra(dice, columns, "bid", (), 32)})


def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Names of all channels, the hot ones first, and the address of each; nine of ten others have a number in it."""
    dice = np.random.default_rng([seed, CHANNELS])
    count = len(HOT_CHANNELS) + CHANNELS
    parts = [texts(dice, count, 5, "_") for _ in range(3)]
    urls = pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")
    place = np.arange(CHANNELS)
    # the number is that of the channel with its 32 bits in reverse order, without its sign
    bits = (place[:, None] >> np.arange(32)) & 1
    reverse = (bits << np.arange(31, -1, -1)).sum(axis=1).astype(np.uint32).view(np.int32).astype(np.int64)
    numbered = pc.binary_join_element_wise(urls[len(HOT_CHANNELS) :], _text(np.abs(reverse)), "&channel_id=")
    cold = pc.if_else(pa.array(dice.integers(0, 10, CHANNELS) > 0), numbered, urls[len(HOT_CHANNELS) :])
    names = pc.binary_join_element_wise("channel", _text(place), "-")
    return pa.concat_arrays([pa.array(HOT_CHANNELS), names]), pa.concat_arrays([urls[: len(HOT_CHANNELS)], cold])


def texts(dice: np.random.Generator, count: int, longest: int, special: str = " ") -> pa.Array:
    """Texts of 3 to `longest` - 1 characters: letters, one in thirteen `special`; blanks at the ends are cut."""
    lengths = dice.integers(3, longest, count)
    letters = dice.integers(ord("a"), ord("z") + 1, int(lengths.sum()), dtype=np.uint8)
    letters[dice.integers(0, 13, len(letters)) == 0] = ord(special)
    return pc.utf8_trim_whitespace(_cut(letters, lengths))


def _extra(
    dice: np.random.Generator, columns: dict[str, pa.Array], kind: str, names: tuple[str, ...], plain: int = 8
) -> pa.Array:
    """Random letters that fill an event up to the average size of its kind, give or take a fifth."""
    first = next(iter(columns.values()))
    taken = np.full(len(first), plain, np.int64)
    for name in names:
        taken += pc.binary_length(columns[name]).to_numpy(zero_copy_only=False)
    missing = np.maximum(SIZES[kind] - taken, 0)
    spread = np.round(missing * 0.2).astype(np.int64)
    lengths = missing - spread + dice.integers(0, np.maximum(2 * spread, 1))
    # pieces of one long random text, as in the generator
    pool = np.random.default_rng(7).integers(ord("a"), ord("z") + 1, _POOL, dtype=np.uint8)
    starts = dice.integers(0, _POOL - int(lengths.max(initial=0)), len(first))
    ends = np.cumsum(lengths)
    inside = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    return _cut(pool[np.repeat(starts, lengths) + inside], lengths)


def _cut(letters: npt.NDArray[np.uint8], lengths: Longs) -> pa.Array:
    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(bounds), pa.py_buffer(letters))


def _text(numbers: Longs) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def _one_of(dice: np.random.Generator, values: list[str], count: int) -> pa.Array:
    return pa.array(values).take(pa.array(dice.integers(0, len(values), count)))


def _times(found: Longs) -> pa.Array:
    return pa.array(found * 1000, pa.timestamp("us", "UTC"))
