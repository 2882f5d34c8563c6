"""The portions in which the files of past epochs are read again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millpond.log.file_lists import ListedFile
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.runtime.inputs.backfill import PastEpoch
from millpond.spark.reading import file_source
from millpond.spark.reading.file_source import FileSource


@pytest.mark.parametrize("size", [0, 10])
def test_the_first_portion_does_not_wait_for_the_sizes_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    files = [ListedFile(f"file:///in/{number}.parquet", 0, number) for number in range(25)]
    offsets = ["", *(f'{{"logOffset":{number}}}' for number in range(25))]
    epochs = [PastEpoch(n, start, end, None, None, {}, {}) for n, (start, end) in enumerate(pairwise(offsets))]
    sized = list[int]()

    def sizes(_self: FileSource, _spark: Any, some: Sequence[ListedFile]) -> list[int]:
        sized.append(len(some))
        return [size] * len(some)

    monkeypatch.setattr(file_source, "PORTION_FILES", 10)
    monkeypatch.setattr(file_source, "PORTION_BYTES", 40)
    monkeypatch.setattr(file_source, "listed_files", lambda folder, after, last: files)
    monkeypatch.setattr(FileSource, "_sizes", sizes)
    monkeypatch.setattr(FileSource, "_batch", lambda _self, _spark, paths: paths)
    source = FileSource(Stream("tx", (Field("a", "int"),), Source("parquet", (("path", "/in"),))))
    spark: Any = None
    portions = source.portions(spark, tmp_path, epochs)
    first = next(portions)
    assert sized == [10]
    found = [first, *portions]
    assert sized == [10, 10, 5] and sum(portion.share for portion in found) == pytest.approx(1)
    assert [path for portion in found for path in portion.frame] == [file.decoded for file in files]
    assert all(portion.share == pytest.approx(len(portion.files) / 25) for portion in found)
