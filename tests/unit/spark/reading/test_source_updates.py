"""What a record says about sources: files that were read, and what else a source keeps, from folders as Spark leaves
them.
"""

from __future__ import annotations

import json
from pathlib import Path

from millpond.log.file_lists import file_list, files_in
from millpond.log.manifest import SourceState
from millpond.log.protocol import TICK
from millpond.log.records import SourceUpdate
from millpond.spark.reading.source_progress import listed_files
from millpond.spark.reading.source_updates import local_paths, source_updates

BEGUN = b'\0v1\n{"t":{"0":5}}'
SET = "\0v1\n" + '{"t":{"0":5}}'


def put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def listed(folder: Path, batch: int, *names: str) -> None:
    lines = [json.dumps({"path": f"file:///in/{name}", "timestamp": 7 + batch, "batchId": batch}) for name in names]
    put(folder / str(batch), "\n".join(("v1", *lines)).encode())


def test_files_that_the_log_does_not_have_yet(tmp_path: Path) -> None:
    folder = tmp_path / "sources" / "ev"
    for batch in range(4):
        listed(folder, batch, f"{batch}.json", f"{batch}%20b.json")
    files = listed_files(folder, -1, 3)
    end = {"ev": '{"logOffset":3}', TICK: "9"}
    # a log of an earlier version has none of them
    assert source_updates(tmp_path, end, {}) == {"ev": SourceUpdate(file_list(files))}
    update = source_updates(tmp_path, end, {"ev": SourceState(2)})["ev"]
    assert update.files is not None and [*files_in(update.files)] == files[6:]
    assert local_paths(update.files, 2) == ["/in/3.json", "/in/3 b.json"] and local_paths(update.files, 3) == []
    assert source_updates(tmp_path, end, {"ev": SourceState(3)}) == {}


def test_what_other_sources_keep(tmp_path: Path) -> None:
    folder, end = tmp_path / "sources" / "tx", {"tx": '{"t":{"0":9}}'}
    assert source_updates(tmp_path, end, {}) == {"tx": SourceUpdate()}, "it is known to keep nothing"
    assert source_updates(tmp_path, end, {"tx": SourceState()}) == {}
    put(folder / "0", BEGUN)
    put(folder / "deep" / "er", bytes(range(256)))
    put(folder / ".0.crc", b"x")
    found = source_updates(tmp_path, end, {})["tx"].stored
    assert found == {"0": SET, "deep/er": bytes(range(256)).decode("latin-1")}
    assert source_updates(tmp_path, end, {"tx": SourceState(stored={"0": SET, "old": "x"})}) == {
        "tx": SourceUpdate(stored={"deep/er": found["deep/er"], "old": None})
    }
