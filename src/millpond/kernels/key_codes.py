"""Makes columns of canonical keys, and encodes them as codes into their distinct values (dictionary encoding)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, places_of
from millpond.kernels.columns import Values, to_arrow
from millpond.state.keys.keys import canonical


class KeyCodes(NamedTuple):
    """A key column as distinct values, and the position of each row's value in them; NULL is a value."""

    codes: Ints
    values: pa.Array

    def without_unused(self) -> KeyCodes:
        """The same column without values that no row has."""
        held, codes = places_of(self.codes, len(self.values))
        return KeyCodes(codes, self.values if len(held) == len(self.values) else self.values.take(pa.array(held)))


def encode(column: pa.Array) -> KeyCodes:
    """Encodes a column of canonical keys; one with a dictionary keeps the values that it uses."""
    if pa.types.is_dictionary(column.type):
        indices, values = column.indices, column.dictionary
        if indices.null_count:  # as in a file
            indices, values = indices.fill_null(len(values)), pa.concat_arrays([values, pa.nulls(1, values.type)])
        return KeyCodes(np.asarray(indices).astype(np.int64), values).without_unused()
    encoded = column.dictionary_encode(null_encoding="encode")
    return KeyCodes(np.asarray(encoded.indices).astype(np.int64), encoded.dictionary)


def key_column(values: Values, kind: str, rows: int) -> pa.Array:
    """A column of canonical keys; an error is NULL."""
    return canonical(to_arrow(values._replace(null=values.null | values.error), kind, rows))
