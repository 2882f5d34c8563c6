"""Looks up rows of keyed tables for batches of events: reads each distinct key of a batch once, all in one request.

Keys, hash fields and columns are arrays. Values that do not parse as their column's type are found by bisection. Only
JSON is decoded row by row, once per distinct key.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import QueryTypeError, SourceError
from millpond.kernels.columns import arrow_type
from millpond.model.keyed_table import PROBLEM, KeyedTable
from millpond.model.stream import Field
from millpond.model.types import INTEGERS, integer_range, is_decimal
from millpond.placement.slots import slots_of
from millpond.state.ports.keyed_rows import Absent, KeyedRows, Row, VanishedError

OpenRows: TypeAlias = Callable[[], KeyedRows]
"""Opens the rows of other programs in the process in which it is called; always returns the same object there."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to reach a server that does not answer: the first pause, and the limit."""

_TAG = r"^[^{]*\{(?P<tag>[^}]+)\}"
_PLAIN: dict[str, Any] = {
    "float": float, "double": float, "boolean": bool, "string": str, "date": date, "timestamp_ntz": datetime,
    "timestamp": Annotated[datetime, msgspec.Meta(tz=True)],
}  # fmt: skip
_ABSENT = (Absent.MISSING, Absent.WRONG_TYPE, Absent.VANISHED)

Mask: TypeAlias = npt.NDArray[np.bool_]


class _Read(NamedTuple):
    """The values of the rows of distinct keys.

    `state`: 0 if there is a row, or else 1 + the position in `_ABSENT` of the reason why there is none.
    """

    columns: list[pa.Array]
    state: npt.NDArray[np.int8]


def key_texts(table: KeyedTable, keys: Sequence[pa.Array]) -> pa.Array:
    """The keys of rows as texts, built from the values of their key columns; NULL if one of the values is NULL."""
    by_name = {name: key.cast(pa.string()) for name, key in zip(table.keys, keys, strict=True)}
    parts: list[pa.Array | pa.Scalar] = []
    for piece in table.pieces:
        parts.append(pa.scalar(piece.literal))
        if piece.column is not None:
            parts.append(by_name[piece.column])
    return pc.binary_join_element_wise(*parts, pa.scalar(""))


def slots_of_keys(texts: pa.Array) -> npt.NDArray[np.int64]:
    """The hash slot of each key: from the text in its first pair of braces, or from the whole key if there is none.

    >>> slots_of_keys(pa.array(["{a}:1", "a", "{}a"])).tolist() == slots_of(pa.array(["a", "a", "{}a"])).tolist()
    True
    """
    tags = pc.struct_field(pc.extract_regex(texts, _TAG), "tag")
    return slots_of(pc.coalesce(tags, texts))


