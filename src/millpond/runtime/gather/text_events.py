"""Parses records that come as texts of JSON or CSV into the columns of their streams, before anything else is gathered.

The result equals the rows that Spark would deliver, or an obstacle is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.formats.csv_values import parse_csv
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import Mode, parse_texts
from millpond.formats.malformed_reasons import NO_OBJECT, NO_VALUE
from millpond.formats.text_parser import Parsed
from millpond.runtime.task.column_layout import DEAD, LETTER_COLUMN, ReadLayout, TextStream, column_name
from millpond.runtime.task.obstacle import Obstacle, ObstacleError


class TextEvents:
    """Parses the texts that one task reads, and counts their bytes."""

    def __init__(self, layout: ReadLayout) -> None:
        self._layout, self._texts = layout, {text.position: text for text in layout.texts}
        self._bytes = 0

    def take_bytes(self) -> int:
        """The bytes of the texts that were parsed since the last call."""
        taken, self._bytes = self._bytes, 0
        return taken

    def parsed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with all columns of the layout at their positions; malformed records are in batches of their own.

        Raises:
            ObstacleError: a text may not be parsed here as Spark parses it.
        """
        if not self._texts:
            yield from batches
            return
        for batch in batches:
            streams = np.asarray(batch.column(0))
            first = int(streams[0]) if len(streams) else 0
            if (streams == first).all():
                yield from self._of_stream(self._texts.get(first), batch)
                continue
            other = ~np.isin(streams, [*self._texts])
            for text, rows in [(None, other), *((text, streams == place) for place, text in self._texts.items())]:
                if rows.any():
                    yield from self._of_stream(text, batch.filter(pa.array(rows)))

    def _of_stream(self, text: TextStream | None, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of one stream whose records are texts, or (None) of others."""
        if text is None:
            letters = [LETTER_COLUMN] if LETTER_COLUMN in batch.schema.names else []
            yield self._placed(batch, {name: batch.column(name) for name in batch.schema.names}, letters)
            return
        stream = self._layout.streams[text.position]
        letters = batch.column(LETTER_COLUMN)
        texts = letters.field("value")
        self._bytes += texts.nbytes
        try:
            columns = [TextColumn(*one) for one in text.columns]
            if text.separator:
                parsed = parse_csv(texts, columns, text.zone, text.separator, strict=text.strict)
            else:
                mode = Mode.STRICT if text.strict else Mode.PERMISSIVE
                parsed = parse_texts(texts, columns, text.zone, mode)
        except Doubt as doubt:
            raise ObstacleError(Obstacle(str(doubt), stream.name)) from doubt
        found = {name: batch.column(name) for name in batch.schema.names}
        values = dict(zip((name for name, _ in text.columns), parsed.columns, strict=True))
        for place, column in enumerate(stream.columns):
            if column.name in values:
                found[column_name(text.position, place)] = values[column.name]
        rows = self._placed(batch, found, [])
        if not parsed.malformed.any():
            yield rows
            return
        yield rows.filter(pa.array(~parsed.malformed))
        yield _dead(letters, texts, parsed, keeps_bytes=text.keeps_bytes)

    def _placed(self, batch: pa.RecordBatch, found: dict[str, pa.Array], last: list[str]) -> pa.RecordBatch:
        """The columns in the order of the layout; those of other streams, which the frame may lack, are NULL."""
        names = [
            column_name(position, place)
            for position, stream in enumerate(self._layout.streams) if not stream.chained
            for place in range(len(stream.columns))
        ]  # fmt: skip
        missing = pa.nulls(batch.num_rows)
        columns = [batch.column(0), *(found.get(name, missing) for name in names), *(found[name] for name in last)]
        return pa.RecordBatch.from_arrays(columns, names=["stream", *names, *last])


def _dead(letters: pa.StructArray, texts: pa.Array, parsed: Parsed, *, keeps_bytes: bool) -> pa.RecordBatch:
    """The dead letters of malformed records."""
    rows = pa.array(parsed.malformed)
    texts = texts.filter(rows)
    known = [parsed.reasons.get(row, NO_OBJECT) for row in np.flatnonzero(parsed.malformed).tolist()]
    reasons = pc.if_else(texts.is_null(), NO_VALUE, pa.array(known, pa.string()))
    made = {"value": texts if keeps_bytes else pa.nulls(len(texts), texts.type), "reason": reasons}
    kinds = letters.type.fields
    every = [made[kind.name] if kind.name in made else letters.field(kind.name).filter(rows) for kind in kinds]
    parts = [part.cast(kind.type) for part, kind in zip(every, kinds, strict=True)]
    letter = pa.StructArray.from_arrays(parts, fields=kinds)
    streams = pa.array(np.full(len(texts), DEAD, np.int32))
    return pa.RecordBatch.from_arrays([streams, letter], names=["stream", LETTER_COLUMN])