class KeyedReader:
    """Reads rows of one table; it is sent to workers as a value, and only `opens` knows the location of the rows."""

    def __init__(self, table: KeyedTable, opens: OpenRows) -> None:
        self.table = table
        self._opens = opens

    def __repr__(self) -> str:
        return f"KeyedReader({self.table.name})"

    def __call__(self, *keys: pa.Array) -> pa.StructArray:
        """For each event, `partner` and `alive` (TRUE or NULL) and the columns of the table; `keys`: its key columns.

        Raises:
            SourceError: a row has a wrong type, and the table says `fail` for this.
            VanishedError: a server does not answer, and the table says `fail` for this.
            StoreError: a server refuses this user.
        """
        texts = key_texts(self.table, keys).dictionary_encode()
        places = texts.indices
        read = self._read(texts.dictionary)
        state = np.append(read.state, np.int8(-1))[pc.fill_null(places, len(read.state)).to_numpy()]
        partner = state == 0
        dead = np.zeros(len(state), bool)
        for number, why in enumerate(_ABSENT, 1):
            dead |= (state == number) & (self._worth(why) == "dead-letter")
            partner |= (state == number) & (self._worth(why) == "default")
        stands_in = pa.array(partner & (state > 0))
        values = {
            field.name: pc.if_else(stands_in, default[0], column.take(places))
            for field, column, default in zip(self.table.values, read.columns, self._defaults, strict=True)
        }
        own = dict(zip(self.table.keys, keys, strict=True))
        nothing, met = pa.scalar(None, pa.bool_()), pa.array(partner)
        columns = [pc.if_else(met, True, nothing), pc.if_else(pa.array(dead), nothing, True)]
        for field in self.table.columns:
            if field.name == PROBLEM:
                reasons = pa.array([None, *(why.value for why in _ABSENT), None], pa.string())
                columns.append(reasons.take(pa.array(state.astype(np.int64) % len(reasons))))
            elif field.name in own:
                columns.append(pc.if_else(met, own[field.name], pa.scalar(None, own[field.name].type)))
            else:
                columns.append(values[field.name])
        return pa.StructArray.from_arrays(columns, names=["partner", "alive", *(f.name for f in self.table.columns)])

    def _worth(self, why: Absent) -> str:
        table = self.table
        return {
            Absent.MISSING: table.missing, Absent.WRONG_TYPE: table.wrong_type, Absent.VANISHED: table.vanished
        }[why]  # fmt: skip

    @cached_property
    def _defaults(self) -> list[pa.Array]:
        return defaults_of(self.table)

    def _read(self, texts: pa.Array) -> _Read:
        if not len(texts):
            return _Read([pa.array([], arrow_type(field.type)) for field in self.table.values], np.zeros(0, np.int8))
        rows = self._requested(texts)
        is_row = np.array([isinstance(row, list) for row in rows])
        state = np.array([0 if isinstance(row, list) else 1 + _ABSENT.index(row) for row in rows], np.int8)
        decode = _from_json if self.table.form == "json" else _from_hashes
        columns, wrong = decode(self.table, [row for row in rows if isinstance(row, list)])
        state[np.flatnonzero(is_row)[wrong]] = 1 + _ABSENT.index(Absent.WRONG_TYPE)
        bad = np.flatnonzero(state == 1 + _ABSENT.index(Absent.WRONG_TYPE))
        if len(bad) and self.table.wrong_type == "fail":
            raise SourceError(
                f"The row {texts[int(bad[0])].as_py()!r} is none of the table {self.table.name}.",
                "Mend the row, or say 'dead-letter', 'null' or 'default' for 'wrong.type'.",
            )
        places = pa.array(np.cumsum(is_row) - 1, mask=state != 0)
        return _Read([column.take(places) for column in columns], state)

    def _requested(self, texts: pa.Array) -> list[Row | Absent]:
        """The rows; while a server does not answer, waits, fails or goes on as the table says."""
        keys = texts.cast(pa.binary()).to_pylist()
        slots = slots_of_keys(texts).tolist()
        fields = [] if self.table.form == "json" else [field.name.encode() for field in self.table.values]
        answers: list[Row | Absent] = [Absent.VANISHED] * len(keys)
        waiting = list(range(len(keys)))
        pause, since = FIRST_PAUSE, time.monotonic()
        while True:
            try:
                some = self._opens().read([keys[i] for i in waiting], [slots[i] for i in waiting], fields)
            except VanishedError as error:
                some, reason = [Absent.VANISHED] * len(waiting), error.what.rstrip(".")
            else:
                reason = f"{some.count(Absent.VANISHED)} of {len(some)} rows are on servers that do not answer"
            for i, row in zip(waiting, some, strict=True):
                answers[i] = row
            waiting = [i for i in waiting if answers[i] is Absent.VANISHED]
            if not waiting or self.table.vanished not in ("wait", "fail"):
                return answers
            if self.table.vanished == "fail":
                raise VanishedError(f"The table {self.table.name} cannot be read: {reason}.", "Run again when it can.")
            waited = time.monotonic() - since
            sys.stderr.write(f"[MP-STORE] The table {self.table.name} is waited for, {waited:.0f} s: {reason}\n")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def defaults_of(table: KeyedTable) -> list[pa.Array]:
    """The default values of a row, each as an array with one element.

    Raises:
        QueryTypeError: the defaults are not a JSON object of the table's columns.
    """
    columns, wrong = _from_json(table, [[table.defaults.encode()]])
    names = {field.name for field in table.values}
    if wrong.any() or not set(msgspec.json.decode(table.defaults)) <= names:
        raise QueryTypeError(
            f"The defaults of {table.name} are not a JSON object with its columns.", 'Write \'{"name": "nobody"}\'.'
        )
    return columns


def _from_hashes(table: KeyedTable, rows: Sequence[Row]) -> tuple[list[pa.Array], Mask]:
    """The columns of the fields of hashes, and which rows have a value that does not parse as its column's type."""
    wrong = np.zeros(len(rows), bool)
    columns = []
    given = zip(*rows, strict=True) if rows else [()] * len(table.values)
    for field, values in zip(table.values, given, strict=True):
        texts, bad = _tolerant(pa.array(values, pa.binary()), partial(pc.cast, target_type=pa.string()))
        column, worse = _tolerant(texts, partial(pc.cast, target_type=arrow_type(field.type)))
        wrong |= bad | worse
        columns.append(column)
    return columns, wrong


def _from_json(table: KeyedTable, rows: Sequence[Row]) -> tuple[list[pa.Array], Mask]:
    """Like `_from_hashes`, for JSON objects; members that are not columns of the table are ignored."""
    names = {f"f{number}": field.name for number, field in enumerate(table.values)}
    members: list[tuple[str, Any, Any]] = [
        (name, _json_type(field) | None, None) for name, field in zip(names, table.values, strict=True)
    ]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Row", members, rename=names))
    decoded: list[Any] = []
    for [text] in rows:
        try:
            decoded.append(decoder.decode(text or b""))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            decoded.append(None)
    wrong = np.array([one is None for one in decoded], bool)
    columns = []
    for name, field in zip(names, table.values, strict=True):
        values = [getattr(one, name, None) for one in decoded]
        column, bad = _tolerant(values, partial(pa.array, type=arrow_type(field.type)))
        wrong |= bad
        columns.append(column)
    return columns, wrong


def _json_type(field: Field) -> Any:
    if field.type in INTEGERS:
        low, high = integer_range(field.type)
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    return Decimal if is_decimal(field.type) else _PLAIN[field.type]


def _tolerant(values: Any, convert: Callable[[Any], pa.Array]) -> tuple[pa.Array, Mask]:
    """Converts an array or a list; values that cannot be converted become NULL, and the mask says which these are."""
    try:
        return convert(values), np.zeros(len(values), bool)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError, ValueError):
        if len(values) == 1:
            return pa.nulls(1, convert(values[:0]).type), np.ones(1, bool)
        half = len(values) // 2
        left, right = _tolerant(values[:half], convert), _tolerant(values[half:], convert)
        return pa.concat_arrays([left[0], right[0]]), np.concatenate([left[1], right[1]])
